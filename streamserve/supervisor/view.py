"""The live view in a terminal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from streamserve.supervisor.lines import newest_weights, number, outcome_words, size_words
from streamserve.supervisor.news import ChildFacts, News, Snapshot, State

_KEPT_NEWS = 6
_NEWS_LINES = 8
_REDRAW_S = 1.0
_CLOSE_S = 1.0
_BAR_CELLS = 24
_STATE_STYLES = {State.SERVING: "green", State.STARTING: "yellow", State.WAITING: "red"}


class LiveView:
    """Draws on a thread of its own: a terminal that is held (Ctrl-S) holds nothing else.

    The children's output stays in their files.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._news: deque[str] = deque(maxlen=_KEPT_NEWS)
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._draw, name="view", daemon=True)
        self._thread.start()

    def news(self, news: News) -> None:
        with self._lock:
            self._news.append(news.words)
        self._changed.set()

    def status(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._snapshot = snapshot
        self._changed.set()

    def heard(self, name: str, line: str) -> None:
        """Nothing: the last lines of a process that ends are news."""

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join(_CLOSE_S)

    def _draw(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while not self._closed:
                self._changed.wait(_REDRAW_S)
                self._changed.clear()
                live.update(self._now(), refresh=True)
            live.update(self._now(), refresh=True)

    def _now(self) -> RenderableType:
        with self._lock:
            return render(self._snapshot, list(self._news))


def render(snapshot: Snapshot | None, news: Iterable[str]) -> RenderableType:
    """Everything as one picture that fits a small terminal: processes, routes, models, news."""
    parts: list[RenderableType] = []
    if snapshot is not None:
        parts.append(Text(f"{snapshot.app} on Kafka at {snapshot.bootstrap_servers}", style="bold"))
        tables = (_processes(snapshot.children), _routes(snapshot.children), _models(snapshot.children))
        parts.extend(table for table in tables if table.row_count)
    parts.append(Rule("news", align="left", style="dim"))
    parts.append(Text("\n".join("\n".join(news).splitlines()[-_NEWS_LINES:])))
    return Group(*parts)


def _processes(children: Iterable[ChildFacts]) -> Table:
    table = _table("process", "state", right=("pid", "restarts", "reads/s", "lag", "queued"))
    for facts in children:
        status: Mapping[str, Any] = facts.status or {}
        table.add_row(
            facts.plan.name,
            Text(str(facts.state), style=_STATE_STYLES.get(facts.state, "dim")),
            str(facts.pid or "-"),
            str(facts.restarts),
            *(number(status.get(key)) for key in ("consumed_per_s", "lag_records", "queued_records")),
        )
    return table


def _routes(children: Iterable[ChildFacts]) -> Table:
    table = _table("route", "by", right=("predictions/s", "p50 ms", "p99 ms"))
    table.add_column("outcomes")
    for facts in children:
        for route, figures in (facts.status or {}).get("routes", {}).items():
            table.add_row(
                route,
                facts.plan.name,
                *(number(figures.get(key)) for key in ("rate_per_s", "latency_p50_ms", "latency_p99_ms")),
                outcome_words(figures.get("outcomes", {})),
            )
    return table


def _models(children: Sequence[ChildFacts]) -> Table:
    table = _table("model", "in", "last batch (why)", "weight")
    weights = newest_weights(children)
    seen = set()
    for facts in children:
        for model, batch in (facts.status or {}).get("batches", {}).items():
            seen.add(model)
            table.add_row(model, facts.plan.name, size_words(batch), _weight_bars(model, weights))
    for model in sorted({model for route in weights.values() for model in route} - seen):
        table.add_row(model, "", "", _weight_bars(model, weights))
    return table


def _weight_bars(model: str, weights: Mapping[str, Mapping[str, float]]) -> str:
    bars = []
    for route, of_models in weights.items():
        if model in of_models:
            heaviest = max(of_models.values()) or 1.0
            bar = "█" * round(_BAR_CELLS * of_models[model] / heaviest)
            bars.append(f"{of_models[model]:.3f} {bar}{f' {route}' if len(weights) > 1 else ''}")
    return "\n".join(bars)


def _table(*headings: str, right: Iterable[str] = ()) -> Table:
    table = Table(*headings, box=None, expand=True, header_style="dim", padding=(0, 2, 0, 0))
    for heading in right:
        table.add_column(heading, justify="right")
    return table
