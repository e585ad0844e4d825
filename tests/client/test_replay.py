"""Recorded requests replayed through a candidate; the log in memory, the model real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamserve.assembly import app_rules
from streamserve.client.candidate import Candidate, loaded_candidate
from streamserve.client.replay import Listeners, Question, Replay
from streamserve.client.replay import replay as replay_requests
from streamserve.client.spans import Span, span_of
from streamserve.core.evaluation.agreement import SERVED, Replayed
from streamserve.errors import ModelError, TopicsDiffer
from streamserve.kafka.codecs import encode_outcome
from streamserve.kafka.ports import At, Columns, Record
from streamserve.runtimes import ModelSpec
from streamserve.runtimes.isolation import Limits
from streamserve.settings import parse_settings
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.testing.policy_checks import outcome_of
from streamserve.topics import Kind, topic_name
from tests.client import candidates
from tests.client.conftest import APP, PARTITIONS, PREDICTIONS, REQUESTS, MemoryApp, terminal

OUTCOMES = topic_name(APP, Kind.OUTCOMES)
RULES = app_rules(
    parse_settings(
        """
[app]
name = "digits"
[pools.main]
models = ["linear", "other"]
[models.linear]
source = "a:b"
[models.other]
source = "a:b"
[routes.digits]
models = ["linear"]
policy = "hedge"
deadline_ms = 1000
input = "rows"
[routes.other]
models = ["other"]
policy = "hedge"
deadline_ms = 1000
input = "rows"
""",
        "app.toml",
    )
)
ROUTE = RULES.routes[0]
OURS = (("ss-route", b"digits"),)


class Recorded:
    """An app's topics; a second passes with each record."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=self.clock.epoch)

    def write(self, topic: str, partition: int, record: Record) -> int:
        self.clock.advance(1_000)
        return self.log.append(At(topic, partition), Columns.of([record])).offset

    def ask(self, partition: int, value: object, headers: Any = OURS) -> int:
        raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        return self.write(REQUESTS, partition, Record(value=raw, headers=headers))

    def answer(self, partition: int, offset: int, label: int | None = None, **more: Any) -> None:
        value, headers = terminal(partition, offset, label=label, **more)
        self.write(PREDICTIONS, partition, Record(value=value, headers=headers))

    def know(self, partition: int, offset: int, label: Any, *, to: int = 0, given_ms: int = 1, **more: Any) -> None:
        made = outcome_of({"linear@1": 0.5}, chosen=("linear@1",), offset=0)
        fields = {"route": "digits", "has_label": True, "label": label, "feedback": (0, given_ms), **more}
        made = replace(made, ref=(partition, offset), feedback_ms=given_ms, **fields)
        self.write(OUTCOMES, to, Record(value=encode_outcome(made)))

    async def replay(
        self,
        source: str = "last_digit",
        *,
        span: Span = Span(),  # noqa: B008  (frozen)
        most_rows: int = 512,
        progress: Callable[[Replay], None] = lambda _: None,
        limits: Limits | None = None,
    ) -> tuple[Replay, list[Replayed]]:
        listed: list[Replayed] = []
        async with candidate(source, most_rows=most_rows, limits=limits) as model:
            question = Question(rules=RULES, route=ROUTE, span=span)
            listeners = Listeners(listed=listed.append, progress=progress)
            return await replay_requests(MemoryApp(self.log), APP, model, question, listeners), listed


def candidate(source: str, *, most_rows: int = 512, limits: Limits | None = None) -> Any:
    spec = ModelSpec(name="new", version="2", source=f"tests.client.candidates:{source}", isolation=limits)
    return loaded_candidate(spec, most_rows, Path.cwd())


@pytest.fixture
def recorded() -> Recorded:
    """Requests 0 to 99 of partition 1, served with their last digit, with their labels for the first fifty."""
    found = Recorded()
    for number in range(100):
        assert found.ask(1, [[float(number), 0.0]]) == number
    for number in reversed(range(100)):  # settled in another order than they came
        found.answer(1, number, number % 10)
    for number in range(50):
        found.know(1, number, number % 10, to=number % PARTITIONS)
    return found


async def test_all_is_aligned_whatever_order_it_stands_in(recorded: Recorded) -> None:
    right, listed = await recorded.replay()
    assert right.is_whole
    assert (right.comparison.requests, right.comparison.labelled, right.comparison.accuracy) == (100, 50, 1.0)
    assert right.comparison.versus[SERVED].agreement == right.comparison.versus["linear@1"].agreement == 1.0
    assert listed == []
    wrong, listed = await recorded.replay("odd_ones_wrong")
    versus = wrong.comparison.versus[SERVED]
    assert (versus.requests, versus.agree, versus.labelled, versus.better, versus.worse) == (100, 50, 50, 0, 25)
    assert (versus.accuracy, versus.candidate_accuracy) == (1.0, 0.5)
    assert [one.ref for one in listed] == [f"1-{number}" for number in range(1, 100, 2)]
    assert (listed[0].answer, listed[0].label, listed[-1].has_label) == ([2], 1, False)
    assert wrong.times.rows == 100


