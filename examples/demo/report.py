"""The report for a person, and the same as JSON."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo.record import Recording
from examples.demo.score import Latency, Member, Score

_COLUMNS = 60
_BARS = " ▁▂▃▄▅▆▇█"
_POINTS_IN_JSON = 400


def show(console: Console, score: Score, run: Recording) -> None:
    """Print everything that a reader wants to know of a run."""
    console.print()
    console.print(_facts(score))
    console.print(_thirds(score))
    if any(_is_late(member) for third in score.thirds for member in third.members.values()):
        console.print("late for: of the requests that were not decided without it\n", style="dim")
    console.print(_weights(run))
    console.print(_checks(score))


def write_json(file: Path, score: Score, run: Recording) -> None:
    """Everything of the report, and the weights over time."""
    step = max(1, len(run.weights) // _POINTS_IN_JSON)
    weights = [{"s": round(s, 3), "shares": dict(shares)} for s, shares in weights_over_time(run)[::step]]
    body = {"passed": score.passed, **asdict(score), "weights": weights}
    file.write_text(json.dumps(body, indent=1, default=_plain), encoding="utf-8")


def weights_over_time(run: Recording) -> list[tuple[float, dict[str, float]]]:
    """(Seconds since the start, weights) of each learnt state, after the equal ones of the beginning."""
    origin_ms = origin_of(run)
    equal = {model: 1 / len(run.models) for model in run.models}
    return [(0.0, equal), *((1e-3 * (state.append_ms - origin_ms), dict(state.shares)) for state in run.weights)]


def origin_of(run: Recording) -> float:
    """The run's first moment in the broker's time, milliseconds: by the first request that has a timestamp."""
    known = ((number, ref) for ref, number in run.refs.items() if ref in run.appended_ms)
    number, ref = min(known, default=(0, None))
    return run.appended_ms[ref] - 1e3 * run.requests[number].sent_s if ref is not None else 0.0


def spark(values: Sequence[float], top: float = 1.0) -> str:
    """One character a value, its height the value's share of `top`; anything above 0 is seen."""
    heights = [min(len(_BARS) - 1, max(round((len(_BARS) - 1) * value / top), value > 0.02)) for value in values]
    return "".join(_BARS[height] for height in heights)


def shown(latency: Latency) -> str:
    if latency.p50_ms is None or latency.p99_ms is None:
        return "-"
    return f"{latency.p50_ms:.0f} / {latency.p99_ms:.0f} ms"


def name_of(model: str) -> str:
    """`forest` of `forest@1`."""
    return model.rpartition("@")[0] or model


def _facts(score: Score) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    refused = f"; {score.refused} not acknowledged" if score.refused else ""
    table.add_row("requests", f"{score.requests:,} in {score.seconds:.0f} s, {score.rate:.0f} a second{refused}")
    table.add_row("outcomes", ", ".join(f"{name} {count:,}" for name, count in score.outcomes.items()))
    table.add_row("reasons", ", ".join(f"{name} {count:,}" for name, count in score.reasons.items()) or "-")
    records = (
        f"{score.without_record} without a terminal record, {score.with_different} with different ones, "
        f"{score.repeated} with the same one twice, {score.strangers} records of no request"
    )
    table.add_row("exactly one", records)
    table.add_row("latency p50 / p99", f"{shown(score.latency)}, append to append (deadline {score.deadline_ms} ms)")
    table.add_row("in time", f"{score.in_time_share:.2%}")
    table.add_row("labels", f"{score.labels_sent:,} sent back, {score.labels_learnt:,} learnt from")
    late = f"the sender was at most {score.sent_late_ms:.0f} ms behind its schedule"
    table.add_row("processes", f"{score.restarts} restarted; {late}")
    return table


def _thirds(score: Score) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="wrong answers", title_justify="left", title_style="bold")
    table.add_column("")
    for third in score.thirds:
        table.add_column(f"{third.name} third", justify="right")
    for model in score.thirds[0].members:
        table.add_row(name_of(model), *(_member(third.members[model]) for third in score.thirds))
    table.add_section()
    table.add_row("the system", *(_percent(third.error) for third in score.thirds), style="bold")
    table.add_row("p50 / p99", *(shown(third.latency) for third in score.thirds))
    for name in score.outcomes:
        table.add_row(name, *(f"{third.outcomes[name]:,}" for third in score.thirds), style="dim")
    return table


def _member(member: Member) -> str:
    if not _is_late(member):
        return _percent(member.error)
    return f"(late for {member.missing / member.awaited:.0%})  {_percent(member.error)}"


def _is_late(member: Member) -> bool:
    return member.missing > 0 and member.missing >= 0.005 * member.awaited


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _weights(run: Recording) -> Text:
    states = weights_over_time(run)
    times_s = [s for s, _ in states]
    middles_s = [(column + 0.5) * run.seconds / _COLUMNS for column in range(_COLUMNS)]
    at = [states[max(0, bisect_right(times_s, s) - 1)][1] for s in middles_s]
    width = max(len(name_of(model)) for model in run.models)
    top = max(share for shares in at for share in shares.values())
    lines = [Text("weights over time", style="bold"), Text(f"{'':{width}}  {_ruler(run.seconds)}", style="dim")]
    for model in run.models:
        line = Text(f"{name_of(model):{width}}  ")
        bars = spark([shares[model] for shares in at], top)
        for third in range(3):
            part = bars[third * _COLUMNS // 3 : (third + 1) * _COLUMNS // 3]
            line.append(part, style="red" if third == 1 else "green")
            line.append("│", style="dim")
        line.append(f" {states[-1][1][model]:.2f} at the end")
        lines.append(line)
    return Text("\n").join([*lines, Text()])


def _ruler(seconds: float) -> str:
    width = _COLUMNS // 3
    marks = [
        f"{third * seconds / 3:.0f} s {words}" for third, words in enumerate(("all well", "two in trouble", "all well"))
    ]
    return " ".join(f"{mark:{width}.{width}}" for mark in marks)


def _checks(score: Score) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="checks", title_justify="left", title_style="bold")
    for heading in ("", "found", "wanted", ""):
        table.add_column(heading)
    for check in score.checks:
        verdict = Text("PASS", style="green") if check.passed else Text("MISS", style="bold red")
        table.add_row(check.name, check.figure, check.limit, verdict)
    return table


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else str(value)
