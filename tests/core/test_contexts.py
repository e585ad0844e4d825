"""Contexts: which state a request is decided by, which its feedback teaches, and what a level learns from above."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.bodyfield import BodyField
from streamserve.core.admission import Admission
from streamserve.core.contexts import MAX_CONTEXT_BYTES, ContextRule, features_of
from streamserve.core.epochs import EpochTable
from streamserve.core.messages import INITIAL_EPOCH, Headers, Requests
from streamserve.core.reasons import Reason
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.pooling import pooled
from streamserve.core.selection.sums import LossSums

MODELS = ("a@1", "b@1")
DELAY_MS = 250
PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=5)


def route_of(rule: ContextRule | None) -> Route:
    return Route(name="r", models=MODELS, policy=Hedge(), combine="vote", deadline_ms=100, learns=True, contexts=rule)


def table_of(rule: ContextRule | None) -> EpochTable:
    return EpochTable(AppRules(routes=(route_of(rule),), epoch_delay_ms=DELAY_MS))


def state(epoch: int, append_ms: int, losses: tuple[float, float], context: str = "", events: int = 50) -> StateRecord:
    return StateRecord(
        route="r",
        context=context,
        policy="hedge",
        data={"v": 1, "losses": dict(zip(MODELS, losses, strict=True)), "events": events},
        includes={0: epoch},
        partition=0,
        epoch=epoch,
        append_ms=append_ms,
    )


def requests(n: int, append_ms: int = 10_000, key: bytes | None = None, headers: Headers = ()) -> Requests:
    return Requests(
        partition=np.zeros(n, np.int64),
        offsets=np.arange(n, dtype=np.int64),
        append_ms=np.full(n, append_ms, np.int64),
        keys=[key] * n,
        values=[b"{}"] * n,
        headers=[headers] * n,
    )


# -- which context --------------------------------------------------------------------------------------------------


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_levels_go_from_all_to_the_context_itself(parts: list[str]) -> None:
    context = "/".join(parts)
    levels = ContextRule().levels(context)
    assert levels[0] == "" and levels[-1] == context and len(levels) == len(parts) + 1
    for above, below in pairwise(levels[1:]):
        assert below.startswith(above + "/")


def test_a_header_names_the_context_and_a_bad_one_is_refused_in_words() -> None:
    admission = Admission(AppRules(routes=(route_of(ContextRule()),)), table_of(ContextRule()))
    named = admission.admit(requests(2, headers=(("ss-context", b"eu/alice"),)))
    assert named.contexts == ["eu/alice"] * 2 and not named.errors
    for bad, words in ((b"eu//x", "empty"), (b"x" * (MAX_CONTEXT_BYTES + 1), "200 bytes"), (b"a/b/c/d/e", "4 levels")):
        reason, told = admission.admit(requests(1, headers=(("ss-context", bad),))).errors[0]
        assert reason is Reason.BAD_HEADER and words in told
    assert Admission(AppRules(routes=(route_of(None),)), table_of(None)).admit(
        requests(1, headers=(("ss-context", b"eu//x"),))
    ).contexts == [""]


@pytest.mark.parametrize(
    ("key", "until", "context"),
    [
        (b"eu:17", ":", "eu"),
        (b"eu", ":", ""),
        (b"eu", "", "eu"),
        (None, "", ""),
        (b"\xff", "", ""),
        (b"a//b", "", ""),
        (b":17", ":", ""),
    ],
)
def test_a_key_names_the_context_by_its_beginning(key: bytes | None, until: str, context: str) -> None:
    rule = ContextRule(source="key", until=until)
    admission = Admission(AppRules(routes=(route_of(rule),)), table_of(rule))
    assert admission.admit(requests(1, key=key)).contexts == [context]


@pytest.mark.parametrize(
    ("body", "context"),
    [
        (b'{"parameters": {"segment": "eu"}, "inputs": [1, 2]}', "eu"),
        (b'{"parameters": {"segment": 7}}', "7"),
        (b'{"parameters": {"segment": true}}', "true"),
        (b'{"parameters": {"segment": ["eu"]}}', ""),
        (b'{"parameters": {}}', ""),
        (b'{"parameters": 3}', ""),
        (b"[1]", ""),
        (b"no json", ""),
        (b"", ""),
        (None, ""),
    ],
)
def test_a_field_of_the_body_names_the_context(body: bytes | None, context: str) -> None:
    assert ContextRule(source="body", read_body=BodyField("parameters.segment")).of_body(body) == context


@pytest.mark.parametrize(
    ("text", "size", "vector"),
    [
        ("1,-2.5e1", 2, (1.0, -25.0)),
        ("", 2, (0.0, 0.0)),
        ("1", 2, None),
        ("1,nan", 2, None),
        ("1,inf", 2, None),
        ("1,x", 2, None),
    ],
)
def test_features_are_finite_numbers_between_commas(text: str, size: int, vector: tuple[float, ...] | None) -> None:
    assert features_of(text, size) == vector


# -- which state ----------------------------------------------------------------------------------------------------


def choose(table: EpochTable, contexts: list[str], append_ms: int) -> tuple[list[int], list[list[float]]]:
    n = len(contexts)
    columns = np.zeros(n, np.int64), np.arange(n, dtype=np.int64), np.full(n, append_ms, np.int64)
    choice = table.choose(0, *columns, contexts)
    weights = table.weights(0, choice.epoch, columns[2], contexts)
    return choice.epoch.tolist(), weights.tolist()


def test_each_context_has_its_own_state_and_one_without_goes_by_the_level_above() -> None:
    table = table_of(ContextRule(pooling=0.0))
    table.apply([state(3, 1_000, (5.0, 0.0)), state(4, 1_000, (0.0, 5.0), "eu"), state(9, 2_000, (9.0, 0.0), "us")])
    alone = [
        Hedge().distribution(Hedge().load(each.data, MODELS), MODELS).weights.tolist()
        for each in (state(3, 0, (5.0, 0.0)), state(4, 0, (0.0, 5.0)), state(9, 0, (9.0, 0.0)))
    ]
    epochs, weights = choose(table, ["", "eu", "us", "cn", "eu/alice"], 2_300)
    assert epochs == [3, 4, 9, INITIAL_EPOCH, INITIAL_EPOCH]
    assert weights == [alone[0], alone[1], alone[2], alone[0], alone[1]]
    # Before a state holds, its context goes by the level above.
    epochs, weights = choose(table, ["us", "eu"], 2_249)
    assert epochs == [INITIAL_EPOCH, 4] and weights == [alone[0], alone[1]]
    assert choose(table, ["eu"], 1_249) == ([INITIAL_EPOCH], [[0.5, 0.5]])


@given(st.lists(st.tuples(st.sampled_from(["", "eu", "eu/x", "us"]), st.integers(0, 3_000)), min_size=1, max_size=20))
def test_a_fetch_is_decided_as_each_of_its_requests_alone(asked: list[tuple[str, int]]) -> None:
    table = table_of(ContextRule())
    table.apply([state(1, 500, (3.0, 0.0)), state(2, 900, (0.0, 4.0), "eu"), state(5, 1_500, (0.0, 9.0))])
    table.apply([state(7, 2_000, (8.0, 0.0), "eu/x"), state(8, 2_100, (0.0, 4.5), "eu")])
    table.known_until(2_600)
    contexts = [context for context, _ in asked]
    append_ms = np.array([ms for _, ms in asked], np.int64)
    offsets = np.arange(len(asked), dtype=np.int64)
    together = table.choose(0, np.zeros_like(offsets), offsets, append_ms, contexts)
    weights = table.weights(0, together.epoch, append_ms, contexts)
    for row, context in enumerate(contexts):
        at = slice(row, row + 1)
        alone = table.choose(0, np.zeros(1, np.int64), offsets[at], append_ms[at], [context])
        for name in ("chosen", "probability", "epoch", "stale"):
            assert getattr(alone, name)[0] == getattr(together, name)[row]
        assert table.weights(0, alone.epoch, append_ms[at], [context])[0].tolist() == weights[row].tolist()


# -- drawn towards the level above ----------------------------------------------------------------------------------


def sums(losses: tuple[float, float], events: int) -> LossSums:
    return LossSums(models=MODELS, losses=losses, events=events)


def test_a_state_counts_the_mean_of_the_level_above_as_so_many_outcomes() -> None:
    policy = Hedge(half_life_events=None)
    above, own = sums((20.0, 60.0), 100), sums((3.0, 1.0), 4)
    found = pooled(policy, [above, own], 10.0)
    assert found.losses == pytest.approx((3.0 + 10 * 0.2, 1.0 + 10 * 0.6))
    # A level that has seen less than that counts for no more than it has seen.
    assert pooled(policy, [sums((2.0, 1.0), 5), own], 10.0).losses == pytest.approx((3.0 + 2.0, 1.0 + 1.0))
    assert pooled(policy, [above, own], 0.0).losses == own.losses


@given(st.floats(0, 100), st.integers(1, 500), st.integers(0, 500))
def test_pooling_never_leaves_what_the_levels_have_seen(strength: float, events_above: int, events: int) -> None:
    policy = Hedge(half_life_events=None)
    above, own = (
        sums((0.2 * events_above, 0.6 * events_above), events_above),
        sums((0.1 * events, 0.9 * events), events),
    )
    found = pooled(policy, [above, own], strength)
    held = events + min(strength, events_above)
    if held:
        assert 0.1 - 1e-9 <= found.losses[0] / held <= 0.2 + 1e-9
        assert 0.6 - 1e-9 <= found.losses[1] / held <= 0.9 + 1e-9
