"""What a recording shows: outcomes, latencies, errors by third, weights, and whether each promise was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from examples.demo.record import THIRDS, Recording, Ref, Request, Terminal

OUTCOMES = ("ok", "partial", "default", "error", "expired")
#: A `partial` with fewer members than this is not good enough.
LEAST_MEMBERS = 3
LEAST_GOOD_SHARE = 0.99
MOST_DEFAULT_SHARE = 0.005
MOST_ERROR_ADDED = 0.03
#: Its answer was not needed any more: no fault of the member.
_NOT_NEEDED = "not_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise."""

    name: str
    figure: str
    limit: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From a request's append to its prediction's append, in milliseconds; None where nothing was answered."""

    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One model in one third."""

    error: float | None
    """Share of its answers that were wrong, of those that a label met; None: none did."""
    answers: int
    """How many a label met."""
    awaited: int
    """Predictions that were not decided without it."""
    missing: int
    """Those of them that had to do without it."""
    why_missing: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Third:
    """One third of the run."""

    name: str
    requests: int
    outcomes: dict[str, int]
    error: float | None
    """Of the system: share of requests whose answer was not the digit shown, no answer included."""
    latency: Latency
    members: dict[str, Member]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All that the report says."""

    seconds: float
    requests: int
    """Acknowledged by the broker."""
    refused: int
    rate: float
    outcomes: dict[str, int]
    """All five, zeros too; one a request, of its first record."""
    reasons: dict[str, int]
    without_record: int
    with_different: int
    repeated: int
    """Requests with more than one record, all of which say the same."""
    strangers: int
    """Records that name a request which was never sent."""
    latency: Latency
    deadline_ms: int
    in_time_share: float
    good_share: float
    default_share: float
    thirds: tuple[Third, ...]
    labels_sent: int
    labels_learnt: int
    restarts: int
    sent_late_ms: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def score(run: Recording) -> Score:
    """Judge a finished run."""
    refs = sorted(run.refs)
    first = {ref: run.terminals[ref][0] for ref in refs if run.terminals.get(ref)}
    different = sum(len({record.says for record in run.terminals.get(ref, ())}) > 1 for ref in refs)
    more_than_one = sum(len(run.terminals.get(ref, ())) > 1 for ref in refs)
    in_time = {ref for ref in first if _took_ms(run, ref, first[ref]) <= run.deadline_ms}
    good = sum(_is_good(first[ref]) for ref in in_time)
    outcomes = _count(OUTCOMES, (record.outcome for record in first.values()))
    thirds = tuple(_third(run, index, first) for index in range(len(THIRDS)))
    return Score(
        seconds=run.seconds,
        requests=len(refs),
        refused=run.refused,
        rate=len(refs) / run.seconds,
        outcomes=outcomes,
        reasons=dict(Counter(record.reason for record in first.values()).most_common()),
        without_record=len(refs) - len(first),
        with_different=different,
        repeated=more_than_one - different,
        strangers=len(run.terminals.keys() - run.refs.keys()),
        latency=_latency(run, first.items()),
        deadline_ms=run.deadline_ms,
        in_time_share=_share(len(in_time), len(refs)),
        good_share=_share(good, len(refs)),
        default_share=_share(outcomes["default"], len(refs)),
        thirds=thirds,
        labels_sent=run.labels_sent,
        labels_learnt=len(run.losses.keys() & run.refs.keys()),
        restarts=run.restarts,
        sent_late_ms=run.sent_late_ms,
        checks=_checks(
            requests=len(refs),
            without_record=len(refs) - len(first),
            different=different,
            errors=[third.error for third in thirds],
            good_share=_share(good, len(refs)),
            default_share=_share(outcomes["default"], len(refs)),
        ),
    )


def _checks(
    *,
    requests: int,
    without_record: int,
    different: int,
    errors: Sequence[float | None],
    good_share: float,
    default_share: float,
) -> tuple[Check, ...]:
    before, during = errors[0], errors[1]
    added = None if before is None or during is None else during - before
    words = "no figure" if added is None else f"{100 * added:+.1f} points ({before:.1%} -> {during:.1%})"
    return (
        Check(
            name="requests without a terminal record",
            figure=f"{without_record} of {requests:,}",
            limit="0",
            passed=without_record == 0 and requests > 0,
        ),
        Check(
            name="requests with two different terminal records",
            figure=str(different),
            limit="0",
            passed=different == 0,
        ),
        Check(
            name="error added in the broken third",
            figure=words,
            limit=f"at most {100 * MOST_ERROR_ADDED:+.1f} points",
            passed=added is not None and added <= MOST_ERROR_ADDED,
        ),
        Check(
            name=f"ok, or partial with {LEAST_MEMBERS} members or more, in time",
            figure=f"{good_share:.2%}",
            limit=f"at least {LEAST_GOOD_SHARE:.0%}",
            passed=good_share >= LEAST_GOOD_SHARE,
        ),
        Check(
            name="default answers",
            figure=f"{default_share:.2%}",
            limit=f"at most {MOST_DEFAULT_SHARE:.1%}",
            passed=default_share <= MOST_DEFAULT_SHARE,
        ),
    )


def _third(run: Recording, index: int, first: dict[Ref, Terminal]) -> Third:
    refs = [ref for ref, number in run.refs.items() if run.requests[number].third == index]
    answered = {ref: first[ref] for ref in refs if ref in first}
    wrong = sum(_is_wrong(run.requests[run.refs[ref]], answered.get(ref)) for ref in refs)
    return Third(
        name=THIRDS[index],
        requests=len(refs),
        outcomes=_count(OUTCOMES, (record.outcome for record in answered.values())),
        error=wrong / len(refs) if refs else None,
        latency=_latency(run, answered.items()),
        members={model: _member(run, model, refs, answered) for model in run.models},
    )


def _member(run: Recording, model: str, refs: Sequence[Ref], answered: dict[Ref, Terminal]) -> Member:
    losses = [run.losses[ref][model] for ref in refs if model in run.losses.get(ref, {})]
    why = Counter(record.missing[model] for record in answered.values() if model in record.missing)
    del why[_NOT_NEEDED]
    return Member(
        error=sum(losses) / len(losses) if losses else None,
        answers=len(losses),
        awaited=why.total() + sum(model not in record.missing for record in answered.values()),
        missing=why.total(),
        why_missing=dict(why.most_common()),
    )


def _is_wrong(request: Request, record: Terminal | None) -> bool:
    return record is None or record.label != request.truth


def _is_good(record: Terminal) -> bool:
    return record.outcome == "ok" or (record.outcome == "partial" and record.answered >= LEAST_MEMBERS)


def _took_ms(run: Recording, ref: Ref, record: Terminal) -> float:
    """By the two records' own timestamps; a request whose timestamp is not known was not in time."""
    appended_ms = run.appended_ms.get(ref)
    return float("inf") if appended_ms is None else float(record.append_ms - appended_ms)


def _latency(run: Recording, records: Iterable[tuple[Ref, Terminal]]) -> Latency:
    took_ms = [_took_ms(run, ref, record) for ref, record in records if ref in run.appended_ms]
    if not took_ms:
        return Latency(p50_ms=None, p99_ms=None)
    p50, p99 = np.percentile(took_ms, [50, 99])
    return Latency(p50_ms=float(p50), p99_ms=float(p99))


def _count(names: Sequence[str], found: Iterable[str]) -> dict[str, int]:
    counts = Counter(found)
    return {name: counts[name] for name in names}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
