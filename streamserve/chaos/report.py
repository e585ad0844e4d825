"""What was measured, for people, for programs and for `docs/failures.md`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streamserve.chaos.scene import Options, Result
from streamserve.errors import StreamserveError

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
_HEAD = (
    "| fault | form | lasted s | acknowledged | lost | twice | late | default | expired | longest gap s | "
    "normal again s | p50, p99 before ms |"
)
_ALIGN = "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"


def as_json(result: Result) -> dict[str, Any]:
    """JSON values."""
    return asdict(result)


def in_words(result: Result) -> str:
    """A few lines for a terminal."""
    account, promise = result.account, result.promise
    lines = [
        f"{result.fault} ({result.form}): {account.acknowledged} requests acknowledged, {account.lost} lost, "
        f"{account.twice} answered twice; {account.in_time} in time, {account.late} late, {account.default} default, "
        f"{account.expired} expired",
        f"  the fault lasted {result.lasted_s:.1f} s; longest gap {account.longest_gap_s:.2f} s (promised "
        f"{promise.gap_s:.1f}), normal again after {account.normal_after_s:.2f} s (promised {promise.normal_s:.1f})",
    ]
    if account.deleted:
        lines.append(f"  {account.deleted} requests were deleted from the log before they were read")
    lines += [f"  NOT KEPT: {words}" for words in result.broken]
    if result.broken:
        lines.append(f"  logs of the processes: {result.logs}")
    return "\n".join(lines)


def table(results: Sequence[Result], *, command: str, options: Options, load_before: float) -> str:
    """The measured table in Markdown, with the command that measured it and the state of the machine."""
    now = datetime.now(UTC)
    head = (
        f"`{command}`, {now:%Y-%m-%d}: {options.rate_per_s:,.0f} requests/s, session timeout "
        f"{options.session_s:g} s, {os.cpu_count()} cores shared with other work (load average {load_before:.1f} at "
        f"the start, {os.getloadavg()[0]:.1f} at the end). In brackets what is promised; **bold**: not kept."
    )
    return "\n".join([head, "", _HEAD, _ALIGN, *map(_row, results)])


def _row(result: Result) -> str:
    account, promise = result.account, result.promise
    lost = f"{account.lost}" if not account.deleted else f"{account.lost} (+ {account.deleted} deleted unread)"
    cells = [
        result.fault,
        result.form,
        f"{result.lasted_s:.1f}",
        f"{account.acknowledged:,}",
        _kept(lost, account.lost == 0),
        _kept(f"{account.twice} ({promise.twice})", account.twice <= promise.twice),
        f"{account.late:,}",
        f"{account.default:,}",
        f"{account.expired:,}",
        _kept(f"{account.longest_gap_s:.2f} ({promise.gap_s:.1f})", account.longest_gap_s <= promise.gap_s),
        _kept(f"{account.normal_after_s:.2f} ({promise.normal_s:.1f})", account.normal_after_s <= promise.normal_s),
        f"{account.p50_ms:.0f}, {account.p99_ms:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _kept(text: str, kept: bool) -> str:
    return text if kept else f"**{text}**"


def write_between(file: Path, text: str) -> None:
    """Replace what stands between the two marker lines. Raises StreamserveError where they are not there."""
    try:
        before, rest = file.read_text("utf-8").split(f"{BEGIN}\n", 1)
        _, after = rest.split(END, 1)
    except (OSError, ValueError):
        raise StreamserveError(
            f"{file}: it must have the lines {BEGIN} and {END}; the table goes between them"
        ) from None
    file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")
