"""Processes that are not our children."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def alive(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run after `timeout_s`; returns as soon as there are none.

    What has ended counts as gone before its new parent has asked for its exit code: in a container that may be seconds
    later, or never.
    """
    until_s = time.monotonic() + timeout_s
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < until_s:
        time.sleep(0.01)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
