"""The object store: arrays by content hash in files, one copy for all plans and all processes of a machine.

A folder with `objects/ab/abcdef….npy` (an array each, memory-mapped by whoever uses it), `plans/DIGEST.json` (a
manifest each: what keeps its objects from being collected) and `tmp/`. A file is written under `tmp/`, flushed to the
disk and renamed, so it is whole or not there; two writers of one object write the same bytes, and either rename may
win. Writers hold a shared lock from their first object to their manifest, `collect` an exclusive one, so nothing goes
between the two. A crash leaves files that no manifest names; `collect` removes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import math
import mmap
import os
import secrets
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from streamserve import places
from streamserve.core.messages import AnyArray
from streamserve.errors import PlanDamaged, StoreError
from streamserve.plan.graph import Constant, array_digest

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection removed."""

    objects: int
    bytes: int
    unfinished: int
    """Files that a writer had not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One plan of a store."""

    digest: str
    name: str
    bytes: int
    """Of all its objects."""
    unique_bytes: int
    """Of those that no other plan has."""


def default_folder() -> Path:
    """`plans` in the cache folder: what is in it can be packed again."""
    return places.cache_folder() / "plans"


class Store:
    """A folder of objects and manifests."""

    def __init__(self, folder: Path | str | None = None) -> None:
        """`folder` need not exist; None: `default_folder`."""
        self.folder = Path(folder) if folder is not None else default_folder()
        self._objects = self.folder / "objects"
        self._plans = self.folder / "plans"
        self._tmp = self.folder / "tmp"
        self._open: weakref.WeakValueDictionary[str, Constant] = weakref.WeakValueDictionary()

    # Objects

    def _file(self, digest: str) -> Path:
        if not digest or not set(digest) <= _HEX:
            raise PlanDamaged(f"{digest!r} is no content hash")
        return self._objects / digest[:2] / f"{digest}.npy"

    def has(self, digest: str) -> bool:
        """Whether the object is there."""
        return self._file(digest).is_file()

    def put(self, constant: Constant) -> None:
        """Keep an array; nothing is done where it is there already. Raises `StoreError`."""
        if not self.has(constant.digest):
            self._write(self._file(constant.digest), lambda file: np.save(file, constant.array, allow_pickle=False))

    def get(self, digest: str) -> Constant:
        """The array, memory-mapped. Raises `PlanDamaged` for one that is not there, truncated or no array."""
        kept = self._open.get(digest)
        if kept is None:
            file = self._file(digest)
            try:
                array = _mapped(file)
            except FileNotFoundError:
                raise PlanDamaged(f"the store {self.folder} has no object {digest}; pack the plan again") from None
            except (OSError, ValueError, EOFError) as broken:
                raise PlanDamaged(f"{file} is truncated or no array ({broken}); {_MEND}") from broken
            kept = self._open[digest] = Constant(array, digest)
        return kept

    def check(self, digest: str) -> None:
        """Read an object and compare its hash. Raises `PlanDamaged`."""
        if array_digest(self.get(digest).array) != digest:
            raise PlanDamaged(f"{self._file(digest)} does not hold what its name says; {_MEND}")

    # Manifests

    def register(self, digest: str, manifest: Mapping[str, Any]) -> None:
        """Keep a plan's manifest, and with it its objects. Raises `StoreError`."""
        data = json.dumps(manifest, indent=1, sort_keys=True).encode()
        self._write(self._plans / f"{digest}.json", lambda file: file.write(data))

    def remove(self, digest: str) -> bool:
        """Forget a plan; its objects go with the next `collect`. -> whether it was there."""
        with self._told():
            try:
                (self._plans / f"{digest}.json").unlink()
            except FileNotFoundError:
                return False
        return True

    def manifest(self, digest: str) -> Mapping[str, Any]:
        """One plan's manifest. Raises `PlanDamaged` where it is not there or cannot be read."""
        file = self._plans / f"{digest}.json"
        try:
            found: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise PlanDamaged(f"the store {self.folder} has no plan {digest}") from None
        except (OSError, ValueError) as broken:
            raise PlanDamaged(f"{file} is no manifest ({broken}); remove it and pack its plan again") from broken
        return found

    def manifests(self) -> dict[str, Mapping[str, Any]]:
        """Every plan's manifest by its digest. Raises `PlanDamaged` for one that cannot be read."""
        found = {}
        for file in sorted(self._plans.glob("*.json")):
            try:
                found[file.stem] = json.loads(file.read_text("utf-8"))
            except FileNotFoundError:  # removed meanwhile
                continue
            except (OSError, ValueError) as broken:
                raise PlanDamaged(f"{file} is no manifest ({broken}); remove it and pack its plan again") from broken
        return found

    def holdings(self) -> list[Holding]:
        """Every plan with its bytes, and how many of them it has alone."""
        manifests = self.manifests()
        users = Counter(digest for manifest in manifests.values() for digest in manifest["objects"])
        found = []
        for digest, manifest in manifests.items():
            sizes = {name: int(about["bytes"]) for name, about in manifest["objects"].items()}
            alone = sum(size for name, size in sizes.items() if users[name] == 1)
            name = str(manifest.get("name", ""))
            found.append(Holding(digest=digest, name=name, bytes=sum(sizes.values()), unique_bytes=alone))
        return found

    def drop(self, digests: Iterable[str]) -> None:
        """Forget plans, and remove at once what they alone have. Waits for writers. Raises `StoreError`."""
        with self._told(), self._locked(fcntl.LOCK_EX):
            manifests = self.manifests()
            gone = {digest: manifests.pop(digest) for digest in digests if digest in manifests}
            wanted = {digest for manifest in manifests.values() for digest in manifest["objects"]}
            for digest, manifest in gone.items():
                (self._plans / f"{digest}.json").unlink(missing_ok=True)
                for held in manifest["objects"].keys() - wanted:
                    self._file(held).unlink(missing_ok=True)

    def object_bytes(self) -> dict[str, int]:
        """Bytes on disk of every object."""
        return {file.stem: file.stat().st_size for file in self._objects.glob("*/*.npy")}

    def collect(self) -> Collected:
        """Remove what no manifest names, and what writers left unfinished. Waits for writers. Raises `StoreError`."""
        if not self.folder.is_dir():
            return Collected(objects=0, bytes=0, unfinished=0)
        with self._told(), self._locked(fcntl.LOCK_EX):
            wanted = {digest for manifest in self.manifests().values() for digest in manifest["objects"]}
            objects = size = 0
            for file in sorted(self._objects.glob("*/*.npy")):
                if file.stem not in wanted:
                    size += file.stat().st_size
                    file.unlink()
                    objects += 1
            left = list(self._tmp.glob("*"))
            for file in left:
                file.unlink()
            return Collected(objects=objects, bytes=size, unfinished=len(left))

    # Writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off `collect` from the first object to the manifest. Raises `StoreError`."""
        with self._told():
            for folder in (self._objects, self._plans, self._tmp):
                folder.mkdir(parents=True, exist_ok=True)
            with self._locked(fcntl.LOCK_SH):
                yield

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, how)
            yield  # closing lets go of it

    def _write(self, target: Path, write: Any) -> None:
        """Whole or not at all."""
        with self._told():
            target.parent.mkdir(parents=True, exist_ok=True)
            self._tmp.mkdir(parents=True, exist_ok=True)
            part = self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
            try:
                with part.open("xb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(target)
                _flush_folder(target.parent)
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Trouble of the file system as `StoreError`."""
        try:
            yield
        except OSError as trouble:
            raise StoreError(f"the store {self.folder} cannot be written: {_words(trouble)}") from trouble


_HEAD_BYTES = 10
_MAGIC = b"\x93NUMPY\x01"


def _mapped(file: Path) -> AnyArray:
    """The array of a file that `np.save` wrote, read-only, in no memory of its own. Raises OSError, ValueError.

    `np.load` does the same in ten times the time: it parses each header as Python, and resolves the path.
    """
    with file.open("rb", buffering=0) as opened:
        pages = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    if pages[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as an array of numpy's format 1")
    begins = _HEAD_BYTES + int.from_bytes(pages[8:_HEAD_BYTES], "little")
    shape, dtype = _header(pages[_HEAD_BYTES:begins])
    if begins + math.prod(shape) * dtype.itemsize > len(pages):
        raise ValueError("it is cut short")
    return np.ndarray(shape, dtype, buffer=pages, offset=begins)


@lru_cache(maxsize=4_096)
def _header(text: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type; kept, since models of one kind have arrays of few forms. Raises ValueError."""
    size = len(text).to_bytes(2, "little")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(size + text))
    if fortran_order or dtype.hasobject:
        raise ValueError("it holds objects, or columns end to end")
    return shape, dtype


_MEND = "remove the file and pack the plan again"


def _flush_folder(folder: Path) -> None:
    """So that the new name outlives a crash, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _words(trouble: OSError) -> str:
    if trouble.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{trouble.strerror}; make room (streamserve plan store gc) or name another folder (--store)"
    if trouble.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{trouble.strerror}; name a folder that this user may write (--store)"
    return f"{trouble.strerror or trouble} ({trouble.filename})"


def as_object(data: bytes) -> AnyArray:
    """Bytes as an array, to be kept as an object."""
    return np.frombuffer(data, dtype=np.uint8)
