"""The demo: judging made-up runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.demo.record import Recording, Request, Terminal
from examples.demo.score import Score, score
from tests.examples.made_up import MODELS, SECONDS, START_MS, N, run_of, terminal


def check(judged: Score, words: str) -> bool:
    return next(check.passed for check in judged.checks if words in check.name)


def test_a_perfect_run_passes_every_check() -> None:
    judged = score(run_of())
    assert judged.passed
    assert judged.outcomes == {"ok": N, "partial": 0, "default": 0, "error": 0, "expired": 0}
    assert (judged.requests, judged.rate, judged.in_time_share, judged.good_share) == (N, 100.0, 1.0, 1.0)
    assert (judged.latency.p50_ms, judged.latency.p99_ms) == (20.0, 20.0)
    assert [third.error for third in judged.thirds] == [0.0, 0.0, 0.0]
    assert [third.requests for third in judged.thirds] == [1000, 1000, 1000]


def test_nothing_sent_passes_nothing() -> None:
    judged = score(Recording(seconds=SECONDS, models=MODELS, deadline_ms=100))
    assert not judged.passed
    assert not check(judged, "without a terminal record")
    assert not check(judged, "error added")
    assert judged.latency.p50_ms is None


def test_a_request_without_a_record_is_seen_and_counts_as_wrong() -> None:
    judged = score(run_of(lambda number, request, at_ms: [] if number == 7 else [terminal(at_ms, request.truth)]))
    assert judged.without_record == 1
    assert not check(judged, "without a terminal record")
    assert judged.thirds[0].error == pytest.approx(1 / 1000)
    assert judged.in_time_share == pytest.approx(1 - 1 / N)


@pytest.mark.parametrize(
    ("second", "different"),
    [({}, 0), ({"append_ms": START_MS, "answered": 3}, 0), ({"label": 5}, 1), ({"outcome": "partial"}, 1)],
)
def test_two_records_of_one_request_are_told_apart(second: dict[str, object], different: int) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        first = terminal(at_ms, request.truth)
        return [first, replace(first, **second)] if number == 0 else [first]  # type: ignore[arg-type]

    judged = score(run_of(answer))
    assert (judged.with_different, judged.repeated) == (different, 1 - different)
    assert check(judged, "two different") is (different == 0)


def test_a_record_of_no_request_is_a_stranger() -> None:
    run = run_of()
    run.terminals[(3, 10**6)] = [terminal(START_MS, 1)]
    assert score(run).strangers == 1


def test_only_the_first_record_of_a_request_counts() -> None:
    def answer(_number: int, request: Request, at_ms: int) -> list[Terminal]:
        return [terminal(at_ms, -1, outcome="default"), terminal(at_ms, request.truth)]

    judged = score(run_of(answer))
    assert judged.outcomes["default"] == N
    assert not check(judged, "default answers")


@pytest.mark.parametrize(("wrong_of_100", "passed"), [(3, True), (4, False)])
def test_error_added_in_the_broken_third(wrong_of_100: int, passed: bool) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        is_wrong = request.third == 1 and number % 100 < wrong_of_100
        return [terminal(at_ms, request.truth + 1 if is_wrong else request.truth)]

    judged = score(run_of(answer))
    assert judged.thirds[1].error == pytest.approx(wrong_of_100 / 100)
    assert check(judged, "error added") is passed


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"append_ms": 100}, True),
        ({"append_ms": 101}, False),
        ({"outcome": "partial", "answered": 3}, True),
        ({"outcome": "partial", "answered": 2}, False),
        ({"outcome": "default"}, False),
        ({"outcome": "expired"}, False),
    ],
)
def test_what_is_good_enough(changes: dict[str, object], good: bool) -> None:
    """In 2 of 100 requests, so that a single kind of bad answer already misses the 99 %."""

    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        if number % 100 >= 2:
            return [terminal(at_ms, request.truth)]
        at = {"append_ms": at_ms + int(changes["append_ms"])} if "append_ms" in changes else {}  # type: ignore[call-overload]
        return [terminal(at_ms, request.truth, **{**changes, **at})]

    judged = score(run_of(answer))
    assert check(judged, "in time") is good
    assert judged.good_share == pytest.approx(1.0 if good else 0.98)


@pytest.mark.parametrize(("defaults", "passed"), [(15, True), (16, False)])
def test_most_default_answers(defaults: int, passed: bool) -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        return [terminal(at_ms, request.truth, outcome="default" if number < defaults else "ok")]

    assert check(score(run_of(answer)), "default answers") is passed


def test_a_request_without_a_timestamp_was_not_in_time() -> None:
    run = run_of()
    del run.appended_ms[(0, 0)]
    assert score(run).in_time_share == pytest.approx(1 - 1 / N)


def test_members_by_third() -> None:
    def answer(number: int, request: Request, at_ms: int) -> list[Terminal]:
        missing = {"slow@1": "late" if number % 2 else "shed", "poor@1": "not_awaited"} if request.third == 1 else {}
        return [terminal(at_ms, request.truth, missing=missing)]

    first, broken, _last = score(run_of(answer)).thirds
    assert (first.members["good@1"].error, broken.members["good@1"].error) == (0.0, 1.0)
    assert broken.members["slow@1"].error is None
    assert broken.members["slow@1"].why_missing == {"late": 500, "shed": 500}
    assert (broken.members["slow@1"].missing, broken.members["slow@1"].awaited) == (1_000, 1_000)
    assert (broken.members["poor@1"].missing, broken.members["poor@1"].awaited) == (0, 0)
    assert (broken.members["fair@1"].missing, broken.members["fair@1"].awaited) == (0, 1_000)
    assert first.members["slow@1"].awaited == 1_000
