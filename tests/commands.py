"""The command line in this process, where a test asks what a command says and does and not how a process ends.

A process of its own costs a second of processor time, nearly all of it imports.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamserve.cli.entry import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a command wrote, and the exit code that its process would have had."""

    returncode: int
    stdout: str
    stderr: str


def told(*arguments: object, code: int = 0, typed: str = "", cwd: Path | None = None) -> Told:
    """Run `streamserve ARGUMENTS`; it ends with `code`. What it does not catch is the test's failure."""
    with contextlib.chdir(cwd or Path.cwd()), _standard_input(typed), _caught() as (out, err):
        with pytest.raises(SystemExit) as left:
            run([str(argument) for argument in arguments])
        done = Told(returncode=int(left.value.code or 0), stdout=_text(out), stderr=_text(err))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@contextlib.contextmanager
def _standard_input(typed: str) -> Iterator[None]:
    """A file with a number, as some commands read it by that."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        file.write(typed)
        file.seek(0)
        patch.setattr("sys.stdin", file)
        yield


@contextlib.contextmanager
def _caught() -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """Text or bytes, as a command likes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
