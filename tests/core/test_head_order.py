"""The order in which labelled rows teach a head: one, whatever the fetches, publications and restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.head_order import HeadOrder, Publication, ReadTo, label_of_row, newest
from streamserve.core.records import Decision, OutcomeRecord

SKEW_MS = 20
DECISION = Decision(
    id="",
    route="r",
    outcome="ok",
    epoch=-1,
    probability=1.0,
    off_epoch=False,
    chosen=(),
    label=None,
    members={},
    rows=1,
)


def outcome(partition: int, offset: int, append_ms: int, feedback: int | None = None) -> OutcomeRecord:
    return OutcomeRecord(
        to_partition=partition,
        route="r",
        context="",
        ref=(partition, offset),
        decision=DECISION,
        feedback=(partition, offset if feedback is None else feedback),
        feedback_ms=append_ms,
        label=1,
        has_label=True,
        partition=partition,
        offset=offset,
        append_ms=append_ms,
    )


@dataclass(frozen=True)
class Log:
    """What stands in each partition, and when it really came there."""

    partitions: list[list[tuple[int, OutcomeRecord]]]

    def end(self, partition: int, at_ms: int) -> int:
        return sum(came_ms <= at_ms for came_ms, _ in self.partitions[partition])

    def records(self, partition: int, start: int, end: int) -> list[OutcomeRecord]:
        return [record for _, record in self.partitions[partition][start:end]]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Clocks of partitions are up to `SKEW_MS` apart, and may step within that."""
    partitions: list[list[tuple[int, OutcomeRecord]]] = []
    for number in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, SKEW_MS), st.integers(0, 8)), max_size=12))
        at_ms, found = 1_000, []
        for offset, (step_ms, ahead_ms, feedback) in enumerate(steps):
            at_ms += step_ms
            found.append((at_ms, outcome(number, offset, at_ms + ahead_ms - SKEW_MS // 2, feedback)))
        partitions.append(found)
    return Log(partitions)


def in_order(log: Log, remembered: int) -> list[tuple[int, int]]:
    """What the order is, by its words: of the whole log, at once."""
    keyed = []
    for number, records in enumerate(log.partitions):
        newest_ms, last_at = 0, dict[tuple[int, int], int]()
        for _, record in records:
            newest_ms = max(newest_ms, record.append_ms)
            before = last_at.get(record.feedback)
            last_at[record.feedback] = record.offset
            if before is None or record.offset - before >= remembered:
                keyed.append((newest_ms, number, record.offset))
    return [(number, offset) for _, number, offset in sorted(keyed)]


#: How long until it looks, how long each partition's read takes, how many it takes, what happens then.
TURNS = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 5), st.integers(1, 5), st.sampled_from(["nothing", "published", "killed"])
    ),
    max_size=15,
)
AT_THE_END = [(100, 0, 1_000, "nothing")] * 12


@settings(max_examples=200)
@given(log=logs(), turns=TURNS, remembered=st.sampled_from([1, 2, 4, 100]))
def test_the_order_is_one_whatever_the_reads_and_restarts(
    log: Log, turns: list[tuple[int, int, int, str]], remembered: int
) -> None:
    def started(read: Mapping[int, ReadTo]) -> HeadOrder:
        return HeadOrder(len(log.partitions), read, skew_ms=SKEW_MS, remembered=remembered)

    order, at_ms = started({}), 1_000
    kept: tuple[dict[int, ReadTo], int] = {}, 0
    found: list[tuple[int, int]] = []
    for wait_ms, takes_ms, most, then in [*turns, *AT_THE_END]:
        at_ms += wait_ms
        asked_ms, ends = at_ms, [log.end(number, at_ms) for number in range(len(log.partitions))]
        for number, end in enumerate(ends):
            at_ms += takes_ms
            start = order.next_offset[number]
            if number in order.to_read(dict(enumerate(ends)), most_waiting=most):
                to = max(start, min(end, start + 2 * most))
                order.take(number, log.records(number, start, to), to, at_ms)
        ripe = order.ripe(asked_ms, dict(enumerate(ends)), most)
        found += [(record.partition, record.offset) for record in ripe]
        if then == "published":
            kept = dict(order.read), len(found)
        elif then == "killed":  # what was not published is done again
            order, found = started(kept[0]), found[: kept[1]]
    assert found == in_order(log, remembered)
    assert not len(order)


def test_nothing_is_let_out_before_others_can_not_come_before_it() -> None:
    order = HeadOrder(2, skew_ms=SKEW_MS)
    order.take(0, [outcome(0, 0, 1_000)], 1, read_at_ms=1_000)
    assert not order.ripe(1_000 + SKEW_MS, {0: 1, 1: 0}, 10)
    order.take(1, [outcome(1, 0, 995)], 1, read_at_ms=1_015)
    assert not order.ripe(1_000 + SKEW_MS + 1, {0: 1, 1: 1}, 10)
    assert not order.ripe(2_000, {0: 1, 1: 2}, 10)
    assert [record.partition for record in order.ripe(2_000, {0: 1, 1: 1}, 10)] == [1, 0]
    assert order.read == {0: ReadTo(offset=1, ms=1_000), 1: ReadTo(offset=1, ms=995)}


def test_above_the_bound_only_what_the_rest_waits_for_is_read() -> None:
    order, ends = HeadOrder(3, skew_ms=SKEW_MS), {0: 9, 1: 9, 2: 1}
    assert order.to_read(ends, most_waiting=3) == [0, 1, 2]
    for partition, append_ms in ((0, 1_005), (1, 1_000), (2, 900)):
        order.take(partition, [outcome(partition, 0, append_ms)], 1, read_at_ms=1_010)
    assert order.to_read(ends, most_waiting=4) == [0, 1]
    assert order.to_read(ends, most_waiting=3) == [1]
    assert [record.partition for record in order.ripe(5_000, ends, 10)] == [2]


def publication(reach: int, rows: int = 0) -> Publication:
    read = {0: ReadTo(offset=reach)}
    return Publication(model="m@1", base="b", rate=0.5, rows=rows, read=read, plan=f"{rows}", store="here")


@given(st.lists(st.integers(0, 9), min_size=1))
def test_the_furthest_publication_counts_and_of_equals_the_first(reaches: list[int]) -> None:
    all_of_them = [publication(reach, rows) for rows, reach in enumerate(reaches)]
    found = newest(all_of_them)["m@1"]
    assert found.reach == max(reaches)
    assert found.rows == reaches.index(max(reaches))


def test_labels_of_rows() -> None:
    one = outcome(0, 0, 0)
    assert label_of_row(one, 0, 1) == 1
    assert label_of_row(one, 0, 2) is None
    assert [label_of_row(replace(one, label=["a", "b"]), row, 2) for row in range(2)] == ["a", "b"]
    assert label_of_row(replace(one, label=["a", "b"]), 0, 3) is None
    assert label_of_row(replace(one, has_label=False, reward=1.0), 0, 1) is None
