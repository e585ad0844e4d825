"""The command line of a demo."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from examples.common.app import AppFailedError
from examples.common.kafka import AppEndedError
from streamserve.errors import StreamserveError

PROJECT = Path(__file__).resolve().parents[2]
_INTERRUPTED = 130


def exit_code(demo: Callable[[Console], int]) -> int:
    """Of the demo; 1 where it could not be played, 130 on Ctrl-C or SIGTERM."""
    # A width of its own where nothing says one: a report in a log file is not cut at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 130)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return demo(console)
    except (StreamserveError, AppFailedError, AppEndedError) as trouble:
        console.print(f"[bold red]the demo failed:[/] {escape(str(trouble))}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return _INTERRUPTED


def read_options(name: str, about: str | None, *, what: str, rate: float, most_rate: float) -> argparse.Namespace:
    """`seconds`, `rate`, `results`, `seed` of `python -m examples.NAME`, whose load is so many `what` a second."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=about)
    parser.add_argument("--seconds", type=float, default=90.0, help=f"how long {what} are sent (default 90)")
    parser.add_argument("--rate", type=float, default=rate, help=f"{what} a second, on average (default {rate:g})")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / name, help="folder of report and picture")
    parser.add_argument("--seed", type=int, default=0, help=f"another order of {what} and arrivals")
    options = parser.parse_args()
    if not 3 <= options.seconds <= 86_400:
        parser.error(f"--seconds {options.seconds:g}: allowed are 3 to 86400")
    if not 1 <= options.rate <= most_rate:
        parser.error(f"--rate {options.rate:g}: allowed are 1 to {most_rate:g}")
    return options


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
