"""The store: one copy of equal arrays, whole or not there, collected when no plan needs them."""

from __future__ import annotations

import errno
import json
import mmap
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve.errors import PlanDamaged, StoreError
from streamserve.plan.graph import Constant
from streamserve.plan.store import Store, default_folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def manifest(*constants: Constant, name: str = "") -> dict[str, Any]:
    return {"name": name, "objects": {constant.digest: {"bytes": constant.nbytes} for constant in constants}}


def is_mapped(array: Any) -> bool:
    """Whether an array's bytes are a file's."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def some(value: float, rows: int = 100) -> Constant:
    return Constant(np.full(rows, value))


def keep(store: Store, digest: str, *constants: Constant) -> None:
    with store.writing():
        for constant in constants:
            store.put(constant)
        store.register(digest, manifest(*constants, name=digest))


def test_equal_arrays_are_one_file_and_one_mapping(store: Store) -> None:
    keep(store, "aa", some(1), some(2))
    keep(store, "bb", some(1), some(3))
    assert len(store.object_bytes()) == 3
    one = store.get(some(1).digest)
    assert one is store.get(some(1).digest)
    assert one.array.tolist() == some(1).array.tolist()
    assert not one.array.flags.writeable
    assert is_mapped(one.array)


def test_what_each_plan_holds_alone(store: Store) -> None:
    keep(store, "aa", some(1), some(2))
    keep(store, "bb", some(1), some(3, 10))
    assert [(one.name, one.bytes, one.unique_bytes) for one in store.holdings()] == [
        ("aa", 1600, 800),
        ("bb", 880, 80),
    ]


def test_collecting_keeps_what_a_plan_needs(store: Store) -> None:
    keep(store, "aa", some(1), some(2))
    keep(store, "bb", some(1), some(3))
    mapped = store.get(some(2).digest)
    assert store.collect().objects == 0
    assert store.remove("aa")
    assert not store.remove("aa")
    done = store.collect()
    assert (done.objects, done.unfinished) == (1, 0)
    assert done.bytes > 800
    assert not store.has(some(2).digest)
    assert store.has(some(1).digest)
    assert mapped.array[0] == 2, "who has it mapped keeps it"
    store.remove("bb")
    assert store.collect().objects == 2
    assert store.collect() == Store(store.folder / "none").collect()


def test_what_is_dropped_goes_at_once_with_what_it_alone_has(store: Store) -> None:
    keep(store, "aa", some(1), some(2))
    keep(store, "bb", some(1), some(3))
    mapped = store.get(some(2).digest)
    store.drop(["aa", "none"])
    assert store.manifests().keys() == {"bb"}
    assert store.object_bytes().keys() == {some(1).digest, some(3).digest}
    assert mapped.array[0] == 2, "who has it mapped keeps it"


def test_a_wrong_hash_is_found(store: Store) -> None:
    keep(store, "aa", some(1))
    file = next(store.folder.glob("objects/*/*.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(PlanDamaged, match="does not hold what its name says"):
        store.check(some(1).digest)


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_truncated_object_is_told(store: Store, cut: int) -> None:
    keep(store, "aa", some(1))
    file = next(store.folder.glob("objects/*/*.npy"))
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(PlanDamaged, match="is truncated or no array"):
        Store(store.folder).get(some(1).digest)


def test_a_missing_object_and_an_impossible_name(store: Store) -> None:
    with pytest.raises(PlanDamaged, match="has no object"):
        store.get(some(1).digest)
    with pytest.raises(PlanDamaged, match="no content hash"):
        store.get("../../etc/passwd")


def test_a_full_disk_leaves_nothing_half_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"No space left on device; make room"):
            keep(store, "aa", some(1))
    assert [file for file in store.folder.rglob("*") if file.is_file()] == [store.folder / "lock"]
    keep(store, "aa", some(1))
    assert store.get(some(1).digest).array[0] == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_by_this_user(store: Store) -> None:
    store.folder.mkdir()
    store.folder.chmod(0o500)
    with pytest.raises(StoreError, match="name a folder that this user may write"):
        keep(store, "aa", some(1))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written: Not a directory"):
        keep(Store(tmp_path / "file" / "store"), "aa", some(1))


def test_a_read_only_file_system_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(StoreError, match=r"Read-only file system; name a folder"):
        keep(store, "aa", some(1))


def _killed_in_mid_write(folder: str) -> None:
    def die(_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = die
    keep(Store(folder), "aa", some(1))


def test_a_writer_killed_in_mid_write_leaves_a_store_that_works(store: Store) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed_in_mid_write, args=(str(store.folder),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert store.object_bytes() == {}
    assert len(list((store.folder / "tmp").iterdir())) == 1
    keep(store, "bb", some(1))
    assert store.get(some(1).digest).array[0] == 1
    assert store.collect().unfinished == 1
    assert store.get(some(1).digest).array[0] == 1


def _write_many(folder: str, first: int) -> None:
    store = Store(folder)
    for i in range(15):
        keep(store, f"{first:x}{i:x}", some(i), some(first * 100 + i))


def _collect_many(folder: str) -> None:
    for _ in range(40):
        Store(folder).collect()


@pytest.mark.slow
def test_writers_and_a_collector_at_once(store: Store) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(str(store.folder), first)) for first in (1, 2)]
    processes.append(context.Process(target=_collect_many, args=(str(store.folder),)))
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    for found in store.manifests().values():
        for digest in found["objects"]:
            store.check(digest)
    assert len(store.object_bytes()) == 15 + 30


def test_a_manifest_that_is_no_json_is_named(store: Store) -> None:
    keep(store, "aa", some(1))
    (store.folder / "plans" / "aa.json").write_text("{")
    with pytest.raises(PlanDamaged, match=r"aa\.json is no manifest"):
        store.collect()
    (store.folder / "plans" / "aa.json").write_text(json.dumps(manifest(some(1))))
    assert store.collect().objects == 0


def test_where_it_is_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path))
    assert default_folder() == Store().folder == tmp_path / "plans"


@pytest.mark.parametrize(
    "array",
    [np.zeros(0), np.float64(3.5).reshape(()), np.arange(6, dtype=np.int32).reshape(2, 3), np.array([b"ab", b"c"])],
)
def test_arrays_of_any_form_are_mapped_as_they_were(store: Store, array: Any) -> None:
    constant = Constant(array)
    keep(store, "aa", constant)
    found = Store(store.folder).get(constant.digest).array
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert is_mapped(found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:9],
        lambda data: data[:-1],
        lambda data: b"\x94" + data[1:],
        lambda data: data.replace(b"False", b"True "),
        lambda data: data.replace(b"'<i8'", b"'|O' "),
        lambda data: data.replace(b"{", b"("),
    ],
)
def test_a_file_that_is_no_whole_array_is_told(store: Store, damage: Any) -> None:
    keep(store, "aa", some(1))
    file = next(store.folder.glob("objects/*/*.npy"))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(PlanDamaged, match="is truncated or no array"):
        Store(store.folder).get(some(1).digest)
