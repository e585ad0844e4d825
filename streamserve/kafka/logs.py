"""Log lines on standard error: a sentence for people; `extra` fields behind it."""

from __future__ import annotations

import logging
import sys
from typing import Any

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def about(action: str, **ids: object) -> dict[str, Any]:
    """The `extra` of a log line: what was done, and to which."""
    return {"action": action, **ids}


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        extra = {key: value for key, value in record.__dict__.items() if key not in _PLAIN}
        return f"{line} {extra}" if extra else line


def _is_news(record: logging.LogRecord) -> bool:
    """False for what the Kafka client calls an error and tries again by itself: each group's first moments are so."""
    return "Group Coordinator Request failed: [Error 15]" not in record.getMessage()


def set_up(role: str, level: int = logging.INFO) -> None:
    """Send our lines, and warnings of the Kafka client, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(f"%(asctime)s {role} %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("streamserve").setLevel(level)
