"""The Kafka of a run, kept beside its report so that what it recorded can be looked at afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.markup import escape

from streamserve.kafka.brokers import stop_recorded

STATE_VARIABLE = "STREAMSERVE_STATE"
_STOP_WITHIN_S = 10.0


def emptied(results: Path, app: str) -> Path:
    """The state folder of the run whose report goes to `results`: empty, so that it begins with nothing learnt.

    What an earlier run left there is removed; its Kafka is stopped first, should somebody have started it again.
    """
    state = (results / "state").absolute()
    stop_recorded(state / app / "broker", _STOP_WITHIN_S)
    if state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True)
    return state


def tell(console: Console, state: Path, app: str, commands: Sequence[str]) -> None:
    """How to go on with what the run recorded: commands for a shell in this folder."""
    lines = [
        f"export {STATE_VARIABLE}={quote(short(state))}",
        f"streamserve broker start --name {app}",
        *commands,
        f"streamserve broker stop --name {app}",
    ]
    console.print("\nIts Kafka is stopped, and kept until the next run. To ask it (after `. .venv/bin/activate`):")
    for line in lines:
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


def short(path: Path) -> str:
    """As it is named from this folder, where it is in it."""
    with suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
