"""How everything stands, as one picture that fits the terminal it is drawn in: one line a row, none lost unsaid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from streamserve.supervisor.lines import newest_weights, number, outcome_words, size_words, weight_words
from streamserve.supervisor.news import ChildFacts, Snapshot, State

_STATE_STYLES = {State.SERVING: "green", State.STARTING: "yellow", State.WAITING: "red"}
_MOST_NEWS_LINES = 12
_LEAST_NEWS_LINES = 3
_LOW_LINES = 20
"""A terminal lower than this keeps one line for news."""
_BAR_CELLS_FROM_COLUMNS = ((100, 24), (70, 12), (0, 0))


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    right: bool = False
    """A figure: never cut. What is no figure ends in an ellipsis where there is no room."""
    from_columns: int = 0
    """Left out in a terminal narrower than this."""


@dataclass(frozen=True, slots=True)
class _Section:
    columns: tuple[_Column, ...]
    rows: list[tuple[str | Text, ...]]


@dataclass(frozen=True, slots=True)
class Picture:
    """Processes, routes, models, weights, news. `whole`: all of it, however high."""

    snapshot: Snapshot | None
    news: Sequence[str]
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = options.max_width
        lines = options.height or console.size.height
        sections: list[_Section] = []
        if self.snapshot is not None:
            head = f"{self.snapshot.app} on Kafka at {self.snapshot.bootstrap_servers}"
            yield Text(head, style="bold", no_wrap=True, overflow="ellipsis")
            sections = [section for section in _sections(self.snapshot.children, columns) if section.rows]
        least_news = 1 if lines < _LOW_LINES else _LEAST_NEWS_LINES
        room = lines - 2 - least_news - len(sections)
        wanted = [len(section.rows) for section in sections]
        shown = wanted if self.whole else share(room, wanted)
        for section, rows in zip(sections, shown, strict=True):
            yield _table(section, rows, columns)
        yield Rule("news", align="left", style="dim")
        left = least_news + max(0, room - sum(shown))
        low = left < _LEAST_NEWS_LINES  # then what a line begins with says more than what it ends with
        news = Text("\n".join(self.news), no_wrap=low, overflow="ellipsis" if low else "fold")
        told = console.render_lines(news, options.update(height=None), pad=False)
        for line in told[-min(left, _MOST_NEWS_LINES) :]:
            yield from line
            yield Segment.line()


def share(room: int, wanted: Sequence[int]) -> list[int]:
    """Of `room` lines what each section gets: all that it wants, or as much as the others that do not get all."""
    got = [0] * len(wanted)
    for left in reversed(range(1, len(wanted) + 1)):  # the most modest first: what it leaves is the others'
        index = min((at for at in range(len(wanted)) if not got[at]), key=lambda at: wanted[at])
        got[index] = max(1, min(wanted[index], room // left))
        room -= got[index]
    return got


def _sections(children: Sequence[ChildFacts], columns: int) -> list[_Section]:
    weights = newest_weights(children)
    return [_processes(children), _routes(children), _models(children, weights, columns), _weights(weights)]


def _processes(children: Iterable[ChildFacts]) -> _Section:
    """Those in trouble first: they are seen where not all have room."""
    rows: list[tuple[str | Text, ...]] = []
    for facts in sorted(children, key=lambda facts: facts.state is State.SERVING):
        status: Mapping[str, Any] = facts.status or {}
        rows.append(
            (
                facts.plan.name,
                Text(str(facts.state), style=_STATE_STYLES.get(facts.state, "dim")),
                str(facts.pid or "-"),
                str(facts.restarts),
                *(number(status.get(key)) for key in ("consumed_per_s", "lag_records", "queued_records")),
            )
        )
    wide = (_Column("pid", right=True, from_columns=70), _Column("restarts", right=True, from_columns=70))
    figures = (_Column("reads/s", right=True), _Column("lag", right=True))
    queued = _Column("queued", right=True, from_columns=70)
    return _Section((_Column("process"), _Column("state"), *wide, *figures, queued), rows)


def _routes(children: Iterable[ChildFacts]) -> _Section:
    rows: list[tuple[str | Text, ...]] = []
    for facts in children:
        for route, figures in (facts.status or {}).get("routes", {}).items():
            numbers = (number(figures.get(key)) for key in ("rate_per_s", "latency_p50_ms", "latency_p99_ms"))
            rows.append((route, facts.plan.name, *numbers, outcome_words(figures.get("outcomes", {}))))
    rows.sort(key=lambda row: [_in_order(str(cell)) for cell in row[:2]])
    numbered = (
        _Column("answers/s", right=True),
        _Column("p50 ms", right=True, from_columns=60),
        _Column("p99 ms", right=True),
    )
    return _Section((_Column("route"), _Column("by", from_columns=80), *numbered, _Column("outcomes")), rows)


def _models(children: Iterable[ChildFacts], weights: Mapping[str, Mapping[str, float]], columns: int) -> _Section:
    """With the weights as bars where one route learns; else the routes' weights have lines of their own."""
    of_one = next(iter(weights.values())) if len(weights) == 1 else {}
    cells = next(cells for least, cells in _BAR_CELLS_FROM_COLUMNS if columns >= least)
    rows: list[tuple[str | Text, ...]] = []
    seen = set()
    for facts in children:
        for model, batch in sorted(
            (facts.status or {}).get("batches", {}).items(), key=lambda pair: _in_order(pair[0])
        ):
            seen.add(model)
            rows.append((model, facts.plan.name, size_words(batch), _weight_bar(model, of_one, cells)))
    rows.extend(
        (model, "", "", _weight_bar(model, of_one, cells)) for model in sorted(set(of_one) - seen, key=_in_order)
    )
    weight = (_Column("weight"),) if of_one else ()
    shown = (_Column("model"), _Column("in", from_columns=60), _Column("last batch (why)"), *weight)
    return _Section(shown, [row[: len(shown)] for row in rows])


def _weights(weights: Mapping[str, Mapping[str, float]]) -> _Section:
    rows: list[tuple[str | Text, ...]] = [(route, weight_words(of_models)) for route, of_models in weights.items()]
    rows.sort(key=lambda row: _in_order(str(row[0])))
    return _Section((_Column("route"), _Column("weights, the heaviest first")), rows if len(weights) > 1 else [])


def _weight_bar(model: str, weights: Mapping[str, float], cells: int) -> str:
    if model not in weights:
        return ""
    heaviest = max(weights.values()) or 1.0
    return f"{weights[model]:.3f} {'█' * round(cells * weights[model] / heaviest)}".rstrip()


def _table(section: _Section, lines: int, columns: int) -> Table:
    """A heading and `lines` rows; where there are more, the last one says how many."""
    kept = [index for index, column in enumerate(section.columns) if columns >= column.from_columns]
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for index in kept:
        column = section.columns[index]
        table.add_column(_cell(column.heading), justify="right" if column.right else "left", no_wrap=column.right)
    shown = section.rows if lines >= len(section.rows) else section.rows[: lines - 1]
    for row in shown:
        table.add_row(*(_cell(row[index]) for index in kept))
    if len(shown) < len(section.rows):
        table.add_row(Text(f"… {len(section.rows) - len(shown)} more", style="dim", no_wrap=True))
    return table


def _cell(of: str | Text) -> Text:
    cell = Text(of) if isinstance(of, str) else of
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def _in_order(name: str) -> list[tuple[int, str]]:
    """`model-2` before `model-10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
