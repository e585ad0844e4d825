"""A broker of ours as another process finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import await_ready, state_folder, stop_command
from streamserve.kafka.brokers.state import read_record, write_record
from tests.kafka.brokers.recorded import running


def test_a_broker_that_never_answers_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    running(folder, "127.0.0.1:1")
    with pytest.raises(BrokerError, match=r"is not ready: it does not answer after 0 s; .* broker stop --state-dir"):
        await_ready(folder, 0.0)


def test_a_broker_that_ends_while_it_starts_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    running(folder, "127.0.0.1:1")
    record = read_record(folder)
    assert record is not None
    write_record(folder, replace(record, nodes=(replace(record.nodes[0], mark="another process"),)))
    with pytest.raises(BrokerError, match="node 1 of it has ended"):
        await_ready(folder, 60.0)
    with pytest.raises(BrokerError, match="it has ended"):
        await_ready(tmp_path / "nothing", 60.0)


def test_the_command_that_stops_a_broker_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path))
    assert stop_command(state_folder("default")) == "streamserve broker stop"
    assert stop_command(state_folder("two")) == "streamserve broker stop --name two"
    for folder, quoted in (("-x/broker", "-x/broker"), ("two", "two"), ("a b/broker", "a b/broker")):
        words = stop_command(tmp_path / folder)
        assert words.startswith("streamserve broker stop --state-dir ")
        assert quoted in words
    assert stop_command(Path("/a b")) == "streamserve broker stop --state-dir '/a b'"
