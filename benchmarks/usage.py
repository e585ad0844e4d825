"""Who used how much CPU and memory: the peer, the broker, the driver, and everybody else ("foreign")."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds since each process started, at one moment."""

    at_s: float
    peer_cpu_s: float
    broker_cpu_s: float
    driver_cpu_s: float
    machine_cpu_s: float
    peer_rss_mib: float


def _with_children(pids: list[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                found[each.pid] = each
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _rss_mib(processes: list[psutil.Process]) -> float:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / _MIB


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    # `steal` is time that the host took from this guest: lost to us like any other foreign load.
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def sample(peer_pids: list[int], broker_pids: list[int]) -> Usage:
    """Usage now; the calling process is the driver. Children of the given processes count with them."""
    peers = _with_children(peer_pids)
    return Usage(
        at_s=time.perf_counter(),
        peer_cpu_s=_cpu_s(peers),
        broker_cpu_s=_cpu_s(_with_children(broker_pids)),
        driver_cpu_s=_cpu_s([psutil.Process(os.getpid())]),
        machine_cpu_s=_machine_cpu_s(),
        peer_rss_mib=_rss_mib(peers),
    )


def foreign_cores(before: Usage, after: Usage) -> float:
    """Mean number of cores used by none of peer, broker and driver between two samples; never below 0."""
    ours_before = before.peer_cpu_s + before.broker_cpu_s + before.driver_cpu_s
    ours_after = after.peer_cpu_s + after.broker_cpu_s + after.driver_cpu_s
    foreign_s = (after.machine_cpu_s - before.machine_cpu_s) - (ours_after - ours_before)
    return max(0.0, foreign_s / max(after.at_s - before.at_s, 1e-9))


def listener_pids(port: int) -> list[int]:
    """Processes of this machine that listen on a TCP port (the broker's); empty for a remote broker."""
    found = []
    for process in psutil.process_iter():
        try:
            sockets = process.net_connections(kind="tcp")
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets):
            found.append(process.pid)
    return found
