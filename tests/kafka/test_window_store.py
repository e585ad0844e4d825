"""What every store of the join's window promises, on each of them; then what only the one on disk does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.effects import EmitDeadLetters, EmitOutcomes
from streamserve.core.events import Revoked
from streamserve.core.records import PredictionRecord
from streamserve.core.stages import join_window
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.join_window import MemoryPredictions
from streamserve.errors import ConfigError
from streamserve.kafka import window_store
from streamserve.kafka.composition import app_of, join_role
from streamserve.kafka.intake import late_answers
from streamserve.kafka.window_store import RocksWindow, window_folder
from streamserve.settings import Settings, parse_settings
from tests.core.stages.learning_case import (
    NOW_MS,
    PARTITIONS,
    ack,
    assigned,
    counts,
    decode,
    feedback,
    fetched,
    only,
    prediction,
    predictions,
    rules_of,
)
from tests.effort import examples

AMPLE_BYTES = 1 << 30
MakeStore = Callable[[int], Any]  # a `PredictionStore` with a length
Opened = Callable[[], AbstractContextManager[MakeStore]]
Cost = Callable[[PredictionRecord], int]


@contextmanager
def memory() -> Iterator[MakeStore]:
    yield MemoryPredictions


@contextmanager
def rocksdb() -> Iterator[MakeStore]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stores:
        yield lambda max_bytes: stores.enter_context(RocksWindow(Path(folder), max_bytes)(0))


def cost_in_memory(record: PredictionRecord) -> int:
    return len(record.raw) + len(record.id or "") + join_window.OVERHEAD_BYTES


def cost_on_disk(record: PredictionRecord) -> int:
    return len(record.raw) + 3 * len((record.id or "").encode()) + window_store.OVERHEAD_BYTES


EACH = pytest.mark.parametrize(("opened", "cost"), [(memory, cost_in_memory), (rocksdb, cost_on_disk)])


def record(offset: int, append_ms: int = 0, id_: str | None = None, raw: bytes = b"raw") -> PredictionRecord:
    return PredictionRecord(request_offset=offset, append_ms=append_ms, id=id_, raw=raw)


# -- the contract ------------------------------------------------------------------------------------------------

OFFSETS = st.one_of(st.integers(0, 12), st.sampled_from([255, 256, 1 << 32, (1 << 63) - 1]))
IDS = st.sampled_from([None, "", "a", "b", "0-3", "ü", "r", "i\0"])
RECORDS = st.builds(record, OFFSETS, st.integers(-2, 20), IDS, st.binary(max_size=40))
STEPS = st.lists(st.one_of(RECORDS, RECORDS, RECORDS, st.integers(0, 22)), max_size=40)


class Model:
    """The promises, word for word, on a dict in order of arrival."""

    def __init__(self, max_bytes: int, cost: Cost) -> None:
        self.max_bytes, self.cost = max_bytes, cost
        self.records: dict[int, PredictionRecord] = {}
        self.forgotten_below = 0

    def put(self, new: PredictionRecord) -> None:
        self.records.setdefault(new.request_offset, new)

    def by_id(self, id_: str) -> PredictionRecord | None:
        return next((found for found in reversed(self.records.values()) if found.id == id_), None)

    def expire(self, before_ms: int) -> None:
        for offset, oldest in list(self.records.items()):
            too_much = sum(map(self.cost, self.records.values())) > self.max_bytes
            if oldest.append_ms >= before_ms and not too_much:
                return
            del self.records[offset]
            self.forgotten_below = max(self.forgotten_below, offset + 1)


@EACH
@settings(max_examples=examples(120))
@given(steps=STEPS, max_bytes=st.sampled_from([0, 300, 1_500, AMPLE_BYTES]))
def test_a_store_does_as_its_model(opened: Opened, cost: Cost, steps: list[object], max_bytes: int) -> None:
    with opened() as make:
        store, model = make(max_bytes), Model(max_bytes, cost)
        offsets, ids = set(range(13)), {"", "a", "b", "0-3", "ü", "r", "i\0", "absent"}
        for step in steps:
            if isinstance(step, PredictionRecord):
                store.put(step)
                model.put(step)
                offsets.add(step.request_offset)
            else:
                assert isinstance(step, int)
                store.expire(step)
                model.expire(step)
            assert store.forgotten_below == model.forgotten_below
            assert {o: store.by_offset(o) for o in offsets} == {o: model.records.get(o) for o in offsets}
            assert {i: store.by_id(i) for i in ids} == {i: model.by_id(i) for i in ids}
            assert len(store) == len(model.records)


@EACH
@pytest.mark.parametrize("order", ["as the log", "interleaved"])
def test_many_are_forgotten_and_the_rest_stay(opened: Opened, cost: Cost, order: str) -> None:
    n, kept = 10_000, 700
    offsets = list(range(n)) if order == "as the log" else [(i * 7) % n for i in range(n)]
    with opened() as make:
        store = make(AMPLE_BYTES)
        for place, offset in enumerate(offsets):
            store.put(record(offset, append_ms=place, id_=str(offset)))
        store.expire(n - kept)
        assert [o for o in offsets if store.by_offset(o) is not None] == offsets[-kept:]
        assert [o for o in offsets if store.by_id(str(o)) is not None] == offsets[-kept:]
        assert store.forgotten_below == max(offsets[:-kept]) + 1
        store.expire(n)
        assert len(store) == 0
        store.put(record(3, append_ms=n))  # it may come again, and is remembered again
        assert store.by_offset(3) == record(3, append_ms=n)


# -- on disk -----------------------------------------------------------------------------------------------------


def stores_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("process-*/*") if path.is_dir())


def joined_on_disk(folder: Path) -> JoinStage:
    options = JoinOptions(partitions=PARTITIONS, window_ms=1_000, wait_ms=40)
    return JoinStage(rules_of(), options, decode, late_answers, RocksWindow(folder, AMPLE_BYTES))


def test_the_join_works_on_it_and_its_files_go_with_the_partition(tmp_path: Path) -> None:
    stage = joined_on_disk(tmp_path)
    stage.handle(assigned(0, 1), NOW_MS)
    assert stores_in(tmp_path) == ["0-1", "1-2"]
    stage.handle(predictions(0, prediction(7), prediction(8, id_="x"), prediction(9, NOW_MS + 1_500)), NOW_MS)
    effects = stage.handle(fetched(feedback(0, ref=(0, 7), label=1), feedback(1, id="x", label=2)), NOW_MS)
    sent = only(effects, EmitOutcomes)
    assert [(outcome.ref, outcome.losses) for outcome in sent.outcomes] == [
        ((0, 7), {"a@1": 0.0, "b@1": 1.0}),
        ((0, 8), {"a@1": 1.0, "b@1": 0.0}),
    ]
    stage.handle(ack(sent), NOW_MS)
    # The newest feedback moves the window: 7 and 8 leave it, and what comes for them is late.
    stage.handle(fetched(feedback(2, ref=(0, 9), append_ms=NOW_MS + 1_500)), NOW_MS)
    stage.handle(fetched(feedback(3, ref=(0, 7), append_ms=NOW_MS + 1_501)), NOW_MS)
    effects = stage.handle(predictions(0, prediction(10, NOW_MS + 2_000), next_offset=4), NOW_MS + 50)
    assert only(effects, EmitDeadLetters).letters.reasons == ["late"]
    assert counts(effects) == {"late": 1}
    stage.handle(Revoked(partitions=(0,)), NOW_MS)
    assert stores_in(tmp_path) == ["1-2"]
    stage.handle(assigned(0, 1), NOW_MS)  # 1 again: its old store goes when the new one is there
    assert stores_in(tmp_path) == ["0-3", "1-4"]
    assert stage.handle(fetched(feedback(4, ref=(0, 10))), NOW_MS) == []  # empty until the log is read again
    del stage
    assert list(tmp_path.glob("process-*")) == []


def test_a_closed_store_is_gone_and_closing_twice_is_nothing(tmp_path: Path) -> None:
    window = RocksWindow(tmp_path, AMPLE_BYTES)
    with window(0) as store:
        store.put(record(1))
    store.close()
    assert stores_in(tmp_path) == []


OTHER_PROCESS = """
import os, sys
from pathlib import Path
from streamserve.kafka.window_store import RocksWindow
window = RocksWindow(Path(sys.argv[1]), 1000)
store = window(5)
print("open", flush=True)
sys.stdin.readline()
if sys.argv[2] == "killed":
    os._exit(9)
