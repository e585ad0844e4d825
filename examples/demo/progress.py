"""One line every few seconds, for the person who watches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from examples.demo.record import Recording
from examples.demo.report import name_of

_EVERY_S = 3.0
_MODELS_SHOWN = 3
#: Newer requests may still be on their way: they are told of in the next line.
_SETTLED_S = 0.5


@dataclass(slots=True, kw_only=True)
class Progress:
    """Tells what happened since its last line."""

    console: Console
    run: Recording
    _next_s: float = _EVERY_S
    _told: int = 0
    """Requests that earlier lines spoke of."""

    def at(self, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self.console.print(self._line(now_s), highlight=False, soft_wrap=True)

    def _line(self, now_s: float) -> str:
        run = self.run
        refs = {number: ref for ref, number in run.refs.items()}
        until = len(run.requests)
        while until > self._told and run.requests[until - 1].sent_s > now_s - _SETTLED_S:
            until -= 1
        numbers, self._told = range(self._told, until), until
        outcomes: Counter[str] = Counter()
        took_ms, wrong = [], 0
        for number in numbers:
            ref = refs.get(number, (-1, -1))
            records = run.terminals.get(ref)
            outcomes[records[0].outcome if records else "waiting"] += 1
            wrong += not records or records[0].label != run.requests[number].truth
            if records and ref in run.appended_ms:
                took_ms.append(records[0].append_ms - run.appended_ms[ref])
        p50, p99 = np.percentile(took_ms, [50, 99]) if took_ms else (float("nan"), float("nan"))
        share = wrong / len(numbers) if numbers else float("nan")
        said = "  ".join(f"{name} {count}" for name, count in outcomes.most_common())
        return (
            f"{now_s:5.0f} s  {len(run.requests):7,} sent  wrong {share:5.1%}  p50 {p50:3.0f}  p99 {p99:3.0f} ms  "
            f"{said:24}  {self._weights()}"
        )

    def _weights(self) -> str:
        if not self.run.weights:
            return "weights equal"
        heavy = sorted(self.run.weights[-1].shares.items(), key=lambda pair: -pair[1])[:_MODELS_SHOWN]
        return "  ".join(f"{name_of(model)} {share:.2f}" for model, share in heavy)
