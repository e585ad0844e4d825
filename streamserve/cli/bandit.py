"""`streamserve bandit`: what was learnt, and what another policy would have earned, answered from the log."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from streamserve.assembly import app_rules, make_policy
from streamserve.cli.bandit_plot import write_plot
from streamserve.cli.outcomes import read_outcomes
from streamserve.cli.pictures import Plot, check_plot
from streamserve.cli.states import states
from streamserve.cli.targeting import AsJson, From, Servers, To, route_of, run
from streamserve.client import UnusableInput
from streamserve.client.spans import span_of
from streamserve.client.targets import target_of_config
from streamserve.core.evaluation.estimates import LEAST_EFFECTIVE, Estimate, Evaluation, direct
from streamserve.core.evaluation.estimates import evaluate as estimate
from streamserve.core.evaluation.replay import Evidence, gather
from streamserve.core.messages import F64
from streamserve.core.routes import Route
from streamserve.core.selection import Policy
from streamserve.core.selection.static import Static
from streamserve.errors import ConfigError
from streamserve.settings import load_settings
from streamserve.settings.policies import read_policy

app = typer.Typer(help="What was learnt, and policies judged by what was logged.", no_args_is_help=True)
app.command()(states)


@app.command()
def evaluate(
    config: Annotated[Path, typer.Argument(help="The app's config.")],
    *,
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy", help="A policy's name, its table as JSON, or a model that would answer alone; also several."
        ),
    ],
    route: Annotated[str | None, typer.Option("--route", help="Where the app has several.")] = None,
    begin: From = None,
    end: To = None,
    plot: Plot = None,
    bootstrap_servers: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Say what a policy would have earned on the requests of a route whose feedback is in the outcomes topic.

    Exact replay over the outcomes that tell every model's loss, for any policy; estimates with intervals (IPS, SNIPS,
    doubly robust, 95 %) over those of requests for which one model was drawn, for policies that ask one model each.
    `served, the same` is what was really served on the outcomes that are replayed: compare with that.
    States are played by context, keyed ones by partition and forgotten as in the app, and published every 100 outcomes.
    Not played: `max_state_age_ms`, models switched off, members that would have been late. A reward is 1 minus the
    loss. Exit code 1: the log says too little (fewer than 30 effective outcomes).
    """
    check_plot(plot)
    its = route_of(app_rules(load_settings(config)), route)
    asked = [_with_policy(its, one) for one in policy]
    target = target_of_config(config, bootstrap_servers)
    found = run(read_outcomes(target, span_of(begin, end, int(time.time() * 1000))))
    reports = [
        {"route": its.name, "policy": words, **report_of(gather(found, one))}
        for words, one in zip(policy, asked, strict=True)
    ]
    for report in reports:
        heading = "" if len(reports) == 1 else f"{report['policy']}\n"
        typer.echo(json.dumps(report) if as_json else heading + _words(report))
    if plot is not None:
        write_plot(plot, reports)
    if not all(report["estimates"] for report in reports):
        raise typer.Exit(1)


def _with_policy(route: Route, words: str) -> Route:
    """The route as if that were its policy. Raises UnusableInput where it cannot be."""
    asked = replace(route, policy=_policy(words, route))
    try:
        asked.policy.distribution(asked.policy.initial(asked.models), asked.models)
    except ConfigError as error:
        raise UnusableInput(f"--policy {words}: {error}") from None
    return asked


def report_of(evidence: Evidence) -> dict[str, Any]:
    """What is printed, as plain values."""
    estimates: list[dict[str, Any]] = []
    refused: list[str] = []
    if len(evidence.replayed) >= LEAST_EFFECTIVE:
        estimates.append(_row(direct(evidence.replayed), len(evidence.replayed)))
    elif len(evidence.replayed):
        refused.append(
            f"replay: {len(evidence.replayed)} outcomes tell every model's loss, {LEAST_EFFECTIVE:.0f} are needed"
        )
    drawn: Evaluation | None = None
    if evidence.logged is not None:
        drawn = estimate(evidence.logged)
        estimates += [_row(one, drawn.n) for one in drawn.estimates]
        if drawn.refused:
            refused.append(drawn.refused)
    elif evidence.drawn and not estimates:
        refused.append(f"{evidence.drawn} outcomes are of one drawn model each, and this policy asks several a request")
    if not estimates and not refused:
        refused.append("no outcome of this route tells anything: none holds every model's loss or a drawn choice")
    return {
        "served": _row_of("served", evidence.served),
        "served_there": _row_of("served, the same", evidence.served_there),
        "as_votes": evidence.as_votes,
        "estimates": estimates,
        "effective": None if drawn is None else drawn.effective,
        "largest_weight": None if drawn is None else drawn.largest_weight,
        "unsupported": None if drawn is None else drawn.unsupported,
        "passed_over": evidence.passed_over,
        "refused": refused,
    }


def _row_of(name: str, rewards: F64) -> dict[str, Any] | None:
    return {**_row(direct(rewards), len(rewards)), "name": name} if len(rewards) else None


def _row(one: Estimate, n: int) -> dict[str, Any]:
    return {**asdict(one), "n": n}


def _words(report: dict[str, Any]) -> str:
    lines = [f"{'':16}  {'reward':>8}  {'95 % interval':>18}  {'outcomes':>9}"]
    rows = [report[key] for key in ("served", "served_there") if report[key]]
    for one in (*rows, *report["estimates"]):
        interval = f"{one['low']:.4f} to {one['high']:.4f}"
        lines.append(f"{one['name']:16}  {one['value']:8.4f}  {interval:>18}  {one['n']:9}")
    if report["effective"] is not None:
        lines.append(
            f"effective outcomes {report['effective']:.1f}, largest weight {report['largest_weight']:.3g}, "
            f"never logged {100 * report['unsupported']:.3g} %"
        )
    if report["passed_over"]:
        lines.append(f"{report['passed_over']} outcomes tell neither every model's loss nor a draw")
    if report["as_votes"]:
        lines.append(f"{report['as_votes']} outcomes tell no probabilities: replayed as votes")
    return "\n".join([*lines, *report["refused"]])


def _policy(text: str, route: Route) -> Policy:
    if text in route.models or text in [model.rpartition("@")[0] for model in route.models]:
        return Static(weights={text: 1.0})
    try:
        return make_policy(read_policy(text))
    except ConfigError as error:
        raise UnusableInput(f"--policy {text}: {error}; or a model of the route: {', '.join(route.models)}") from None