"""


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_what_a_process_leaves_is_removed_by_it_or_by_the_next_one_but_not_while_it_lives(
    tmp_path: Path, end: str
) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "open\n"
        window = RocksWindow(tmp_path, AMPLE_BYTES)
        assert stores_in(tmp_path) == ["5-1"]
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(10) == (9 if end == "killed" else 0)
    assert stores_in(tmp_path) == (["5-1"] if end == "killed" else [])
    another = RocksWindow(tmp_path, AMPLE_BYTES)
    assert stores_in(tmp_path) == []
    assert len(list(tmp_path.glob("process-*"))) == 2
    del window, another


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r'needs the package rocksdict.*pip install "streamserve\[learn\]"'):
        RocksWindow(tmp_path, AMPLE_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be kept in .*file/window .*state_dir"):
        RocksWindow(tmp_path / "file" / "window", AMPLE_BYTES)


# -- the setting -------------------------------------------------------------------------------------------------


def settings_with(state_dir: Path | None, learn: str = "") -> Settings:
    place = "" if state_dir is None else f'app.state_dir = "{state_dir}"\n'
    return parse_settings(
        f'app.name = "a"\n{place}{learn}pools.p.models = ["m"]\nmodels.m.source = "m:f"\nroutes.r.models = ["m"]', "x"
    )


class NoConnections:
    """A role is made without them."""

    group = reader = lookups = writer = None


def join_of(settings: Settings) -> JoinStage:
    stage = join_role(app_of(settings, NoConnections(), epochs_retention_ms=1_000)).stage
    assert isinstance(stage, JoinStage)
    return stage


def test_the_window_is_in_memory_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    join_of(settings_with(tmp_path)).handle(assigned(0), NOW_MS)
    assert list(tmp_path.iterdir()) == []
    stage = join_of(settings_with(tmp_path, 'learn.window_store = "rocksdb"\n'))
    stage.handle(assigned(3), NOW_MS)
    assert stores_in(tmp_path / "window") == ["3-1"]


def test_it_lies_in_the_state_folder_of_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path))
    assert window_folder(settings_with(None)) == tmp_path / "a" / "window"
    assert window_folder(settings_with(tmp_path / "mine")) == tmp_path / "mine" / "window"
