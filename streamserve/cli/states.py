"""`streamserve bandit states`: what an app's routes have learnt, for people."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from streamserve.assembly import app_rules
from streamserve.cli.targeting import AsJson, Servers, route_of, run
from streamserve.client.connection import KafkaLog
from streamserve.client.in_force import settings_in_force
from streamserve.client.learnt import LearntState, learnt_states
from streamserve.client.scanning import scanning
from streamserve.client.targets import target_of_config
from streamserve.settings import load_settings


def states(
    config: Annotated[Path, typer.Argument(help="The app's config.")],
    *,
    route: Annotated[str | None, typer.Option("--route", help="This one alone.")] = None,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Say what each shared state has learnt: shares, weights, losses, effective outcomes, regret, version and age.

    Of each state by itself: contexts are drawn towards the levels above them when they decide, and switches and freezes
    come on top (`streamserve models list`). Keyed states are not listed. Losses are decayed as the policy forgets.
    Regret is what was lost over the best single model in hindsight, over labels that judged every model; below 0 the
    mixture was better than any one. All are a part of the state: exact, whatever was restarted.
    """
    settings = load_settings(config)
    target = target_of_config(config, bootstrap_servers)
    log = KafkaLog(target.bootstrap_servers, target.security)

    async def read() -> list[LearntState]:
        async with scanning(log) as scanner:
            rules = app_rules(await settings_in_force(scanner, settings))
            asked = rules.routes if route is None else (route_of(rules, route),)
            return await learnt_states(target.app, scanner, asked)

    found = run(read())
    for one in found:
        typer.echo(json.dumps(asdict(one)) if as_json else state_words(one, int(time.time() * 1000)))
    if not found and not as_json:
        typer.echo("Nothing has been learnt: no route's policy learns, or no feedback has come.")


def state_words(one: LearntState, now_ms: int) -> str:
    """A few lines for a person."""
    name = f"{one.route} {one.context}".rstrip()
    if one.figures is None:
        return f"{name}  {one.words}"
    figures = one.figures
    regret = "" if figures.regret is None else f", regret {figures.regret:.1f} over {figures.full}"
    age_s = max(0, now_ms - one.append_ms) / 1000
    lines = [
        f"{name}  {one.policy}, version {one.partition}-{one.epoch}, {age_s:.0f} s old, {figures.outcomes} outcomes, "
        f"entropy {figures.entropy:.3f}{regret}"
    ]
    width = max(map(len, figures.weights))
    lines.append(f"  {'':{width}}  {'share':>6}  {'weight':>7}  {'loss':>6}  {'effective':>9}")
    for model, weight in figures.weights.items():
        loss = f"{figures.losses[model]:.4f}" if model in figures.losses else "-"
        effective = figures.effective.get(model, 0.0)
        lines.append(f"  {model:{width}}  {figures.shares[model]:6.3f}  {weight:7.4f}  {loss:>6}  {effective:9.1f}")
    return "\n".join(lines)
