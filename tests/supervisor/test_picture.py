"""The picture of the live view: true, and within the terminal, whatever its size."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from streamserve.supervisor.news import ChildFacts, Snapshot, State
from streamserve.supervisor.picture import Picture, share
from streamserve.supervisor.plan import ProcessPlan
from tests.effort import examples
from tests.supervisor.samples import STATUS, snapshot


def picture(of: Snapshot | None, *news: str, width: int = 140, height: int = 40, whole: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(Picture(of, news, whole=whole))
    return captured.get()


def line(text: str, start: str) -> list[str]:
    """The words of the one line that begins so."""
    (found,) = [line.split() for line in text.splitlines() if line.startswith(start)]
    return found


def big(models: int, routes: int, processes: int, *, learns: bool = True) -> Snapshot:
    """An app of so many, every figure of which is long."""
    names = [f"some-long-model-name-{index}@2026-12-01" for index in range(models)]
    outcomes = {"ok": 10_000_000, "partial": 2_000, "default": 30, "error": 4, "expired": 5}
    figures = {"rate_per_s": 12_345.0, "latency_p50_ms": 123.0, "latency_p99_ms": 1_234.0, "outcomes": outcomes}
    status: dict[str, Any] = STATUS | {
        "routes": {f"route-{index}": figures for index in reversed(range(routes))},
        "batches": {name: {"size": 500, "why": "floor"} for name in names},
        "weights": {f"route-{index}": dict.fromkeys(names, 1 / models) for index in range(routes)} if learns else {},
    }
    children = tuple(
        ChildFacts(
            plan=ProcessPlan(role="worker", instance=index, pool="main"),
            state=State.WAITING if index == processes - 1 else State.SERVING,
            pid=4_000_000 + index,
            metrics_port=9000,
            restarts=0,
            status=status if index == 0 else None,
        )
        for index in range(processes)
    )
    return Snapshot(app="big", bootstrap_servers="host:1", children=children)


def test_it_shows_processes_routes_and_models() -> None:
    text = picture(snapshot(STATUS), "something happened")
    assert "tiny on Kafka at host:1" in text
    assert line(text, "worker-main-0") == ["worker-main-0", "serving", "4711", "1", "201", "3", "5"]
    assert line(text, "digits") == ["digits", "worker-main-0", "199", "4", "9.5", "ok", "1,003", "partial", "2"]
    assert line(text, "forest@1") == ["forest@1", "worker-main-0", "12", "(drained)", "0.710", "█" * 24]
    assert line(text, "linear@1") == ["linear@1", "0.290", "█" * 10]
    assert "something happened" in text


def test_it_shows_processes_that_have_said_nothing_yet() -> None:
    text = picture(snapshot())
    assert line(text, "worker-main-0")[1] == "serving"
    assert "outcomes" not in text
    assert "starting Kafka" in picture(None, "starting Kafka")


def test_of_long_news_a_low_terminal_shows_the_beginning() -> None:
    text = picture(big(3, 3, 3), "older", "newest " + "x" * 100, width=40, height=14)
    assert text.splitlines()[-1].startswith("newest xxx")
    assert "older" not in text


@settings(max_examples=examples(30))
@given(
    columns=st.integers(40, 200),
    lines=st.integers(14, 80),
    models=st.integers(1, 30),
    routes=st.integers(1, 30),
    processes=st.integers(1, 20),
)
@example(columns=60, lines=14, models=1, routes=1, processes=1)
def test_it_fits_the_terminal_and_what_has_no_room_is_counted(
    columns: int, lines: int, models: int, routes: int, processes: int
) -> None:
    text = picture(big(models, routes, processes), *["x" * 300] * 6, "the newest", width=columns, height=lines)
    drawn = text.splitlines()
    assert len(drawn) <= lines
    assert max(cell_len(row) for row in drawn) <= columns
    assert "the newest" in drawn[-1]
    rows = sum(row.startswith(("worker-main", "route-", "some-long")) for row in drawn)
    more = sum(int(row.split()[1]) for row in drawn if row.startswith("… "))
    assert rows + more == processes + routes + models + (routes if routes > 1 else 0)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_figures_are_never_cut(columns: int) -> None:
    text = picture(big(3, 2, 2), width=columns, height=60)
    route = next(row for row in text.splitlines() if row.startswith("route-0"))
    assert {"12,345", "1,234"} <= set(route.split())


def test_rows_keep_their_places_and_trouble_comes_first() -> None:
    text = picture(big(11, 11, 3), height=200)
    routes = [row.split()[0] for row in text.splitlines() if row.startswith("route-")]
    assert routes == [f"route-{index}" for index in range(11)] * 2
    models = [row.split()[0] for row in text.splitlines() if row.startswith("some-long")]
    assert models == [f"some-long-model-name-{index}@2026-12-01" for index in range(11)]
    processes = [row.split()[:2] for row in text.splitlines() if row.startswith("worker-")]
    assert processes == [["worker-main-2", "waiting"], ["worker-main-0", "serving"], ["worker-main-1", "serving"]]


def test_weights_of_several_routes_have_a_line_each() -> None:
    text = picture(snapshot(STATUS | {"weights": {"b": {"forest@1": 1.0}, "a": {"forest@1": 0.2, "linear@1": 0.8}}}))
    assert line(text, "a ") == ["a", "linear@1", "0.80", "forest@1", "0.20"]
    assert line(text, "b ") == ["b", "forest@1", "1.00"]
    assert line(text, "forest@1") == ["forest@1", "worker-main-0", "12", "(drained)"]


def test_the_whole_of_it_is_drawn_where_asked() -> None:
    text = picture(big(12, 8, 4), width=80, height=24, whole=True)
    assert "more" not in text
    assert len(text.splitlines()) > 24


@given(room=st.integers(0, 100), wanted=st.lists(st.integers(1, 40), max_size=5))
def test_rooms_are_shared_fairly(room: int, wanted: list[int]) -> None:
    got = share(room, wanted)
    assert all(1 <= lines <= most for lines, most in zip(got, wanted, strict=True))
    assert sum(got) <= max(room, len(wanted))
    if sum(wanted) > room >= len(wanted):
        assert sum(got) == room, "no line is left while a section wants one"
        cut = [lines for lines, most in zip(got, wanted, strict=True) if lines < most]
        assert max(cut) >= max(got) - 1
