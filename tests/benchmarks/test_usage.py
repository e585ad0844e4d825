from __future__ import annotations

import os
import socket
import subprocess
import sys

from benchmarks import usage
from benchmarks.usage import Usage

_BUSY_CPU_S = 0.3
_BUSY_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', '''
import time
while time.process_time() < {_BUSY_CPU_S}: pass
print("done", flush=True)
input()
'''], stdin=subprocess.PIPE)
input()
child.communicate(b"x")
"""


def test_cpu_of_children_counts_with_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", _BUSY_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"done\n"
        seen = usage.sample([parent.pid], [])
        parent.communicate(b"x\n")
    assert seen.peer_cpu_s >= _BUSY_CPU_S * 0.9
    assert seen.peer_rss_mib > 5
    assert seen.broker_cpu_s == 0


def test_a_process_that_is_gone_counts_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert usage.sample([process.pid], []).peer_cpu_s == 0


def _usage(at_s: float, machine_cpu_s: float, peer: float = 0, broker: float = 0, driver: float = 0) -> Usage:
    return Usage(
        at_s=at_s,
        peer_cpu_s=peer,
        broker_cpu_s=broker,
        driver_cpu_s=driver,
        machine_cpu_s=machine_cpu_s,
        peer_rss_mib=0,
    )


def test_foreign_load_is_what_remains_of_the_machine() -> None:
    before = _usage(10.0, 100.0)
    after = _usage(12.0, 103.0, peer=1.0, broker=0.5, driver=0.5)
    assert usage.foreign_cores(before, after) == 0.5


def test_foreign_load_is_never_negative() -> None:
    # The kernel counts the machine in ticks and processes exactly: the sums may cross.
    assert usage.foreign_cores(_usage(0.0, 0.0), _usage(1.0, 0.9, peer=1.0)) == 0.0


def test_the_listener_of_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert usage.listener_pids(server.getsockname()[1]) == [os.getpid()]
