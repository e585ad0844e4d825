"""A Kafka of our own: started, stopped, killed, and never left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import BrokerOptions, OwnBroker, guard, prepare, read_status, stop_recorded
from streamserve.kafka.brokers.options import NodePlace
from streamserve.kafka.brokers.own import refuse_full_disk
from streamserve.kafka.brokers.ports import HOST
from streamserve.kafka.brokers.process import start_mark

if TYPE_CHECKING:
    from streamserve.testing.broker_fixture import BrokerForTests

GONE_TIMEOUT_S = 15.0


def make_topic(bootstrap_servers: str, name: str, replication: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=replication)])[name].result(20)


def topics(bootstrap_servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=20).topics)


def produce(bootstrap_servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": 9_000_000})
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failures == []


@pytest.mark.broker
def test_a_broker_starts_and_stops_fast(tmp_path: Path) -> None:
    prepare()
    start_s, stop_s = [], []
    for attempt in range(3):  # the quickest counts: other work on the machine only adds to the others
        broker = OwnBroker(BrokerOptions(state_dir=tmp_path / str(attempt)))
        began_s = time.monotonic()
        broker.start()
        ready_s = time.monotonic()
        broker.stop()
        start_s.append(ready_s - began_s)
        stop_s.append(time.monotonic() - ready_s)
    # Measured 0.7-1.3 s and 0.2-0.4 s.
    assert min(start_s) <= 2.0
    assert min(stop_s) <= 1.0


@pytest.mark.broker
@pytest.mark.beside
def test_a_broker_keeps_its_data(tmp_path: Path) -> None:
    folder = tmp_path / "Möwe Daten"
    broker = OwnBroker(BrokerOptions(state_dir=folder))
    address = broker.start()
    try:
        now = broker.status()
        assert (now.running, now.ready, now.bootstrap_servers) == (True, True, address)
        make_topic(address, "kept")
    finally:
        broker.stop()
    assert broker.status().running is False
    with OwnBroker(BrokerOptions(state_dir=folder)) as again:
        assert "kept" in topics(again.bootstrap_servers)


@pytest.mark.broker
@pytest.mark.beside
def test_records_of_eight_mebibytes_fit(broker: BrokerForTests) -> None:
    make_topic(broker.bootstrap_servers, "large")
    produce(broker.bootstrap_servers, "large", b"x" * (8 * 1024 * 1024 - 1024))


@pytest.mark.broker
@pytest.mark.beside
def test_topics_are_not_made_by_accident(broker: BrokerForTests) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.list_topics("misspelt", timeout=10)
    assert "misspelt" not in topics(broker.bootstrap_servers)


@pytest.mark.broker
@pytest.mark.beside
def test_a_killed_node_comes_back_with_its_data(tmp_path: Path) -> None:
    with OwnBroker(BrokerOptions(state_dir=tmp_path)) as broker:
        make_topic(broker.bootstrap_servers, "survives")
        pid = broker.pids[1]
        broker.kill_node(1)
        assert not psutil.pid_exists(pid)
        assert broker.status().running is False
        broker.start_node(1)
        assert broker.status().ready
        assert "survives" in topics(broker.bootstrap_servers)


@pytest.mark.broker
@pytest.mark.beside
def test_two_brokers_never_share_a_folder_nor_one_changes_size(tmp_path: Path) -> None:
    with OwnBroker(BrokerOptions(state_dir=tmp_path)) as first:
        with pytest.raises(BrokerError, match=rf"already runs in .*{first.bootstrap_servers}"):
            OwnBroker(BrokerOptions(state_dir=tmp_path)).start()
        assert first.status().ready
    with pytest.raises(BrokerError, match=r"data of a broker of 1 node\(s\), 3 asked for"):
        OwnBroker(BrokerOptions(state_dir=tmp_path, nodes=3)).start()


@pytest.mark.broker
@pytest.mark.beside
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use"):
            OwnBroker(BrokerOptions(state_dir=tmp_path, port=port)).start()
    with OwnBroker(BrokerOptions(state_dir=tmp_path, port=port)) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"


@pytest.mark.broker
@pytest.mark.beside
def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(BrokerError, match=r"cannot write .*/file/broker \(Not a directory\).*STREAMSERVE_STATE"):
        OwnBroker(BrokerOptions(state_dir=tmp_path / "file" / "broker")).start()


def test_a_full_disk_is_told_before_kafka_waits_on_it(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=rf"only 31\.5 MiB are free .*{tmp_path}.* needs 32 "):
        refuse_full_disk(tmp_path, 63 << 19)
    refuse_full_disk(tmp_path, 32 << 20)


class UnluckyBroker(OwnBroker):
    """Its first choice of ports was free at the look and is taken when Kafka binds."""

    lost_port = 0

    def _choose_places(self) -> list[NodePlace]:
        (place,) = super()._choose_places()
        if self.lost_port:
            port, self.lost_port = self.lost_port, 0
            return [NodePlace(node_id=1, port=port, controller_port=place.controller_port, folder=place.folder)]
        return [place]


@pytest.mark.broker
@pytest.mark.beside
def test_a_port_lost_in_a_race_is_replaced(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        broker = UnluckyBroker(BrokerOptions(state_dir=tmp_path))
        broker.lost_port = taken.getsockname()[1]
        with broker:
            assert broker.status().ready
            assert str(taken.getsockname()[1]) not in broker.bootstrap_servers


@pytest.mark.broker
@pytest.mark.beside
def test_what_kafka_says_when_it_refuses_to_start_is_quoted(tmp_path: Path) -> None:
    broker = OwnBroker(BrokerOptions(state_dir=tmp_path, extra={"num.io.threads": "many"}))
    with pytest.raises(BrokerError, match=r"(?s)exit code 1; the last lines of .*Invalid value many"):
        broker.start()
    assert broker.pids == {}
    assert broker.status().running is False


@pytest.mark.broker
@pytest.mark.beside
def test_no_java_process_outlives_a_killed_owner(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from streamserve.kafka.brokers import BrokerOptions, OwnBroker
broker = OwnBroker(BrokerOptions(state_dir=Path({str(tmp_path)!r})))
broker.start()
print(broker.pids[1], flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        java = psutil.Process(int(owner.stdout.readline()))
        guardian = java.parent()
        assert guardian is not None
        owner.kill()
    _, alive = psutil.wait_procs([java, guardian], timeout=guard.GRACE_S + GONE_TIMEOUT_S)
    assert alive == []
    with OwnBroker(BrokerOptions(state_dir=tmp_path)) as again:
        assert again.status().ready


@pytest.mark.broker
@pytest.mark.beside
def test_a_detached_broker_is_found_and_stopped_by_others(tmp_path: Path) -> None:
    starter = OwnBroker(BrokerOptions(state_dir=tmp_path))
    starter.start(detached=True)
    try:
        now = read_status(tmp_path)
        assert (now.ready, now.detached) == (True, True)
        with pytest.raises(BrokerError, match="already runs"):
            OwnBroker(BrokerOptions(state_dir=tmp_path)).start()
    finally:
        assert stop_recorded(tmp_path, timeout_s=10.0) is True
    assert start_mark(now.nodes[0].pid) is None


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.slow
def test_a_start_without_the_class_archive_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that cannot make an archive is remembered as such and still starts a broker."""
    prepared = prepare()
    cache = tmp_path / "cache"
    kafka = cache / prepared.template.parent.name
    shutil.copytree(prepared.template.parent, kafka, copy_function=os.link, ignore=shutil.ignore_patterns("archives"))
    monkeypatch.setenv("STREAMSERVE_CACHE", str(cache))
    (kafka / "archives").mkdir()
    with_archive = prepare()
    assert with_archive.archive is not None
    with_archive.archive.rename(with_archive.archive.with_suffix(".failed.log"))
    assert prepare().archive is None
    with OwnBroker(BrokerOptions(state_dir=tmp_path / "state")) as broker:
        assert broker.status().ready


@pytest.mark.broker
@pytest.mark.slow
def test_three_nodes_survive_the_death_of_one(broker_cluster: BrokerForTests) -> None:
    own = broker_cluster.own
    assert own is not None
    make_topic(broker_cluster.bootstrap_servers, "replicated", replication=3)
    own.kill_node(2)
    produce(broker_cluster.bootstrap_servers, "replicated", b"written by two of three")
    now = own.status()
    assert [node.running for node in now.nodes] == [True, False, True]
    assert not now.ready
    own.start_node(2)
    assert own.status().ready
