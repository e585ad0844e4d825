"""What the soak takes for growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import plot, verdicts


def rows(grows: float) -> list[dict[str, Any]]:
    return [
        {
            "process": process,
            "at_s": at_s,
            "sent": at_s,
            "answered": at_s,
            "p50_ms": 5.0,
            "p99_ms": 9.0 + grows * at_s / 10,
            "rss_mib": (300.0 if at_s < 100 else 70.0) + grows * at_s,
            "open_files": 12 + int(grows * at_s / 10),
            "threads": 4,
        }
        for process in ("aggregate-0", "learn-0")
        for at_s in range(5, 605, 5)
    ]


def test_what_grows_is_told_and_the_start_is_not_counted() -> None:
    flat = {what: is_flat for what, _, _, is_flat in verdicts(rows(0.0))}
    assert all(flat.values())
    assert len(flat) == 8
    grown = {what: is_flat for what, _, _, is_flat in verdicts(rows(0.5))}
    assert [what for what, is_flat in grown.items() if is_flat] == ["aggregate-0 threads", "learn-0 threads", "p50_ms"]


@pytest.mark.slow
def test_the_picture_is_written(tmp_path: Path) -> None:
    plot(rows(0.1), tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000
