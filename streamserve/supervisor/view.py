"""The live view in a terminal."""

from __future__ import annotations

import threading
from collections import deque

from rich.console import Console
from rich.live import Live

from streamserve.supervisor.news import News, Snapshot
from streamserve.supervisor.picture import Picture

_KEPT_NEWS = 6
_REDRAW_S = 1.0
_CLOSE_S = 1.0


class LiveView:
    """Draws on a thread of its own: a terminal that is held (Ctrl-S) holds nothing else.

    On the terminal's second screen, so that a new size leaves no rubbish; the last picture, whole, stays on the first.
    The children's output stays in their files.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._news: deque[str] = deque(maxlen=_KEPT_NEWS)
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._draw, name="view", daemon=True)
        self._thread.start()

    def news(self, news: News) -> None:
        with self._lock:
            self._news.append(news.words)
        self._changed.set()

    def status(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._snapshot = snapshot
        self._changed.set()

    def heard(self, name: str, line: str) -> None:
        """Nothing: the last lines of a process that ends are news."""

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join(_CLOSE_S)

    def _draw(self) -> None:
        with Live(console=self._console, auto_refresh=False, screen=True) as live:
            while not self._closed:
                self._changed.wait(_REDRAW_S)
                self._changed.clear()
                live.update(self._now(), refresh=True)
        self._console.print(self._now(whole=True))

    def _now(self, *, whole: bool = False) -> Picture:
        with self._lock:
            return Picture(self._snapshot, list(self._news), whole=whole)
