"""The outcomes topic read and exported; in memory."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from streamserve.client import UnusableInput
from streamserve.client.outcomes import COLUMNS, as_row, outcomes, write_csv, write_parquet
from streamserve.client.scanning import scanning
from streamserve.client.spans import Span, span_of
from streamserve.core.records import OutcomeRecord
from streamserve.errors import TopicsDiffer
from streamserve.kafka.codecs import encode_outcome
from streamserve.kafka.ports import At, Columns, Record
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.testing.policy_checks import outcome_of
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, MemoryApp

TOPIC = topic_name(APP, Kind.OUTCOMES)


def outcome(offset: int, **more: object) -> OutcomeRecord:
    made = outcome_of({"a@1": 0.25}, chosen=("a@1",), probability=0.5, offset=offset)
    return replace(made, feedback=(0, offset), **more)  # type: ignore[arg-type]


class Logged:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=self.clock.epoch)

    def write(self, partition: int, value: bytes) -> None:
        self.clock.advance(1_000)
        self.log.append(At(TOPIC, partition), Columns.of([Record(value=value)]))

    async def read(self, span: Span = Span()) -> tuple[list[OutcomeRecord], list[str]]:  # noqa: B008  (frozen)
        unreadable: list[str] = []
        async with scanning(MemoryApp(self.log)) as scanner:
            return [one async for one in outcomes(APP, scanner, span, unreadable.append)], unreadable


@pytest.fixture
def logged() -> Logged:
    """Offsets 0 to 3 in partition 1, one in partition 2, a second apart."""
    found = Logged()
    for offset in range(4):
        found.write(1, encode_outcome(outcome(offset)))
    found.write(2, encode_outcome(outcome(9, route="other")))
    return found


async def test_all_are_read_with_their_places(logged: Logged) -> None:
    found, unreadable = await logged.read()
    assert [(one.partition, one.offset) for one in found] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert found[1].losses == {"a@1": 0.25}
    assert not unreadable


async def test_a_span_of_offsets_and_of_times(logged: Logged) -> None:
    by_offset, _ = await logged.read(span_of("1", "3", 0))
    assert [(one.partition, one.offset) for one in by_offset] == [(1, 1), (1, 2)]
    now_ms = int(logged.clock.epoch() * 1000)
    by_time, _ = await logged.read(span_of("3s", "1s", now_ms))
    assert [(one.partition, one.offset) for one in by_time] == [(1, 1), (1, 2)]
    assert (await logged.read(span_of("0", "0", now_ms)))[0] == []


async def test_what_cannot_be_read_is_told_and_the_rest_is_read(logged: Logged) -> None:
    logged.write(1, b"{}")
    logged.write(1, b'{"v":99}')
    logged.write(1, encode_outcome(outcome(5)))
    found, unreadable = await logged.read()
    assert len(found) == 6
    assert len(unreadable) == 2
    assert "1-4" in unreadable[0]


async def test_an_app_without_the_topic_is_told() -> None:
    async with scanning(MemoryApp(MemoryLog({"other": 1}))) as scanner:
        with pytest.raises(TopicsDiffer, match="has no topic"):
            [one async for one in outcomes(APP, scanner, Span(), [].append)]


def test_a_time_that_is_none_is_told() -> None:
    with pytest.raises(UnusableInput, match="is no time"):
        span_of("soon", None, 0)


ROWS = [
    as_row(outcome(0, has_label=True, label={"é": [1, "x,\n"]}, partition=1)),
    as_row(outcome(1, has_label=False, reward=0.75, partition=1)),
    as_row(outcome(2, has_label=True, label=None, partition=1)),
]


def test_a_row_tells_how_old_the_state_was_that_chose() -> None:
    made = outcome(0)
    aged = replace(made, decision=replace(made.decision, state_age_ms=740))
    assert (as_row(made)["state_age_ms"], as_row(aged)["state_age_ms"]) == (None, 740)


def test_csv_holds_what_an_outcome_says() -> None:
    file = io.StringIO()
    assert write_csv(file, ROWS) == 3
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert tuple(rows[0]) == COLUMNS
    assert json.loads(rows[0]["label"]) == {"é": [1, "x,\n"]}
    assert [row["label"] for row in rows[1:]] == ["", "null"]  # no label, and a label that is null
    assert (rows[1]["reward"], rows[0]["reward"]) == ("0.75", "")
    assert json.loads(rows[0]["losses"]) == {"a@1": 0.25}


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "outcomes.parquet"
    assert write_parquet(file, iter(ROWS * 5_000)) == 15_000
    table = parquet.read_table(file)
    assert table.num_rows == 15_000
    assert table.to_pylist()[:3] == ROWS


def test_parquet_without_its_extra_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UnusableInput, match=r"streamserve\[parquet\]"):
        write_parquet(tmp_path / "x", ROWS)
