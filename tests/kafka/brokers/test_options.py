"""Places, options and files of a Kafka of our own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import BrokerOptions, read_status, state_folder, stop_recorded
from streamserve.kafka.brokers.options import NodePlace, node_properties, write_properties
from streamserve.kafka.brokers.ports import HOST, free_ports, is_free
from streamserve.kafka.brokers.probe import live_brokers
from streamserve.kafka.brokers.state import BrokerRecord, NodeRecord, write_record
from streamserve.places import cache_folder


def test_places_follow_our_variable_then_xdg_then_home() -> None:
    assert cache_folder({"STREAMSERVE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/streamserve")
    assert cache_folder({}) == Path.home() / ".cache/streamserve"
    assert state_folder("x", {"STREAMSERVE_STATE": "/a"}) == Path("/a/x/broker")
    assert state_folder("x", {"XDG_STATE_HOME": "/b"}) == Path("/b/streamserve/x/broker")
    assert state_folder("x", {}) == Path.home() / ".local/state/streamserve/x/broker"


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_a_name_cannot_leave_the_state_folder(name: str) -> None:
    with pytest.raises(BrokerError, match="name"):
        state_folder(name)


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    for wrong, words in (({"nodes": 2}, "1 or 3"), ({"port": 70_000}, "port 70000"), ({"profile": "x"}, "profile")):
        with pytest.raises(BrokerError, match=words):
            BrokerOptions(state_dir=tmp_path, **wrong)


def test_three_nodes_replicate_and_extra_settings_win(tmp_path: Path) -> None:
    nodes = [NodePlace(node_id=i, port=i, controller_port=10 + i, folder=tmp_path) for i in (1, 2, 3)]
    settings = node_properties(nodes[1], nodes, {"num.partitions": "7"})
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:2"
    assert settings["default.replication.factor"] == "3"
    assert settings["min.insync.replicas"] == "2"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["num.partitions"] == "7"
    assert int(settings["message.max.bytes"]) > 8 * 1024 * 1024


def test_properties_are_escaped_as_java_reads_them(tmp_path: Path) -> None:
    write_properties(tmp_path / "p", {"a": "C:\\x\ny", "b": "Möwe 🜁"})
    assert (tmp_path / "p").read_bytes() == b"a=C:\\\\x\\ny\nb=M\\u00f6we \\ud83d\\udf01\n"


def test_free_ports_are_different_and_a_taken_one_is_seen() -> None:
    assert len(set(free_ports(20))) == 20
    with socket.create_server((HOST, 0)) as taken:
        assert not is_free(taken.getsockname()[1])


def test_the_probe_takes_no_answer_and_nonsense_for_no_broker() -> None:
    with socket.create_server((HOST, 0)) as silent:
        assert live_brokers(HOST, silent.getsockname()[1], 0.05) is None
    with socket.create_server((HOST, 0)) as other:
        thread = threading.Thread(target=answer_as_http, args=(other,))
        thread.start()
        assert live_brokers(HOST, other.getsockname()[1], 10.0) is None
        thread.join()


def answer_as_http(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_stale_state_file_is_neither_believed_nor_obeyed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        node = NodeRecord(node_id=1, pid=bystander.pid, mark="an earlier one", port=1, controller_port=2, log="log")
        record = BrokerRecord(
            bootstrap_servers="127.0.0.1:1",
            cluster_id="c",
            kafka_version="v",
            started_at_ms=1,
            detached=True,
            nodes=(node,),
        )
        write_record(tmp_path, record)
        now = read_status(tmp_path)
        assert (now.running, now.ready, now.ended_unasked) == (False, False, True)
        assert stop_recorded(tmp_path, timeout_s=1.0) is False
        assert bystander.poll() is None
    assert read_status(tmp_path).ended_unasked is False


def test_a_state_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"version": 99}), "utf-8")
    with pytest.raises(BrokerError, match="another version"):
        read_status(tmp_path)
