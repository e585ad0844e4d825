"""`streamserve simulate`: seeds are played until one breaks what must hold; that one is made small and told."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from streamserve.cli.numbers import MOST
from streamserve.errors import ConfigError
from streamserve.testing.mutants import MUTANTS
from streamserve.testing.simulator.draw import REQUESTS
from streamserve.testing.simulator.plan import Plan
from streamserve.testing.simulator.report import FULL_SEEDS, as_json, rare, table
from streamserve.testing.simulator.run import Mutation, Result, Totals, run, runs
from streamserve.testing.simulator.saved import load, save
from streamserve.testing.simulator.shrink import shrink
from streamserve.testing.simulator.story import short, story


def simulate(  # noqa: PLR0917  (typer: options)
    seeds: Annotated[int, typer.Option(min=1, max=MOST, help="How many seeds.")] = 100,
    first: Annotated[int, typer.Option("--from", min=0, max=1_000 * MOST, help="The first seed.")] = 0,
    fault: Annotated[str, typer.Option(help="Plant a fault in the product, to see it found; `list` names them.")] = "",
    plan: Annotated[Path | None, typer.Option(help="Play this saved plan instead of seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the shrunk plan of a failure here.")] = None,
    requests: Annotated[int, typer.Option(min=1, max=MOST, help="Requests of each run.")] = REQUESTS,
    shrinks: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Make a failing plan small.")] = True,
    as_data: Annotated[bool, typer.Option("--json", help="Say it in JSON.")] = False,
) -> None:
    """Play a whole app, clients to learner, through crashes, zombies, lost acknowledgements, broken models and a broker
    that is away, as each seed decides; then check what must hold. No broker is needed.

    Exit codes: 0 all held, 1 something did not (its story is printed) or, over 500 seeds, a kind of fault was too rare,
    2 wrong use.
    """
    if fault == "list":
        width = max(map(len, MUTANTS))
        for name, mutant in MUTANTS.items():
            typer.echo(f"{name:{width}}  {mutant.words}")
        return
    if fault and fault not in MUTANTS:
        raise ConfigError(f"no fault {fault!r} can be planted; `--fault list` names those that can")
    mutation: Mutation = MUTANTS[fault].plant if fault else nullcontext
    if plan is not None:
        result = run(load(plan), mutation)
        if result.failed:
            _tell_failure(result, result, 0, as_data, fault)
        typer.echo(json.dumps({"failed": False}) if as_data else "everything held")
        return
    totals = Totals()
    for result in runs(range(first, first + seeds), totals, mutation, requests):
        if result.failed:
            small, n = _small(result, mutation) if shrinks else (result, 0)
            if out is not None:
                save(small.plan, out)
            _tell_failure(result, small, n, as_data, fault)
    missing = rare(totals) if seeds >= FULL_SEEDS and not fault else []
    if as_data:
        typer.echo(json.dumps({"failed": False, "rare": missing, **as_json(totals)}))
    else:
        typer.echo(table(totals))
        for words in missing:
            typer.echo(f"too rare to have been tested: {words}")
    if missing:
        raise typer.Exit(1)


def _small(result: Result, mutation: Mutation) -> tuple[Result, int]:
    """The smallest plan that breaks one of the same invariants."""
    broken = set(result.failures)

    def still_fails(plan: Plan) -> bool:
        return bool(broken & set(run(plan, mutation).failures))

    small, n = shrink(result.plan, still_fails)
    return run(small, mutation), n


def _tell_failure(result: Result, small: Result, tried: int, as_data: bool, fault: str) -> None:
    """Tell it, and end."""
    if as_data:
        told = {"failed": True, "seed": result.plan.seed, "broken": small.failures, "story": story(small).splitlines()}
        typer.echo(json.dumps(told))
    else:
        typer.echo(story(small))
        typer.echo(
            f"found with {short(result.plan)}" + (f"; {short(small.plan)} are left after {tried} runs" if tried else "")
        )
        options = f" --fault {fault}" if fault else ""
        options += f" --requests {result.plan.requests}" if result.plan.requests != REQUESTS else ""
        typer.echo(f"again: streamserve simulate --from {result.plan.seed} --seeds 1{options}")
    raise typer.Exit(1)
