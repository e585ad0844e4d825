"""What a worker process says of itself on the models topic."""

from __future__ import annotations

from dataclasses import dataclass

from streamserve.kafka.ports import At, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a process says of itself: a record before it joins its group, another when it has left."""

    at: At
    instance: str
    """Its name among its like."""
    record: Record
    retraction: Record