async def test_batches_are_as_large_as_the_model_takes(recorded: Recorded) -> None:
    candidates.CALLS.clear()
    result, _ = await recorded.replay(most_rows=32)
    assert candidates.CALLS == [32, 32, 32, 4]
    assert (result.times.batch.weight, result.times.rows) == (4, 100)


async def test_a_span_of_offsets_and_of_times(recorded: Recorded) -> None:
    result, _ = await recorded.replay(span=span_of("10", "30", 0))
    assert (result.comparison.requests, result.comparison.labelled) == (20, 20)
    assert result.comparison.versus[SERVED].requests == 20
    [early] = [recorded.log.records(REQUESTS)[1][90].append_ms]
    result, _ = await recorded.replay(span=Span(from_ms=early))
    assert (result.comparison.requests, result.is_whole) == (10, True)
    result, _ = await recorded.replay(span=Span(from_offset=100))
    assert result.comparison.requests == 0


async def test_what_cannot_be_replayed_is_counted_with_its_reason() -> None:
    log = Recorded()
    for value, headers in (
        ([[7.0, 0.0]], OURS),
        (None, OURS),
        (b"\xff{", OURS),
        ([[1.0]], (("ss-route", b"other"),)),
        ([[1.0]], (("ss-route", b"none"),)),
        ([[1.0]], ()),
        ([[1.0, 1.0]], (*OURS, ("ss-deadline-ms", b"soon"))),
        ([[1.0, 1.0]], (*OURS, ("\\xff", b"\xff"))),
        ([[12.0, 0.0], [13.0, 0.0]], OURS),
    ):
        log.ask(0, value, headers)
    result, _ = await log.replay()
    assert result.passed_over == {
        "empty_value": 1,
        "not_json": 1,
        "other_route": 1,
        "unknown_route": 2,
        "bad_deadline": 1,
    }
    assert (result.comparison.requests, result.comparison.without_prediction) == (3, 3)
    assert result.times.rows == 4


async def test_the_first_prediction_and_the_last_label_of_a_request_count() -> None:
    log = Recorded()
    for number in range(3):
        log.ask(0, [[float(number)]])
    log.answer(0, 2, 2)
    log.answer(0, 2, 9)
    log.answer(0, 0, 0)
    log.answer(0, 0, 9)
    log.answer(0, 1, outcome="expired")
    for value in (None, b"{}", b'{"id": 1'):
        log.write(PREDICTIONS, 0, Record(value=value, headers=(("ss-ref", b"0-1"),)))
    log.write(PREDICTIONS, 0, Record(value=b"{}"))
    log.know(0, 0, 5, given_ms=20)
    log.know(0, 0, 0, given_ms=30)
    log.know(0, 0, 6, given_ms=10)
    log.know(0, 1, 1, route="other")
    log.know(0, 1, 1, primary=False)
    log.know(0, 1, None, has_label=False, reward=1.0)
    log.write(OUTCOMES, 0, Record(value=b"{"))
    result, listed = await log.replay()
    assert listed == []
    assert (result.comparison.labelled, result.comparison.accuracy) == (1, 1.0)
    assert result.comparison.versus[SERVED].requests == 2
    assert result.comparison.unanswered == {"expired": 1}
    assert result.unreadable_outcomes == 1


async def test_a_prediction_that_is_none_of_ours_is_counted() -> None:
    log = Recorded()
    log.ask(0, [[1.0]])
    log.write(PREDICTIONS, 0, Record(value=b"{}", headers=(("ss-ref", b"0-0"),)))
    log.ask(0, [[2.0]])
    log.write(PREDICTIONS, 0, Record(value=b"{}"))
    result, _ = await log.replay()
    assert result.unreadable_predictions == 2
    assert result.comparison.without_prediction == 2


@pytest.mark.parametrize(
    ("source", "words"), [("refuses_sevens", "a seven"), ("raises_on_sevens", "ValueError: seven")]
)
async def test_a_row_that_is_refused_costs_its_request_alone(recorded: Recorded, source: str, words: str) -> None:
    result, listed = await recorded.replay(source, most_rows=64)
    refused = result.comparison.refusals[words]
    assert (refused.requests, refused.first) == (10, "1-7")
    assert (result.comparison.requests, result.comparison.answered) == (100, 90)
    assert [(one.answer, one.refusal) for one in listed] == [(None, words)] * 10
    assert result.comparison.versus[SERVED].agreement == 1.0


