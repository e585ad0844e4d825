from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import print_report
from benchmarks.results import COLUMNS, Results, append_csv, quietest
from benchmarks.targets import honesty, targets


def _drained(results: Results, peer: str, *rates: float) -> None:
    for run, rate in enumerate(rates, start=1):
        results.add("drain", peer, run, {"rate_per_s": rate, "requests": 10, "cpu_s_per_1000": 0.01})


def test_ratio_pairs_the_runs() -> None:
    results = Results()
    _drained(results, "hand", 100.0, 50.0, 100.0)
    _drained(results, "fused", 90.0, 45.0, 80.0)
    assert results.ratio("drain", "fused", "hand", "rate_per_s") == pytest.approx(0.9)
    assert results.median("drain", "hand", "rate_per_s") == 100.0


def test_what_was_not_measured_is_none() -> None:
    results = Results()
    assert results.median("drain", "hand", "rate_per_s") is None
    assert results.ratio("drain", "fused", "hand", "rate_per_s") is None
    assert all(target.reached is None for target in [honesty(results), *targets(results)])


def test_rates_of_an_open_loop_are_kept_apart() -> None:
    results = Results()
    results.add("latency", "hand", 1, {"offered_per_s": 200.0, "p50_ms": 2.0})
    results.add("latency", "hand", 1, {"offered_per_s": 1_000.0, "p50_ms": 4.0})
    assert results.median("latency", "hand", "p50_ms", 1_000.0) == 4.0
    assert results.rates("latency") == [200.0, 1_000.0]


def test_a_figure_without_a_column_is_refused() -> None:
    with pytest.raises(ValueError, match="furlongs"):
        Results().add("drain", "hand", 1, {"furlongs": 1})


@pytest.mark.parametrize(("hand", "is_honest"), [(36.0, True), (34.0, False)])
def test_a_slow_hand_written_loop_makes_the_run_invalid(hand: float, is_honest: bool) -> None:
    results = Results()
    _drained(results, "echo", 100.0)
    _drained(results, "hand", hand)
    assert honesty(results).reached is is_honest
    output = io.StringIO()
    print_report(Console(file=output, width=120), results)
    assert ("INVALID" in output.getvalue()) is not is_honest


def test_wrong_answers_and_failures_are_named() -> None:
    results = Results()
    results.add("drain", "fused", 2, {"requests": 10, "missing": 0, "duplicates": 0, "wrong": 3, "not_ok": 0})
    late = {"offered_per_s": 200.0, "missing": 0, "duplicates": 0, "wrong": 0, "not_ok": 5}
    results.add("latency", "fused", 1, late)
    assert [row["section"] for row in results.wrong()] == ["drain"]
    results.failures.append("drain bytewax run 1: the peer ended with 1")
    output = io.StringIO()
    print_report(Console(file=output, width=120), results)
    assert "WRONG ANSWERS in drain fused run 2: 3 wrong of 10" in output.getvalue()
    assert "NOT OK in latency fused at 200/s run 1: 5" in output.getvalue()
    assert "FAILED drain bytewax run 1" in output.getvalue()


def test_targets_of_a_good_run_are_reached() -> None:
    results = Results()
    _drained(results, "hand", 100_000.0)
    _drained(results, "fused", 85_000.0)
    _drained(results, "fused-16", 21_000.0)
    _drained(results, "single", 3_000.0)
    by_text = {target.text: target.reached for target in targets(results)}
    assert by_text["fused / hand, drained"] is True
    assert by_text["fused, CPU ms per 1,000"] is True
    assert by_text["fused-16, requests/s"] is True
    assert by_text["fused / single, drained"] is True
    assert by_text["three-hop / chain, p50 at 1,000/s"] is None


def test_a_growing_queue_misses_its_target() -> None:
    results = Results()
    held = {"offered_per_s": 20_000.0, "p99_ms": 30.0, "rss_start_mib": 100.0}
    results.add("sustained", "fused", 1, {**held, "growth": 9.0, "backlog_s": 4.0, "rss_mib": 120.0})
    results.add("sustained", "hand", 1, held)
    missed = {target.text for target in targets(results) if target.reached is False}
    assert missed == {
        "fused, p50 of the last third / of the first",
        "fused, backlog at the end in s of requests",
        "fused, memory end / start - 1",
    }


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_is_appended_to_and_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "tabular.csv"
    row = {"section": "drain", "peer": "hand", "run": 1, "rate_per_s": 93_460.123456}
    append_csv(path, {"python": "3.11"}, [row])
    append_csv(path, {"python": "3.12"}, [row])
    rows = _read(path)
    assert list(rows[0]) == list(COLUMNS)
    assert [each["python"] for each in rows] == ["3.11", "3.12"]
    assert rows[0]["rate_per_s"] == "93460.1"
    assert rows[0]["p50_ms"] == ""


def test_csv_with_other_columns_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "tabular.csv"
    path.write_text("old,columns\n1,2\n", encoding="utf-8")
    append_csv(path, {}, [{"section": "drain", "peer": "hand", "run": 1}])
    assert (tmp_path / "tabular.old.csv").read_text(encoding="utf-8") == "old,columns\n1,2\n"
    assert len(_read(path)) == 1


@pytest.mark.parametrize(
    ("foreign", "repeats", "kept"),
    [([0.1, 0.0], 1, 0.1), ([0.9, 0.1, 0.0], 2, 0.1), ([0.9, 0.5], 1, 0.5), ([0.9, 0.1], 0, 0.9)],
)
def test_a_loud_measurement_is_repeated_and_the_quietest_counts(
    foreign: list[float], repeats: int, kept: float
) -> None:
    attempts = iter(foreign)
    assert quietest(lambda: [{"foreign_cores": next(attempts)}], repeats) == [{"foreign_cores": kept}]
