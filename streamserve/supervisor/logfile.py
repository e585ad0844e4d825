"""A log file with a bound: one file, and the one before it."""

from __future__ import annotations

import threading
from pathlib import Path

MAX_BYTES = 4 << 20


class LogFile:
    """Appends bytes; above `max_bytes` the file becomes `NAME.1` and a new one begins. For several threads."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, content: bytes) -> None:
        """Append; what comes after `close` is dropped."""
        with self._lock:
            if self._file.closed:
                return
            if self._size and self._size + len(content) > self._max_bytes:
                self._turn()
            self._file.write(content)
            self._size += len(content)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _turn(self) -> None:
        self._file.close()
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        self._file = self.path.open("ab", buffering=0)
        self._size = 0
