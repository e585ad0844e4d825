"""A run as a list of events that a person can read."""

from __future__ import annotations

from streamserve.testing.simulator.plan import Ask, Burst, Plan
from streamserve.testing.simulator.run import Result
from streamserve.testing.simulator.workload import form_words

_MOST_ASKS = 6
_MOST_FAILURES = 5


def story(result: Result) -> str:
    """The app, what was written when, what happened to whom, what then was wrong."""
    plan = result.plan
    lines = [f"seed {plan.seed}: {form_words(plan.form)}"]
    lines += [f"  {process.name}{_clock(process.skew_ms, process.rate)}" for process in plan.form.processes]
    events = [(burst.at_ms, 0, _burst_words(burst)) for burst in plan.bursts]
    events += [(at_ms, 1, f"{who} {words}") for at_ms, who, words in result.story]
    lines += [f"{at_ms:9.1f} ms  {words}" for at_ms, _, words in sorted(events)]
    for name, failures in result.failures.items():
        lines.append(f"broken: {name}")
        lines += [f"  {words}" for words in failures[:_MOST_FAILURES]]
        if len(failures) > _MOST_FAILURES:
            lines.append(f"  and {len(failures) - _MOST_FAILURES} more")
    return "\n".join(lines)


def short(plan: Plan) -> str:
    return f"{plan.requests} requests in {len(plan.bursts)} appends, {len(plan.faults)} faults"


def _clock(skew_ms: float, rate: float) -> str:
    if not skew_ms and rate == 1.0:
        return ""
    return f": its clock is {skew_ms:+.0f} ms off and runs {(rate - 1) * 1e6:+.0f} ppm"


def _burst_words(burst: Burst) -> str:
    asks = ", ".join(map(_ask_words, burst.asks[:_MOST_ASKS]))
    more = f", and {len(burst.asks) - _MOST_ASKS} more" if len(burst.asks) > _MOST_ASKS else ""
    how = ""
    if burst.held_ms:
        how = f", in a transaction that is {'aborted' if burst.aborted else 'committed'} after {burst.held_ms:.0f} ms"
    return f"clients write {len(burst.asks)} requests to partition {burst.partition}{how}: {asks}{more}"


def _ask_words(ask: Ask) -> str:
    words = [f"#{ask.number}"]
    if ask.kind != "good":
        words.append(ask.kind)
    if ask.rows > 1:
        words.append(f"{ask.rows} rows")
    if ask.deadline_ms:
        words.append(f"within {ask.deadline_ms} ms")
    if ask.copies > 1:
        words.append(f"{ask.copies} times")
    if ask.feedback is not None:
        words.append(f"feedback {ask.feedback.kind} after {ask.feedback.delay_ms:.0f} ms")
    return " ".join(words)
