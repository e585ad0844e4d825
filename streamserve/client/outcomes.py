"""The outcomes of an app, read from its topic: what was decided, joined with what was really so."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from streamserve.client.failures import UnusableInput
from streamserve.client.scanning import LogRecord, Scanner
from streamserve.client.spans import Span, stretches
from streamserve.core.records import OutcomeRecord
from streamserve.errors import ContractError, TopicsDiffer
from streamserve.kafka.codecs import decode_outcome, format_ref
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name

COLUMNS = (
    "place",
    "ref",
    "id",
    "route",
    "context",
    "feedback_ms",
    "epoch",
    "state_age_ms",
    "probability",
    "off_epoch",
    "chosen",
    "served",
    "members",
    "label",
    "reward",
    "losses",
)
"""Of an exported data set; `chosen`, `served`, `members`, `label` and `losses` hold JSON."""
_ROWS_A_GROUP = 10_000


async def outcomes(
    app: str, scanner: Scanner, span: Span, unreadable: Callable[[str], object]
) -> AsyncIterator[OutcomeRecord]:
    """The app's outcomes in the order of each partition. What cannot be read is told to `unreadable`, left out.

    Raises TopicsDiffer where the app has no such topic.
    """
    topic = topic_name(app, Kind.OUTCOMES)
    count = await scanner.lookups.partition_count(topic)
    if not count:
        raise TopicsDiffer(f"app {app} has no topic {topic}; `streamserve topics create CONFIG` makes it")
    places = [At(topic, partition) for partition in range(count)]
    for stretch in await stretches(scanner, places, span):
        async for record in scanner.read(stretch.at, stretch.start, stretch.end):
            try:
                yield outcome_of(record)
            except ContractError as error:
                unreadable(str(error))


def outcome_of(record: LogRecord) -> OutcomeRecord:
    """A record of the outcomes topic. Raises ContractError."""
    return decode_outcome(record.value, partition=record.at.partition, offset=record.offset, append_ms=record.append_ms)


def as_row(outcome: OutcomeRecord) -> dict[str, Any]:
    """One row of a data set, by `COLUMNS`."""
    decision = outcome.decision
    return {
        "place": format_ref(outcome.partition, outcome.offset),
        "ref": format_ref(*outcome.ref),
        "id": decision.id,
        "route": outcome.route,
        "context": outcome.context,
        "feedback_ms": outcome.feedback_ms,
        "epoch": decision.epoch,
        "state_age_ms": decision.state_age_ms if decision.state_age_ms >= 0 else None,
        "probability": decision.probability,
        "off_epoch": decision.off_epoch,
        "chosen": _json(list(decision.chosen)),
        "served": _json(decision.label),
        "members": _json(dict(decision.members)),
        "label": _json(outcome.label) if outcome.has_label else None,
        "reward": outcome.reward,
        "losses": _json(dict(outcome.losses)),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_csv(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a header and the rows; how many."""
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count


def write_parquet(file: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write the rows; how many. Raises UnusableInput where pyarrow is not installed."""
    try:
        import pyarrow as arrow  # noqa: PLC0415  (an extra)
        from pyarrow import parquet  # noqa: PLC0415  (as above)
    except ImportError:
        raise UnusableInput(
            "--format parquet needs pyarrow: pip install 'streamserve[parquet]'; --format csv does not"
        ) from None
    whole = dict.fromkeys(("feedback_ms", "epoch", "state_age_ms"), arrow.int64())
    kinds = {**whole, **dict.fromkeys(("probability", "reward"), arrow.float64()), "off_epoch": arrow.bool_()}
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in COLUMNS])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for group in _groups(rows):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(dict(row))
        if len(group) == _ROWS_A_GROUP:
            yield group
            group = []
    if group:
        yield group
