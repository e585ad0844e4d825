"""The process of one isolated model, as its worker sees it: started, called, watched, ended."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelAway, ModelRaised
from streamserve.runtimes import system
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.channel import BrokenChannel, Channel, Frame, Kind, outputs_received
from streamserve.runtimes.isolation import Limits

_log = logging.getLogger(__name__)

#: From a broken channel to the end of its process; one that lives on is ended.
_END_S = 1.0
#: The kernel counts processor time in steps of 10 ms.
_CPU_SPAN_S = 0.1
_CPU_SLACK = 0.2
_MIB = 1 << 20
_PIPE_BYTES = 1 << 20
_LINES_A_SECOND = 100
_LINE_BYTES = 500
_LAST_LINES = 5
#: How long a pipe that is written faster than it is logged is left to fill: the model waits, nobody else.
_FLOOD_WAIT_S = 0.02
_LAST_WORDS_S = 0.5


class ModelProcess:
    """Made, looked at and ended on the keeper's thread; called on the model's; waited for on any."""

    def __init__(
        self, spec: ModelSpec, limits: Limits, base_dir: Path, number: int, *, poke: Callable[[], None]
    ) -> None:
        """`poke`: have it looked at soon. Raises OSError where no process can be made."""
        self._spec, self._limits, self._base_dir, self._poke = spec, limits, base_dir, poke
        self._cores = limits.cores(number)
        self.settled = threading.Event()
        """It is ready, or it has ended."""
        self.ended = threading.Event()
        self.ready = False
        self.runtime = ""
        """Name of the runtime class that runs the model."""
        self.sample: AnyArray | None = None
        self.why = ""
        """What became of it, in words that follow "its process"; empty while it lives."""
        self.refused = ""
        """The model's own trouble at loading."""
        self.ready_at = 0.0
        self._reason = ""
        """Why it is to be ended, or is being ended, by us."""
        self._closing = False
        self._called_at: float | None = None
        self._own_user: int | None = None
        self._call = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._started_at = time.monotonic()
        self._cpu = (self._started_at, 0.0)
        """When its processor time was last looked at, and how much it was."""
        self._is_confined = False
        self._process, self._channel = self._start()
        name = f"model {spec.model_id}"
        self._output = threading.Thread(target=self._read_output, name=f"{name} output", daemon=True)
        self._output.start()
        threading.Thread(target=self._await_ready, name=f"{name} start", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> tuple[subprocess.Popen[bytes], Channel]:
        ours, theirs = socket.socketpair()
        # What the worker can import the model can, too.
        environment = self._limits.environment(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "streamserve.runtimes.child", str(theirs.fileno()), str(os.getpid())]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # a Ctrl-C is the worker's to handle, and what the model starts ends with it
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return process, Channel(ours)

    # -- the model's thread --------------------------------------------------------------------------------------

    def call(self, batch: AnyArray) -> Outputs:
        """Raises `ModelAway` where the process is not there, or ends before it has answered; `ModelRaised`."""
        with self._call:
            if not self.ready or self.ended.is_set():
                raise ModelAway(self.words())
            self._called_at = time.monotonic()
            try:
                self._channel.send(Kind.CALL, {"batch": batch})
                frame = self._channel.receive()
                if frame.kind is not Kind.RAISED:
                    return outputs_received(frame)
                # At the kernel's limit a model may raise before the watchdog has seen that it is beyond ours.
                self._reason = self._reason or self._too_much(system.usage_of(self.pid))
                if self._reason:
                    raise ModelAway(self._words_of_end(BrokenChannel("beyond its limits")))
            except BrokenChannel as broken:
                self._called_at = None
                raise ModelAway(self._words_of_end(broken)) from broken
            finally:
                self._called_at = None
        told = {name: str(frame.values.get(name, "")) for name in ("exception", "stack")}
        raise ModelRaised(str(frame.values.get("words")), **told)

    def _words_of_end(self, broken: BrokenChannel) -> str:
        self._poke()
        if not self.ended.wait(_END_S):
            if self._closing:
                self.kill()
            self._reason = self._reason or f"was ended: it did not speak as agreed ({broken})"
            self._poke()
            self.ended.wait(_END_S)
        return self.words()

    def words(self) -> str:
        """Why there is no answer."""
        what = self.why or ("is not ready yet" if not self.ready else self._reason or "is ending")
        return f"model {self._spec.model_id}: its process {what}"

    # -- the keeper's thread -------------------------------------------------------------------------------------

    def look(self) -> None:
        """End it where it is beyond a limit; take note where it has ended."""
        if self.ended.is_set():
            return
        if self._has_exited():
            self._finish()
            return
        if not self._reason:
            self._reason = self._beyond(time.monotonic())
        if self._reason:
            self._kill()

    def _beyond(self, now: float) -> str:
        limits, called_at = self._limits, self._called_at
        if called_at is not None and (now - called_at) * 1000 > limits.call_timeout_ms:
            return f"was ended: a call took longer than {limits.call_timeout_ms} ms (call_timeout_ms)"
        if not self.ready and (now - self._started_at) * 1000 > limits.load_timeout_ms:
            return f"was ended: it was not ready in {limits.load_timeout_ms} ms (load_timeout_ms)"
        usage = system.usage_of(self.pid)
        if usage is not None and not self._is_confined:
            self._hold_to_cores(now, usage.cpu_s)
        return self._too_much(usage)

    def _too_much(self, usage: system.Usage | None) -> str:
        limits = self._limits
        if usage is None:
            return ""
        if usage.memory_bytes > limits.memory_bytes:
            used, most = usage.memory_bytes // _MIB, limits.memory_bytes // _MIB
            return f"was ended: it had {used} MiB of memory, {most} MiB are allowed (memory_bytes)"
        if usage.threads > limits.most_threads:
            return f"was ended: it had {usage.threads} threads, {limits.most_threads} are allowed (most_threads)"
        return ""

    def _hold_to_cores(self, now: float, cpu_s: float) -> None:
        """One that uses more cores than it may is confined to as many; any other runs wherever there is room."""
        then, used_s = self._cpu
        if now - then < _CPU_SPAN_S:
            return
        self._cpu = (now, cpu_s)
        used = (cpu_s - used_s) / (now - then)
        if used <= self._limits.cpu_cores + _CPU_SLACK or not self._cores:
            return
        self._is_confined = True
        with contextlib.suppress(OSError):
            system.confine(self.pid, self._cores)
        _log.warning(
            "model %s used %.1f cores, it may use %d (cpu_cores): until it is started again it runs on cores %s only",
            self._spec.model_id,
            used,
            self._limits.cpu_cores,
            ", ".join(map(str, self._cores)),
        )

    def _has_exited(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS
            return self._process.poll() is not None
        # Not reaped yet: until then its number, and that of its group, is nobody else's.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def _finish(self) -> None:
        if hasattr(os, "waitid"):
            self._kill()  # what it has started
        if self._own_user is not None:
            system.kill_all_of(self._own_user)
        code = self._process.wait()
        self._output.join(_LAST_WORDS_S)
        self.why = self._reason or ("was closed" if self._closing else _ended(code))
        if not self.ready and not self.refused and not self._reason and not self._closing:
            said = "".join(f"\n  {line}" for line in self._last_lines)
            self.why += f" before it was ready{f'; its last words:{said}' if said else ''}"
        self.ended.set()
        self.settled.set()
        self._channel.hang_up()
        with self._call:
            self._channel.close()

    def hang_up(self) -> None:
        """Have it end by itself: it has nothing more to do."""
        if not self._closing:
            self._closing = True
            self._channel.hang_up()

    def kill(self) -> None:
        """Have it ended, now."""
        self._reason = self._reason or "was ended: it did not close in time"
        self._poke()

    # -- threads of its own --------------------------------------------------------------------------------------

    def _await_ready(self) -> None:
        spec = {
            field.name: getattr(self._spec, field.name) for field in fields(self._spec) if field.name != "isolation"
        }
        spec["options"] = dict(self._spec.options)
        start = {
            "spec": spec,
            "limits": self._limits.as_table(),
            "base_dir": str(self._base_dir),
        }
        with self._call:
            try:
                self._channel.send(Kind.START, values=start)
                frame = self._channel.receive()
                if frame.kind is Kind.READY:
                    self._is_ready(frame)
                elif frame.kind is Kind.REFUSED:
                    self.refused = str(frame.values.get("words"))
            except TypeError as error:
                self.refused = f"model {self._spec.model_id}: its options cannot be sent to its process: {error}"
                self._reason = "was ended"
            except BrokenChannel as broken:
                _log.debug("model %s has not become ready: %s", self._spec.model_id, broken)
        self._poke()

    def _is_ready(self, frame: Frame) -> None:
        sample = frame.arrays.get("sample")
        self.sample = None if sample is None else sample.copy()
        self.runtime = str(frame.values.get("runtime"))
        self._own_user = system.own_user_of(self.pid)
        self.ready_at = time.monotonic()
        self.ready = True
        self.settled.set()
        after_ms = (self.ready_at - self._started_at) * 1000
        _log.info("model %s: its process %d is ready after %.0f ms", self._spec.model_id, self.pid, after_ms)

    def _read_output(self) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        log = _OutputLog(self._spec.model_id, self._last_lines)
        with pipe:
            while chunk := os.read(pipe.fileno(), _PIPE_BYTES):
                if log.take(chunk):
                    self.ended.wait(_FLOOD_WAIT_S)
        log.end()


class _OutputLog:
    """What a model writes, line by line to the log; of a flood only the first lines of each second."""

    def __init__(self, model: str, last_lines: deque[str]) -> None:
        self._model, self._last_lines = model, last_lines
        self._rest = b""
        self._second = 0
        self._told = 0
        self._untold = 0

    def take(self, chunk: bytes) -> bool:
        """True where it is a flood."""
        second = int(time.monotonic())
        if second != self._second:
            self._tell_untold()
            self._second, self._told = second, 0
        if self._told >= _LINES_A_SECOND:
            self._untold += chunk.count(b"\n")
            self._rest = b""
            return True
        *lines, self._rest = (self._rest + chunk).split(b"\n", _LINES_A_SECOND - self._told)
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LINE_BYTES or b"\n" in self._rest:
            self._untold += self._rest.count(b"\n")
            if b"\n" not in self._rest:
                self._tell(self._rest)
            self._rest = b""
        return self._told >= _LINES_A_SECOND

    def end(self) -> None:
        if self._rest:
            self._tell(self._rest)
        self._tell_untold()

    def _tell(self, line: bytes) -> None:
        self._told += 1
        words = line[:_LINE_BYTES].decode(errors="replace").rstrip()
        self._last_lines.append(words)
        _log.info("model %s says: %s", self._model, words)

    def _tell_untold(self) -> None:
        if self._untold:
            _log.warning("model %s says too much: %d more lines are left out", self._model, self._untold)
            self._untold = 0


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended by itself with code {code}"
    if code == -signal.SIGKILL:
        return f"was ended by signal {-code} (SIGKILL), which was not ours: is the machine out of memory?"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"
