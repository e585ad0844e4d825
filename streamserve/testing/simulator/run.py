"""Runs plans and judges them: one, or seed after seed."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from streamserve.testing.simulator.draw import REQUESTS, draw
from streamserve.testing.simulator.evidence import Evidence
from streamserve.testing.simulator.invariants import judge
from streamserve.testing.simulator.plan import Plan
from streamserve.testing.simulator.simulation import Simulation

Mutation = Callable[[], AbstractContextManager[object]]
"""Breaks the product while it is entered."""


@dataclass(slots=True, kw_only=True)
class Result:
    """Of one run."""

    plan: Plan
    story: list[tuple[float, str, str]]
    failures: dict[str, list[str]]
    """Invariant -> words."""
    premises: dict[str, int]
    faults: dict[str, int]
    digest: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.failures)


def run(plan: Plan, mutation: Mutation = nullcontext, *, digest: bool = False) -> Result:
    """Run a plan and judge it, the judges unbroken. An exception of the product is a failure too."""
    simulation = Simulation(plan)
    try:
        with mutation():
            simulation.run()
    except Exception as error:  # noqa: BLE001  (whatever the product raises where nothing caught it, we want its seed)
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return Result(
            plan=plan,
            story=simulation.seen.story,
            failures={"nothing dies by itself": [words]},
            premises={},
            faults=dict(simulation.seen.faults),
        )
    judgement = judge(Evidence(simulation))
    result = Result(
        plan=plan,
        story=simulation.seen.story,
        failures=judgement.failures,
        premises=judgement.premises,
        faults=simulation.faults(),
        digest=simulation.digest() if digest else "",
    )
    simulation.forget()
    return result


@dataclass(slots=True)
class Totals:
    """Of many runs."""

    seeds: int = 0
    requests: int = 0
    seconds: float = 0.0
    premises: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    def add(self, result: Result, seconds: float) -> None:
        self.seeds += 1
        self.requests += result.plan.requests
        self.seconds += seconds
        for into, found in ((self.premises, result.premises), (self.faults, result.faults)):
            for name, n in found.items():
                into[name] = into.get(name, 0) + n


def runs(
    seeds: Iterable[int], totals: Totals, mutation: Mutation = nullcontext, requests: int = REQUESTS
) -> Iterator[Result]:
    """One run a seed; the collector is held off while they go on."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        for seed in seeds:
            started = time.process_time()
            gc.collect()  # more garbage than that of one run is too much for the processor's caches
            result = run(draw(seed, requests), mutation)
            totals.add(result, time.process_time() - started)
            yield result
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
