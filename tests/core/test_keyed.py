"""Keyed contexts: which they are, how their states are packed, and which of them is in force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.bodyfield import BodyField
from streamserve.core.admission import Admission
from streamserve.core.contexts import MAX_CONTEXT_BYTES, ContextRule, is_keyed
from streamserve.core.epochs import EpochTable, home_of, outcome_partition
from streamserve.core.events import ContextsFetched, StatesFetched
from streamserve.core.keyed import Calendar, Packing, age_of, times_of
from streamserve.core.keyed_histories import KeyedHistories
from streamserve.core.messages import INITIAL_EPOCH
from streamserve.core.records import StateRecord
from streamserve.core.route_versions import RoutesRecord
from streamserve.core.routes import AppRules
from tests.core.test_contexts import DELAY_MS, MODELS, requests, route_of
from tests.core.test_contexts import state as shared_state

FORGET_MS = 60_000
RULE = ContextRule(source="key", keyed=True, pooling=0.0, forget_after_ms=FORGET_MS)
ALICE = "eu//alice"
ROUTE = route_of(RULE)


def state(
    epoch: int, append_ms: int, losses: tuple[float, float] = (5.0, 0.0), context: str = ALICE, **changed: object
) -> StateRecord:
    """Of partition 1; it has learnt its newest outcome 100 ms before it was appended."""
    record = shared_state(epoch, append_ms, losses, context)
    return replace(record, partition=1, includes={1: epoch}, learnt_ms=append_ms - 100, **changed)  # type: ignore[arg-type]


def table_of(rule: ContextRule = RULE, *, loaded: bool = True) -> EpochTable:
    table = EpochTable(AppRules(routes=(route_of(rule),), epoch_delay_ms=DELAY_MS))
    table.own([1])
    if loaded:
        table.take(ContextsFetched(partition=1, loaded=True))
    return table


def choose(
    table: EpochTable, contexts: list[str], append_ms: int, partition: int = 1
) -> tuple[list[int], list[bool], list[list[float]]]:
    n = len(contexts)
    at, times = np.full(n, partition, np.int64), np.full(n, append_ms, np.int64)
    choice = table.choose(0, at, np.arange(n, dtype=np.int64), times, contexts)
    weights = table.weights(0, choice.epoch, times, contexts, at)
    return choice.epoch.tolist(), choice.stale.tolist(), weights.tolist()


# -- which context --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "until", "context"),
    [
        (b"eu:alice", ":", "eu//alice"),
        (b"alice", ":", "//alice"),
        (b"eu:", ":", "eu"),
        (b":alice", ":", "//alice"),
        (b"a//b:alice", ":", "//a//b:alice"),
        (b"eu/fr/alice", "", "eu/fr//alice"),
        (b"alice", "", "//alice"),
        (b"a//b", "", "//a//b"),
        (b"", "", ""),
        (None, "", ""),
        (b"\xff", "", ""),
        (b"x" * MAX_CONTEXT_BYTES, "", ""),
    ],
)
def test_a_key_says_both_what_it_is_shared_with_and_itself(key: bytes | None, until: str, context: str) -> None:
    rule = replace(RULE, until=until)
    admission = Admission(AppRules(routes=(route_of(rule),)), table_of(rule))
    assert admission.admit(requests(1, key=key)).contexts == [context]
    assert is_keyed(context) == (len(rule.levels(context)) > 1 and rule.levels(context)[-1] == context != "eu")


@given(st.text(min_size=1, max_size=20), st.sampled_from(["", ":"]))
def test_different_keys_have_different_contexts(key: str, until: str) -> None:
    """What is behind `//`, with what stands before it, is the key again."""
    rule = replace(RULE, until=until)
    context = rule.of_key(key.encode("utf-8", "replace"))
    if is_keyed(context):
        shared, _, own = context.partition("//")
        assert key in (own, f"{shared}{until or '/'}{own}", f"{until or '/'}{own}")
        levels = rule.levels(context)
        assert levels[0] == "" and levels[-1] == context and not any(map(is_keyed, levels[:-1]))
        assert not rule.fault_of(shared)


def test_the_key_follows_a_context_from_a_header_or_a_field() -> None:
    rule = ContextRule(keyed=True)
    admission = Admission(AppRules(routes=(route_of(rule),)), table_of(rule))
    assert admission.admit(requests(1, key=b"a/b", headers=(("ss-context", b"eu"),))).contexts == ["eu//a/b"]
    assert admission.admit(requests(1, key=b"a/b")).contexts == ["//a/b"]
    assert admission.admit(requests(1, headers=(("ss-context", b"eu"),))).contexts == ["eu"]
    reason, words = admission.admit(requests(1, key=b"k", headers=(("ss-context", b"eu//x"),))).errors[0]
    assert "empty" in words, reason
    rule = ContextRule(source="body", read_body=BodyField("segment"), keyed=True)
    asked = replace(requests(1, key=b"bob"), values=[b'{"segment": "us"}'])
    assert Admission(AppRules(routes=(route_of(rule),)), table_of(rule)).admit(asked).contexts == ["us//bob"]


def test_levels_of_a_keyed_context_in_a_route_that_keys_no_more() -> None:
    assert ContextRule().levels("eu/fr//alice") == ("", "eu", "eu/fr")
    assert RULE.levels("eu/fr//alice") == ("", "eu", "eu/fr", "eu/fr//alice")
    assert RULE.levels("//alice") == ("", "//alice")


def test_a_keyed_state_stands_where_its_requests_do() -> None:
    assert home_of("r", ALICE, 2, 7) == 2
    assert home_of("r", "eu", 2, 7) == outcome_partition("r", "eu", 7)


# -- packed ---------------------------------------------------------------------------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.just(-0.0)
)
DATA = st.dictionaries(
    st.text(max_size=3),
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)),
    max_size=4,
)


@given(st.lists(DATA, min_size=1, max_size=5))
def test_packing_is_exact(data: list[dict[str, object]]) -> None:
    packing = Packing("r", "hedge", 1)
    records = [replace(state(i, 1_000 + i), data=each, previous=i - 1) for i, each in enumerate(data)]
    rows = [packing.pack(record) for record in records]
    for record, row in zip(records, rows, strict=True):
        found = packing.unpack(ALICE, row)
        assert found == record and repr(found.data) == repr(record.data)  # 1 is not 1.0, and not True
        assert age_of(row) == (record.included, record.epoch)
        assert times_of(row) == (record.append_ms, record.learnt_ms)


def test_records_of_one_form_are_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing("r", "hedge", 1)
    rows = [packing.pack(state(i, 1_000, (float(i), 0.5))) for i in range(100)]
    assert {len(row) for row in rows} == {42 + 8 * 4}  # v, two losses, events
    monkeypatch.setattr("streamserve.core.keyed._AS_IT_IS", 1)
    odd = replace(state(7, 1_000), data={"v": 1, "other": [1, 2.0]})
    few = Packing("r", "hedge", 1)
    assert few.unpack(ALICE, few.pack(state(1, 1_000))) == state(1, 1_000)
    assert few.unpack(ALICE, few.pack(odd)) == odd


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=30), st.integers(1, 20))
def test_a_calendar_gives_each_name_once_when_its_time_has_come(noted: list[tuple[str, int]], step_ms: int) -> None:
    calendar = Calendar(step_ms)
    due: dict[str, int] = {}
    for name, due_ms in noted:
        if name not in due:
            due[name] = due_ms
            calendar.note(name, due_ms)
    for now_ms in range(0, 50 + 2 * step_ms):
        while taken := calendar.take(now_ms, 2):
            for name in taken:
                assert due.pop(name) <= now_ms
        assert all(due_ms > now_ms - step_ms for due_ms in due.values())
    assert not due


# -- in force -------------------------------------------------------------------------------------------------------


def test_a_keyed_state_is_in_force_in_its_partition_from_its_delay_until_it_is_forgotten() -> None:
    table = table_of()
    table.apply([shared_state(3, 500, (0.0, 5.0)), state(4, 1_000)])
    for append_ms, partition, epoch in (
        (1_249, 1, INITIAL_EPOCH),
        (1_250, 1, 4),
        (900 + FORGET_MS, 1, 4),
        (901 + FORGET_MS, 1, INITIAL_EPOCH),
        (1_250, 0, INITIAL_EPOCH),
    ):
        epochs, _, weights = choose(table, [ALICE, "eu", ""], append_ms, partition)
        assert epochs == [epoch, INITIAL_EPOCH, 3]
        assert (weights[0] == weights[2]) == (epoch == INITIAL_EPOCH) and weights[1] == weights[2]
    # What has come anew is in force again.
    table.apply([state(9, 2_000 + FORGET_MS, previous=-1)])
    assert choose(table, [ALICE], 2_250 + FORGET_MS)[0] == [9]


def test_until_all_of_a_partition_is_read_a_choice_is_stale() -> None:
    table = table_of(loaded=False)
    table.known_until(10_000)
    table.apply([state(4, 1_000)])
    assert choose(table, [ALICE, ""], 2_000)[1] == [True, False]
    assert choose(table, [ALICE], 2_000)[0] == [4]
    table.take(ContextsFetched(partition=1, loaded=True))
    assert choose(table, [ALICE], 2_000)[1] == [False]
    assert choose(table, [ALICE], 10_251)[1] == [True]
    assert choose(table, [ALICE], 2_000, partition=2)[1] == [True]


def test_a_partition_that_is_lost_takes_its_states_with_it() -> None:
    table = table_of()
    table.known_until(10_000)
    table.apply([state(4, 1_000)])
    assert choose(table, [ALICE], 2_000)[0] == [4]
    table.disown([1])
    assert choose(table, [ALICE], 2_000)[:2] == ([INITIAL_EPOCH], [True])
    table.apply([state(5, 1_500)])  # another's by now
    table.own([1])
    assert choose(table, [ALICE], 2_000)[:2] == ([INITIAL_EPOCH], [True])


def test_two_partitions_have_each_their_own_state_of_a_context() -> None:
    table = table_of()
    table.own([0])
    table.apply([state(4, 1_000), replace(state(7, 1_000, (0.0, 5.0)), partition=0, includes={0: 7})])
    at = np.array([0, 1, 0], np.int64)
    times = np.full(3, 2_000, np.int64)
    choice = table.choose(0, at, np.arange(3, dtype=np.int64), times, [ALICE] * 3)
    assert choice.epoch.tolist() == [7, 4, 7]
    weights = table.weights(0, choice.epoch, times, [ALICE] * 3, at)
    assert weights[0].tolist() == weights[2].tolist() != weights[1].tolist()
    assert table.ages_ms(0, choice.epoch, times, [ALICE] * 3, at).tolist() == [1_000] * 3


def test_without_keyed_a_keyed_record_changes_nothing() -> None:
    rule = ContextRule(source="key")
    table = table_of(rule)
    table.apply([state(4, 1_000)])
    assert choose(table, [ALICE], 2_000)[:1] == ([INITIAL_EPOCH],)


RECORDS = st.lists(
    st.tuples(st.sampled_from([ALICE, "//bob"]), st.integers(0, 40), st.booleans()), min_size=1, max_size=25
)


@given(RECORDS, st.randoms(use_true_random=False), st.lists(st.integers(0, 5_000), min_size=1, max_size=10))
def test_packed_histories_decide_as_those_of_shared_states(
    steps: list[tuple[str, int, bool]], shuffled: object, asked: list[int]
) -> None:
    """The same records, in whatever order and however often, one of them late: the same state is in force."""
    records = []
    for number, (context, gap_ms, late) in enumerate(steps):
        record = state(number, 1_000 + 100 * number + gap_ms, (float(number), 1.0), context)
        records.append(replace(record, includes={1: number // 2 if late else number}))
    packed = table_of()
    unordered = [*records, *records[:5]]
    shuffled.shuffle(unordered)  # type: ignore[attr-defined]
    packed.apply(unordered)
    plain = EpochTable(AppRules(routes=(route_of(ContextRule(pooling=0.0)),), epoch_delay_ms=DELAY_MS))
    names = {ALICE: "alice", "//bob": "bob"}
    plain.apply([replace(record, context=names[record.context], learnt_ms=-1) for record in records])
    for append_ms in asked:
        epochs, _, weights = choose(packed, list(names), append_ms)
        assert (epochs, weights) == choose(plain, list(names.values()), append_ms)[::2]


def test_replaced_and_forgotten_states_leave_the_memory() -> None:
    keep_ms = 10_000
    histories = KeyedHistories(ROUTE, 1, DELAY_MS, keep_ms)
    for number in range(50):
        histories.add(state(2 * number, 1_000 + number, context=f"//{number}"))
        histories.add(state(2 * number + 1, 2_000 + number, context=f"//{number}", previous=2 * number))
    found = histories.history("//7", ROUTE)
    assert found is not None and len(found) == 2
    histories.known_until(2_049 + keep_ms)
    found = histories.history("//7", ROUTE)
    assert found is not None and len(found) == 1 and found.known_from_ms == 2_007 + DELAY_MS
    assert len(histories) == 50
    histories.known_until(5_000 + FORGET_MS + keep_ms)
    assert len(histories) == 0 and histories.history("//7", ROUTE) is None


def test_models_in_packed_states_are_those_of_the_record() -> None:
    histories = KeyedHistories(ROUTE, 1, DELAY_MS, 0)
    histories.add(replace(state(1, 1_000), data={"v": 1, "losses": {MODELS[1]: 3.0}, "events": 4}))
    found = histories.history(ALICE, ROUTE)
    assert found is not None and found.at_epoch(1).value.losses == (3.0, 3.0)


@given(order=st.permutations(list(range(7))), asked=st.lists(st.integers(0, 20_000), min_size=1, max_size=6))
def test_each_version_of_a_route_reads_the_same_states_by_its_own_models(order: list[int], asked: list[int]) -> None:
    """Whatever comes first, the change of the route or its states; as one that was started when all was there."""
    old, new = (
        replace(ROUTE, models=models, fingerprint=str(models)) for models in (MODELS, (MODELS[1], "other@1", MODELS[0]))
    )
    written_ms = 9_000
    rules = AppRules(routes=(old,), epoch_delay_ms=DELAY_MS)
    in_force_ms = written_ms + rules.routes_delay_ms
    change = StatesFetched(
        states=(),
        routes=(
            RoutesRecord(number=1, routes=(old,), append_ms=0, offset=0),
            RoutesRecord(number=2, routes=(new,), append_ms=written_ms, offset=1),
        ),
    )
    losses = [(0.0, 4.0), (3.0, 0.0), (1.0, 2.0)]
    states = [
        state(2 * step + n, 1_000 + 6_000 * step, of, context, previous=2 * step + n - 2 if step else -1)
        for step, of in enumerate(losses)
        for n, context in enumerate((ALICE, "//bob"))
    ]
    live, fresh = EpochTable(rules), EpochTable(rules)
    live.own([1])
    fresh.take(change)
    fresh.own([1])
    for table, events in ((live, [states[n] if n < 6 else None for n in order]), (fresh, states)):
        for one in events:
            table.take(change if one is None else ContextsFetched(partition=1, states=(one,)))
        table.take(ContextsFetched(partition=1, loaded=True))
    for append_ms in asked:
        found = []
        for table in (live, fresh):
            index = table.routes.at(append_ms).names["r"]
            models = table.routes[index].models
            assert models == (new if append_ms >= in_force_ms else old).models
            at, times = np.full(2, 1, np.int64), np.full(2, append_ms, np.int64)
            choice = table.choose(index, at, np.arange(2, dtype=np.int64), times, [ALICE, "//bob"])
            weights = table.weights(index, choice.epoch, times, [ALICE, "//bob"], at)
            found.append((choice.epoch.tolist(), choice.stale.tolist(), choice.chosen.tolist(), weights.tolist()))
            newest = [step for step in range(3) if 1_000 + 6_000 * step + DELAY_MS <= append_ms]
            if newest:  # the better of the two that all know is believed more, under every version
                better, worse = MODELS if losses[newest[-1]][0] < losses[newest[-1]][1] else MODELS[::-1]
                by_model = dict(zip(models, weights[0], strict=True))
                assert by_model[better] > by_model[worse]
                assert choice.epoch.tolist() == [2 * newest[-1], 2 * newest[-1] + 1]
        assert found[0] == found[1]
