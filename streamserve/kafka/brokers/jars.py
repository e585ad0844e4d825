"""Fetches the broker's jars once, checks each against its pinned SHA-256, and keeps them outside the repository."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from streamserve.errors import BrokerError
from streamserve.places import is_offline

if TYPE_CHECKING:
    from collections.abc import Callable

KAFKA_VERSION = "4.3.1"
_MARKER = "complete.json"
_DOWNLOADS_AT_ONCE = 6
_HTTP_TIMEOUT_S = 30
_MVN_TIMEOUT_S = 600
_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class _FetchError(Exception):
    """One way of fetching did not work; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedJar:
    """One jar: its Maven coordinate and what its bytes must hash to."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def pinned_jars() -> tuple[PinnedJar, ...]:
    """The jars of `jars.txt`, sorted by file name: the order of the class path, which a class archive repeats."""
    text = resources.files("streamserve.kafka.brokers").joinpath("jars.txt").read_text("utf-8")
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinate, sha256 = line.split()
            group, artifact, version = coordinate.split(":")
            jars.append(PinnedJar(group=group, artifact=artifact, version=version, sha256=sha256))
    return tuple(sorted(jars, key=lambda jar: jar.file_name))


def ensure_jars(folder: Path, say: Callable[[str], None]) -> tuple[Path, ...]:
    """The jars' paths in class path order; fetches them into `folder` unless a complete set is there.

    The caller holds the lock of the cache. Raises `BrokerError` when no way of fetching works, `OSError` where `folder`
    cannot be written.
    """
    pinned = pinned_jars()
    if not _is_complete(folder, pinned):
        say(f"fetching Apache Kafka {KAFKA_VERSION} ({len(pinned)} jars, 44 MB, once) ...")
        _fetch(folder, pinned)
    return tuple(folder / jar.file_name for jar in pinned)


def _is_complete(folder: Path, pinned: tuple[PinnedJar, ...]) -> bool:
    """Whether the marker is there, was written for this list, and every file still has its size."""
    try:
        marker = json.loads((folder / _MARKER).read_text("utf-8"))
        sizes: dict[str, int] = marker["sizes"]
        return marker["pinned"] == _fingerprint(pinned) and all(
            (folder / jar.file_name).stat().st_size == sizes[jar.file_name] for jar in pinned
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fetch(folder: Path, pinned: tuple[PinnedJar, ...]) -> None:
    failures: list[str] = []
    for name, way in (("jgo", _fetch_with_jgo), ("mvn", _fetch_with_mvn)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix="jars-", dir=folder.parent))
        try:
            way(staging, pinned)
            _verify(staging, pinned)
        except _FetchError as failure:
            failures.append(f"{name}: {failure}")
        else:
            _publish(staging, folder, pinned)
            return
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    message = (
        f"the jars of Apache Kafka {KAFKA_VERSION} are not in {folder} and could not be fetched "
        f"({'; '.join(failures)}). They are needed once: connect to the network (or set a proxy or mirror) and repeat, "
        f"or copy {folder} from a machine that has it; or name a running Kafka in [broker] bootstrap_servers."
    )
    raise BrokerError(message)


def _fetch_with_jgo(staging: Path, pinned: tuple[PinnedJar, ...]) -> None:
    """Each pinned coordinate by jgo's own downloader; a mirror may be named in jgo's settings file."""
    try:
        jgo = importlib.import_module("jgo")
    except ImportError:
        why = "not installed (it comes with the extra 'streamserve[broker]')"
        raise _FetchError(why) from None
    try:
        remotes = {"central": jgo.MAVEN_CENTRAL_URL, **jgo.GlobalSettings.load().repositories}
        context = jgo.MavenContext(
            repo_cache=staging / "repository", remote_repos=remotes, timeout=_HTTP_TIMEOUT_S, offline=is_offline()
        )

        def fetch(jar: PinnedJar) -> Path:
            return Path(context.create_dependency(jar.coordinate).artifact.resolve())

        with ThreadPoolExecutor(max_workers=_DOWNLOADS_AT_ONCE) as pool:
            for path in pool.map(fetch, pinned):
                path.replace(staging / path.name)
    except (OSError, RuntimeError, ValueError, LookupError, AssertionError) as failure:
        raise _FetchError(_first_line(failure)) from failure
    shutil.rmtree(staging / "repository", ignore_errors=True)


def _fetch_with_mvn(staging: Path, pinned: tuple[PinnedJar, ...]) -> None:
    """All pinned coordinates by one run of Maven, with the user's own Maven settings and repository."""
    mvn = shutil.which("mvn")
    if mvn is None:
        why = "not on PATH"
        raise _FetchError(why)
    pom = staging / "pom.xml"
    pom.write_text(_pom(pinned), "utf-8")
    command = [mvn, "-q", "-B", "-C", "-f", str(pom), _COPY_GOAL, f"-DoutputDirectory={staging}"]
    command += ["-DexcludeTransitive=true", *(["-o"] if is_offline() else [])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_MVN_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise _FetchError(_first_line(failure)) from failure
    if run.returncode != 0:
        lines = [line for line in run.stdout.splitlines() if "[ERROR]" in line]
        raise _FetchError(lines[0] if lines else f"exit code {run.returncode}")
    pom.unlink()


def _pom(pinned: tuple[PinnedJar, ...]) -> str:
    wanted = "".join(
        f"<dependency><groupId>{escape(jar.group)}</groupId><artifactId>{escape(jar.artifact)}</artifactId>"
        f"<version>{escape(jar.version)}</version></dependency>"
        for jar in pinned
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>streamserve</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def _verify(folder: Path, pinned: tuple[PinnedJar, ...]) -> None:
    for jar in pinned:
        try:
            found = hashlib.sha256((folder / jar.file_name).read_bytes()).hexdigest()
        except OSError as failure:
            why = f"{jar.file_name} did not arrive"
            raise _FetchError(why) from failure
        if found != jar.sha256:
            why = f"{jar.file_name} arrived damaged (SHA-256 {found[:12]}..., expected {jar.sha256[:12]}...)"
            raise _FetchError(why)


def _publish(staging: Path, folder: Path, pinned: tuple[PinnedJar, ...]) -> None:
    """Rename as a whole, so that a reader never sees half a set."""
    sizes = {jar.file_name: (staging / jar.file_name).stat().st_size for jar in pinned}
    (staging / _MARKER).write_text(json.dumps({"pinned": _fingerprint(pinned), "sizes": sizes}, indent=1), "utf-8")
    staging.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(staging, folder)


def _fingerprint(pinned: tuple[PinnedJar, ...]) -> str:
    return hashlib.sha256("\n".join(f"{jar.coordinate} {jar.sha256}" for jar in pinned).encode()).hexdigest()


def _first_line(failure: BaseException) -> str:
    text = str(failure).strip()
    return text.splitlines()[0] if text else type(failure).__name__
