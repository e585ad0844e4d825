"""The verdicts of the overload run."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from benchmarks.overload import SEARCHED, TIMES, phases, report


def row(phase: str, goodput: float, **changes: Any) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("offered_per_s", "p50_ms", "p99_ms", "refused_p50_ms", "refused_p99_ms", "last_bad_ms", "rss_mib"), 1.0
    )
    return {
        "phase": phase,
        "goodput_per_s": goodput,
        "expired": 0,
        "missing": 0,
        "twice": 0,
        "sent_late_ms": 1.0,
        **figures,
        **changes,
    }


def run(at_ten: float, **changes: Any) -> bool:
    names = [phase.name for phase in phases(3.0)]
    rows = [row(name, 1_000.0, refused_p50_ms=None) for name in names]  # nobody was refused
    rows[names.index("10x")] = row("10x", at_ten, **changes)
    return report(Console(quiet=True), rows)


def test_nine_tenths_of_the_best_loads_goodput_are_asked_for() -> None:
    assert run(900.0)
    assert not run(899.0)


def test_a_request_without_a_record_or_with_two_is_a_miss() -> None:
    assert not run(1_000.0, missing=1)
    assert not run(1_000.0, twice=1)


def test_each_overload_is_followed_by_a_light_load() -> None:
    names = [phase.name for phase in phases(30.0)]
    for times in TIMES:
        assert names[names.index(f"{times:.0f}x") + 1] == f"after {times:.0f}x"
    assert {f"{share:.1f}x" for share in SEARCHED} < set(names)
