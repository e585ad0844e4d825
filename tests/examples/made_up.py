"""A run of the demo that never was: what came of each request is what the test says."""

from __future__ import annotations

from collections.abc import Callable

from examples.demo.record import Recording, Request, Terminal, third_of

MODELS = ("good@1", "fair@1", "slow@1", "poor@1")
START_MS = 1_700_000_000_000
N = 3_000
SECONDS = 30.0


def terminal(request_ms: int, label: int | None, **changes: object) -> Terminal:
    facts = {"append_ms": request_ms + 20, "outcome": "ok", "reason": "all_answered", "label": label, "answered": 4}
    return Terminal(**{**facts, "missing": {}, **changes})  # type: ignore[arg-type]


def run_of(answer: Callable[[int, Request, int], list[Terminal]] | None = None) -> Recording:
    """3,000 requests in 30 s; by default each is answered rightly after 20 ms."""
    run = Recording(seconds=SECONDS, models=MODELS, deadline_ms=100)
    for number in range(N):
        sent_s = number * SECONDS / N
        request = Request(truth=number % 10, sent_s=sent_s, third=third_of(sent_s, SECONDS))
        ref, at_ms = (number % 4, number // 4), START_MS + round(1e3 * sent_s)
        run.requests.append(request)
        run.refs[ref] = number
        run.appended_ms[ref] = at_ms
        records = [terminal(at_ms, request.truth)] if answer is None else answer(number, request, at_ms)
        if records:
            run.terminals[ref] = records
        run.losses[ref] = {"good@1": float(request.third == 1), "poor@1": 0.5}
    return run
