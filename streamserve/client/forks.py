"""A client's connections and its thread are those of one process: a fork has neither."""

from __future__ import annotations

import os

from streamserve.errors import StreamserveError


class OneProcess:
    """The process that started a client."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a fork of it."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises StreamserveError in a fork, where whoever asks would wait for ever."""
        if self.forked:
            raise StreamserveError(
                f"this client of app {self._app} was started in process {self._pid}, and this is a fork of it, process "
                f"{os.getpid()}, which has neither its thread nor its connections: make a client in the child"
            )
