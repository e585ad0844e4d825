"""Makes a failing plan smaller: what can be left out without the failure going away is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from streamserve.testing.simulator.plan import Plan

_Item = TypeVar("_Item")
StillFails = Callable[[Plan], bool]


def shrink(plan: Plan, still_fails: StillFails, most_runs: int = 600) -> tuple[Plan, int]:
    """The smallest plan found, and how many runs that took. Faults first: they are what a person has to understand."""
    budget = _Budget(still_fails, most_runs)
    for _ in range(2):  # fewer requests may make another fault needless
        plan = _fewer_faults(plan, budget)
        plan = _fewer_bursts(plan, budget)
        plan = _fewer_asks(plan, budget)
        plan = _fewer_processes(plan, budget)
    return plan, budget.runs


class _Budget:
    def __init__(self, still_fails: StillFails, most_runs: int) -> None:
        self._still_fails, self._most = still_fails, most_runs
        self.runs = 0

    def fails(self, plan: Plan) -> bool:
        if self.runs >= self._most:
            return False
        self.runs += 1
        return self._still_fails(plan)


def _fewer(items: Sequence[_Item], fails: Callable[[list[_Item]], bool], least: int = 0) -> list[_Item]:
    """Without runs of items that are not needed, long ones first (delta debugging)."""
    kept = list(items)
    size = len(kept)
    while size >= 1:
        at = 0
        while at < len(kept):
            candidate = kept[:at] + kept[at + size :]
            if len(candidate) >= least and fails(candidate):
                kept = candidate
            else:
                at += size
        size //= 2
    return kept


def _fewer_faults(plan: Plan, budget: _Budget) -> Plan:
    kept = _fewer(plan.faults, lambda kept: budget.fails(replace(plan, faults=tuple(kept))))
    return replace(plan, faults=tuple(kept))


def _fewer_bursts(plan: Plan, budget: _Budget) -> Plan:
    kept = _fewer(plan.bursts, lambda kept: budget.fails(replace(plan, bursts=tuple(kept))), least=1)
    return replace(plan, bursts=tuple(kept))


def _fewer_asks(plan: Plan, budget: _Budget) -> Plan:
    places = [(b, a) for b, burst in enumerate(plan.bursts) for a in range(len(burst.asks))]

    def with_asks(kept: list[tuple[int, int]]) -> Plan:
        chosen = set(kept)
        bursts = [
            burst._replace(asks=tuple(ask for a, ask in enumerate(burst.asks) if (b, a) in chosen))
            for b, burst in enumerate(plan.bursts)
        ]
        return replace(plan, bursts=tuple(burst for burst in bursts if burst.asks))

    return with_asks(_fewer(places, lambda kept: budget.fails(with_asks(kept)), least=1))


def _fewer_processes(plan: Plan, budget: _Budget) -> Plan:
    """Without processes that no fault names; each role and pool keeps one."""
    named = {fault.process for fault in plan.faults}
    for process in _removable(plan, named):
        form = replace(plan.form, processes=tuple(p for p in plan.form.processes if p.name != process))
        candidate = replace(plan, form=form)
        if budget.fails(candidate):
            plan = candidate
    return plan


def _removable(plan: Plan, named: set[str]) -> Iterator[str]:
    left: dict[tuple[str, str], int] = {}
    for process in plan.form.processes:
        left[process.role, process.pool] = left.get((process.role, process.pool), 0) + 1
    for process in reversed(plan.form.processes):
        if process.name not in named and left[process.role, process.pool] > 1:
            left[process.role, process.pool] -= 1
            yield process.name
