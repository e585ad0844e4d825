"""Everything that a broker's start needs, made once and kept: Java found, jars, class archive, formatted template."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from streamserve.errors import BrokerError
from streamserve.kafka.brokers.jars import KAFKA_VERSION, ensure_jars
from streamserve.kafka.brokers.java import Java, find_java
from streamserve.kafka.brokers.options import (
    BrokerOptions,
    NodePlace,
    class_path,
    common_flags,
    java_command,
    lay_data,
    new_cluster_id,
    node_properties,
    write_properties,
)
from streamserve.kafka.brokers.ports import free_ports
from streamserve.kafka.brokers.probe import live_brokers
from streamserve.kafka.brokers.process import spawn
from streamserve.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOOL_TIMEOUT_S = 120
_FIRST_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a start needs. `archive` is none where Java could not make one: the start is then slower."""

    java: Java
    jars: tuple[Path, ...]
    template: Path
    archive: Path | None


def _silent(_text: str) -> None:
    """Says nothing."""


def prepare(say: Callable[[str], None] = _silent) -> Prepared:
    """Make what is missing and return it; milliseconds when nothing is. Needs a registry only for missing jars.

    `say` gets a line for people before each long step. Two processes do not prepare at once: the second waits.
    Raises `BrokerError` when Java is missing, the jars cannot be fetched or the cache folder cannot be written.
    """
    java = find_java()
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if os.pathsep in str(folder):
        message = (
            f"the cache folder {folder} has '{os.pathsep}' in its path, which Java reads as two; set STREAMSERVE_CACHE"
        )
        raise BrokerError(message)
    try:
        with _locked(folder, say):
            jars = ensure_jars(folder / "jars", say)
            template = _ensure_template(folder / "template", java, jars)
            archive = _ensure_archive(folder / "archives", java, jars, template, say)
    except OSError as failure:
        message = (
            f"cannot write the cache folder {folder} ({failure.strerror or failure}); a start needs some 200 MB there "
            "once: free them, or set STREAMSERVE_CACHE to another"
        )
        raise BrokerError(message) from failure
    return Prepared(java=java, jars=jars, template=template, archive=archive)


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that prepares {folder} ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _ensure_template(template: Path, java: Java, jars: tuple[Path, ...]) -> Path:
    """A formatted data folder without its ids: copying it replaces Kafka's own format step, a JVM run of a second."""
    if template.is_dir():
        return template
    with tempfile.TemporaryDirectory(dir=template.parent) as scratch:
        node = NodePlace(node_id=1, port=1, controller_port=2, folder=Path(scratch))
        write_properties(node.properties_file, node_properties(node, [node], {}))
        tool = [str(java.program), "-XX:+UseSerialGC", *common_flags(java), "-cp", class_path(jars)]
        tool += ["kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", str(node.properties_file)]
        run = subprocess.run(tool, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        if run.returncode != 0:
            message = f"Kafka could not format a data folder with {java.program}: {(run.stderr or run.stdout)[-2000:]}"
            raise BrokerError(message)
        (node.data / "meta.properties").unlink()
        node.data.replace(template)
    return template


def _ensure_archive(
    folder: Path, java: Java, jars: tuple[Path, ...], template: Path, say: Callable[[str], None]
) -> Path | None:
    """A class-data archive for exactly this Java and these jars: a start takes half the time with it."""
    archive = folder / f"{_archive_key(java, jars)}.jsa"
    refusal = archive.with_suffix(".failed.log")
    if archive.exists():
        return archive
    if refusal.exists():
        return None
    say("preparing a fast broker start (once, some 10 s) ...")
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "archive.jsa"
        complaint = _make_archive(made, Path(scratch), java, jars, template)
        if complaint:
            refusal.write_text(complaint, "utf-8")
            return None
        made.replace(archive)
    return archive


def _archive_key(java: Java, jars: tuple[Path, ...]) -> str:
    """Java checks an archive against its own build and the jars' paths and times: any change needs another."""
    program = java.program.resolve()
    facts = [str(program), str(program.stat().st_mtime_ns), str(java.version)]
    facts += [f"{jar}:{jar.stat().st_mtime_ns}" for jar in jars]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _make_archive(made: Path, scratch: Path, java: Java, jars: tuple[Path, ...], template: Path) -> str:
    """Run a broker once to learn the classes it loads, then dump them. Returns what went wrong, or nothing."""
    options = BrokerOptions(state_dir=scratch)
    classes = scratch / "classes.txt"
    (port, controller_port) = free_ports(2)
    node = NodePlace(node_id=1, port=port, controller_port=controller_port, folder=scratch)
    write_properties(node.properties_file, node_properties(node, [node], {}))
    lay_data(node, new_cluster_id(), template)
    command = java_command(java, jars, node, options=options, archive=None)
    command.insert(1, f"-XX:DumpLoadedClassList={classes}")
    process = spawn(command, log=node.log, lock_fd=-1, detached=False)
    until = time.monotonic() + _FIRST_START_TIMEOUT_S
    while process.is_running and live_brokers("127.0.0.1", port, 1.0) is None and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN_S)
    process.terminate()
    if not process.wait(_STOP_TIMEOUT_S):
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    if not classes.exists():
        return f"the first start wrote no list of classes: {node.log.read_text('utf-8', 'replace')[-4000:]}"
    dump = [str(java.program), "-Xshare:dump", "-Xmx128m", "-XX:+UseSerialGC", *common_flags(java)]
    dump += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}", "-cp", class_path(jars)]
    run = subprocess.run(dump, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    if run.returncode != 0 or not made.exists():
        return f"exit code {run.returncode}: {(run.stdout + run.stderr)[-4000:]}"
    return ""
