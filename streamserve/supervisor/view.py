"""The live view in a terminal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streamserve.supervisor.lines import number, outcome_words, size_words
from streamserve.supervisor.news import ChildFacts, News, Snapshot, State

_KEPT_NEWS = 6
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
    """Everything as one picture: processes, models' batches, weights, news."""
    parts: list[RenderableType] = []
    if snapshot is not None:
        parts.append(_processes(snapshot))
        batches, weights = _batches(snapshot.children), _weights(snapshot.children)
        parts.extend(table for table in (batches, weights) if table.row_count)
    parts.append(Panel(Text("\n".join(news)), title="news", title_align="left", border_style="dim"))
    return Group(*parts)


def _processes(snapshot: Snapshot) -> Table:
    title = f"{snapshot.app} on Kafka at {snapshot.bootstrap_servers}"
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("process")
    table.add_column("state")
    for heading in ("pid", "restarts", "rate/s", "lag", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    table.add_column("outcomes")
    for facts in snapshot.children:
        status: Mapping[str, Any] = facts.status or {}
        table.add_row(
            facts.plan.name,
            Text(str(facts.state), style=_STATE_STYLES.get(facts.state, "dim")),
            str(facts.pid or "-"),
            str(facts.restarts),
            *(number(status.get(key)) for key in ("rate_per_s", "lag_records", "latency_p50_ms", "latency_p99_ms")),
            outcome_words(status.get("outcomes", {})),
        )
    return table


def _batches(children: Iterable[ChildFacts]) -> Table:
    table = Table("process", "model", "last batch (why)", title="batches", title_justify="left", expand=True)
    for facts in children:
        for model, batch in (facts.status or {}).get("batches", {}).items():
            table.add_row(facts.plan.name, model, size_words(batch))
    return table


def _weights(children: Iterable[ChildFacts]) -> Table:
    table = Table("route", "model", "weight", title="weights", title_justify="left", expand=True)
    newest: dict[str, Mapping[str, float]] = {}
    for facts in children:
        newest |= (facts.status or {}).get("weights", {})
    for route, weights in newest.items():
        heaviest = max(weights.values(), default=0.0) or 1.0
        for model, weight in sorted(weights.items(), key=lambda pair: -pair[1]):
            bar = "█" * round(_BAR_CELLS * weight / heaviest)
            table.add_row(route, model, f"{weight:.3f} {bar}")
    return table
