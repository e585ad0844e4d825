"""The tables that a run prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.peers.catalogue import LEGEND
from benchmarks.results import FOREIGN_CORES_LIMIT, Results, Row, loudness
from benchmarks.targets import Target, honesty, targets

_NONE = "-"


def _number(value: float | None, form: str = ",.0f") -> str:
    return _NONE if value is None else format(value, form)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _loud(rows: list[Row]) -> str:
    loud = sum(loudness([row]) > FOREIGN_CORES_LIMIT for row in rows)
    return f"{loud} of {len(rows)}" if loud else ""


def _where(row: Row) -> str:
    rate = f" at {row['offered_per_s']:,.0f}/s" if row.get("offered_per_s") else ""
    return f"in {row['section']} {row['peer']}{rate} run {row['run']}"


def drain_table(results: Results) -> Table:
    table = _table("Drained", "peer", "requests/s", "runs", "x hand", "CPU ms/1,000", "RSS MiB", "loud runs")
    for peer in results.peers("drain"):
        rates = results.by_run("drain", peer, "rate_per_s")
        cpu_s = results.median("drain", peer, "cpu_s_per_1000")
        table.add_row(
            peer,
            _number(results.median("drain", peer, "rate_per_s")),
            " ".join(_number(rate) for rate in rates.values()),
            _number(results.ratio("drain", peer, "hand", "rate_per_s"), ".2f"),
            _number(None if cpu_s is None else 1_000 * cpu_s, ".1f"),
            _number(results.median("drain", peer, "rss_mib")),
            _loud([row for row in results.rows if (row["section"], row["peer"]) == ("drain", peer)]),
        )
    return table


def live_table(results: Results, section: str, title: str) -> Table:
    columns = ("offered/s", "p50 ms", "p99 ms", "p50 x hand", "p99 x hand", "CPU ms/1,000", "RSS MiB", "loud runs")
    table = _table(title, "peer", *columns)
    for rate in results.rates(section):
        for peer in results.peers(section):
            if not results.by_run(section, peer, "p50_ms", rate):
                continue
            cpu_s = results.median(section, peer, "cpu_s_per_1000", rate)
            own = [
                row
                for row in results.rows
                if (row["section"], row["peer"], row.get("offered_per_s")) == (section, peer, rate)
            ]
            table.add_row(
                peer,
                _number(rate),
                _number(results.median(section, peer, "p50_ms", rate), ".2f"),
                _number(results.median(section, peer, "p99_ms", rate), ".1f"),
                _number(results.ratio(section, peer, "hand", "p50_ms", rate), ".2f"),
                _number(results.ratio(section, peer, "hand", "p99_ms", rate), ".2f"),
                _number(None if cpu_s is None else 1_000 * cpu_s, ".1f"),
                _number(results.median(section, peer, "rss_mib", rate)),
                _loud(own),
            )
    return table


def target_table(wanted: list[Target]) -> Table:
    table = _table("Numbers to reach", "what", "measured", "wanted", "")
    words = {True: "reached", False: "MISSED", None: "not measured"}
    for target in wanted:
        sign = ">=" if target.at_least else "<="
        table.add_row(target.text, _number(target.measured, ",.3g"), f"{sign} {target.limit:,g}", words[target.reached])
    return table


def print_report(console: Console, results: Results) -> None:
    if results.peers("drain"):
        console.print(drain_table(results))
    if results.peers("latency"):
        console.print(live_table(results, "latency", "Open loop, Poisson arrivals"))
    if results.peers("sustained"):
        console.print(live_table(results, "sustained", "Held rate"))
    for peer, words in LEGEND.items():
        if any(row["peer"] == peer for row in results.rows):
            console.print(f"  {peer}: {words}", highlight=False)
    console.print(target_table([honesty(results), *targets(results)]))
    for row in results.late():
        console.print(f"NOT OK {_where(row)}: {row['not_ok']:,}, counted as at least the deadline", highlight=False)
    for row in results.wrong():
        trouble = ", ".join(f"{row[name]} {name}" for name in ("missing", "duplicates", "wrong", "not_ok") if row[name])
        console.print(f"WRONG ANSWERS {_where(row)}: {trouble} of {row['requests']}", highlight=False)
    for failure in results.failures:
        console.print(f"FAILED {failure}", markup=False, highlight=False)
    if honesty(results).reached is False:
        console.print("INVALID: the hand-written loop is too slow beside the echo loop; no ratio of this run counts.")