async def test_rows_of_another_form_are_refused_without_a_call(recorded: Recorded) -> None:
    result, _ = await recorded.replay("STRICT.predict")
    assert list(result.comparison.refusals) == ["new@2 takes rows of [3], not of [2] float64"]
    assert result.times.rows == 0


@pytest.mark.slow
async def test_a_process_that_ends_on_a_row_is_waited_for(recorded: Recorded) -> None:
    result, _ = await recorded.replay("ends_on_sevens", span=span_of("5", "9", 0), limits=Limits())
    assert (result.comparison.requests, result.comparison.answered) == (4, 3)
    assert [one.first for one in result.comparison.refusals.values()] == ["1-7"]


async def test_a_model_that_cannot_be_loaded_is_told() -> None:
    with pytest.raises(ModelError, match="new@2"):
        async with candidate("no_such_model"):
            pass


async def test_what_retention_has_taken_is_said(recorded: Recorded) -> None:
    recorded.log.delete_before(At(REQUESTS, 1), 20)
    for span, is_cut in ((Span(), True), (span_of("10", None, 0), True), (span_of("20", None, 0), False)):
        result, _ = await recorded.replay(span=span)
        assert result.comparison.requests == 80
        assert [words for words in result.gaps if "begins at offset 20" in words] == result.gaps
        assert bool(result.gaps) is is_cut
        assert result.is_whole is not is_cut
    result, _ = await recorded.replay(span=Span(from_ms=0))
    assert ["what the range names below that may be gone" in words for words in result.gaps] == [True]
    later_ms = recorded.log.records(REQUESTS)[1][5].append_ms
    result, _ = await recorded.replay(span=Span(from_ms=later_ms))
    assert (result.comparison.requests, result.gaps) == (75, [])
    recorded.log.delete_before(At(PREDICTIONS, 1), 50)  # those of requests 99 to 50
    result, _ = await recorded.replay(span=span_of("20", None, 0))
    assert result.comparison.without_prediction == 50
    assert ["older predictions may be gone" in words for words in result.gaps] == [True]


async def test_records_that_go_while_they_are_read_are_said(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamserve.client.replay._LEAST_WINDOW", 10)
    monkeypatch.setattr("streamserve.client.scanning._FETCH_RECORDS", 10)
    gone = False

    def progress(_result: Replay) -> None:
        nonlocal gone
        if not gone:
            gone = True
            recorded.log.delete_before(At(REQUESTS, 1), 95)

    result, _ = await recorded.replay(most_rows=10, progress=progress)
    assert result.comparison.requests == 15
    assert ["lost records below offset 95" in words for words in result.gaps] == [True]


async def test_holes_that_retention_did_not_make_are_none(recorded: Recorded) -> None:
    recorded.log.punch(At(REQUESTS, 1), [3, 4, 50])  # as transaction markers leave them
    result, _ = await recorded.replay()
    assert result.failure is None
    assert (result.comparison.requests, result.gaps) == (97, [])


async def test_what_was_done_is_reported_when_it_is_broken_off(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamserve.client.replay._LEAST_WINDOW", 10)

    def progress(result: Replay) -> None:
        if result.comparison.requests >= 30:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    result, _ = await recorded.replay(most_rows=10, progress=progress)
    assert (result.comparison.requests, result.is_broken_off, result.is_whole) == (30, True, False)
    assert [(one.reached, one.end) for one in result.reach if one.end] == [(30, 100)]
    assert result.done == 0.3


@pytest.mark.slow
async def test_a_model_that_only_ends_is_given_up_with_a_report(recorded: Recorded) -> None:
    async with candidate("always_ends", limits=Limits()) as model:
        assert isinstance(model, Candidate)
        question = Question(rules=RULES, route=ROUTE, span=Span())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamserve.client.candidate._MOST_ENDS", 2)
            result = await replay_requests(MemoryApp(recorded.log), APP, model, question, Listeners())
    assert isinstance(result.failure, ModelError)
    assert "its process ended at each of 2 rows in a row" in str(result.failure)
    assert result.comparison.requests == 0


async def test_an_app_without_its_topics_is_told() -> None:
    async with candidate("last_digit") as model:
        question = Question(rules=RULES, route=ROUTE, span=Span())
        with pytest.raises(TopicsDiffer, match="has no topic"):
            await replay_requests(MemoryApp(MemoryLog({REQUESTS: 1})), APP, model, question, Listeners())
