"""What ownership of a partition means for a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Fewer old requests are not worth passing over: they are expired in the time that a look-up takes.
LEAST_SKIPPED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ownership of a partition means for a role."""

    group: str
    driving: str
    followed: Mapping[str, str] = field(default_factory=dict)
    """Kind -> topic whose same-numbered partition is read along with the driving one."""
    rebuilds: bool = False
    """The stage wants the driving topic from `rebuild_from` of its metadata on, to remember what it has seen."""
    predictions: str | None = None
    """Topic to scan for what is already answered; None where the stage needs none of it."""
    skips_after_ms: int | None = None
    """Records older than this are passed over when ownership begins, so that fresh ones need not wait; None: never."""
    least_skipped: int = LEAST_SKIPPED
    """So many must be old."""
    revoke_budget_ms: int = 1_000
    commit_interval_ms: int = 200
    lease_ms: int = 6_000
    partitions: int | None = None
    """Declared ones; a process that is given another stops. None: not checked."""
