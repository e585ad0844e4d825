"""One child process: started, listened to, told to go, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from streamserve.errors import StreamserveError
from streamserve.supervisor.logfile import LogFile
from streamserve.supervisor.parent import (
    ALONE,
    DOING,
    GO,
    JOIN,
    LEAVES,
    OVER,
    PARENT_FD,
    PREPARED,
    READY,
    TWIN,
    WARM,
)

KEPT_LINES = 40
_KEPT_LINE_BYTES = 2_000
_CHUNK_BYTES = 65_536
#: Grandchildren may hold a dead child's output open: its last words are waited for so long.
_LAST_WORDS_S = 0.5


class ChildProcess:
    """A running child. Its output goes line by line to `log` and `heard` (called on a thread of its own).

    Made on the event loop's thread, and for that thread only. Raises `StreamserveError` where it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        status_file: Path,
        log: LogFile,
        heard: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._status_file = status_file
        self._log, self._heard = log, heard
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.warm = asyncio.Event()
        """The child has loaded what it needs and waits for `go`, or for `prepare`."""
        self.prepared = asyncio.Event()
        """It has only to join its group, for which it waits for `go`."""
        self.leaves = asyncio.Event()
        """Somebody has asked it to stop, and it serves until its twin is ready."""
        self.over = asyncio.Event()
        """It has left its group and writes nothing any more."""
        self._events = {WARM: self.warm, PREPARED: self.prepared, LEAVES: self.leaves, OVER: self.over}
        self.doing = ""
        """What it says it is doing before that; empty: it has not said."""
        self._heard_on_line = b""
        self.exited: asyncio.Future[int] = self._loop.create_future()
        """The exit code, -N where signal N ended it; set once the last words have been read."""
        status_file.unlink(missing_ok=True)
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env={**environment, PARENT_FD: str(theirs.fileno()), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a Ctrl-C at the terminal is the supervisor's to handle
            )
        except OSError as error:
            self._line.close()
            raise StreamserveError(f"cannot start {' '.join(command)}: {error.strerror}") from error
        finally:
            theirs.close()
        self._loop.add_reader(self._line, self._hear_line)
        reader = threading.Thread(target=self._read, name=f"output {self.pid}", daemon=True)
        reader.start()
        threading.Thread(target=self._await_end, args=(reader,), name=f"end {self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_lines(self) -> list[str]:
        """The newest lines of its output."""
        return list(self._lines)

    def go(self) -> None:
        """Let it serve; it may not have asked yet."""
        self._say(GO + JOIN)

    def prepare(self) -> None:
        """Let it connect, and do all that comes before it serves."""
        self._say(GO)

    def has_twin(self, waits: bool) -> None:
        """Tell it whether a loaded process waits to take its place."""
        self._say(TWIN if waits else ALONE)

    def twin_is_ready(self) -> None:
        """Tell it that its twin has only to join."""
        self._say(READY)

    def _say(self, words: bytes) -> None:
        with suppress(OSError):  # it has died
            self._line.send(words)

    def served_port(self) -> int | None:
        """The port of its pages once it serves, as it says in its status file."""
        try:
            told = json.loads(self._status_file.read_text("utf-8"))
            return int(told["metrics_port"]) if told["pid"] == self.pid else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def ask_to_stop(self) -> None:
        """SIGTERM: it stops in order."""
        if not self.exited.done():
            self._process.terminate()

    def kill(self) -> None:
        """`kill -9`, also what it started itself."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _hear_line(self) -> None:
        try:
            said = self._line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._loop.remove_reader(self._line)
        self._heard_on_line += said
        while self._heard_on_line:
            if self._heard_on_line.startswith(DOING):
                words, end, rest = self._heard_on_line.partition(b"\n")
                if not end:
                    return
                self.doing = words.removeprefix(DOING).decode("utf-8", "replace")
            else:
                word, rest = self._heard_on_line[:1], self._heard_on_line[1:]
                if word in self._events:
                    self._events[word].set()
            self._heard_on_line = rest

    def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as output:
            while chunk := os.read(output.fileno(), _CHUNK_BYTES):
                self._log.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._keep(line)
                if len(rest) > _CHUNK_BYTES:  # one line without an end must not fill the memory
                    self._keep(rest)
                    rest = b""
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line[:_KEPT_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        self._lines.append(text)
        self._heard(text)

    def _await_end(self, reader: threading.Thread) -> None:
        code = self._process.wait()
        reader.join(_LAST_WORDS_S)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        self.kill()  # what it started itself and left behind
        self._loop.remove_reader(self._line)
        self._line.close()
        self._status_file.unlink(missing_ok=True)
        if not self.exited.done():
            self.exited.set_result(code)
