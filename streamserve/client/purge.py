"""Dead letters removed for good. Kafka removes from the front of a partition only, so single ones cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamserve.client.dead_letters import Letter, Survey
from streamserve.client.scanning import Scanner
from streamserve.errors import BrokerError
from streamserve.kafka.ports import At


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is removed from one partition, and what is not."""

    at: At
    before: int
    """Everything below this offset goes; -1: nothing."""
    removed: Sequence[Letter]
    kept: Sequence[Letter]
    """Meant, but behind one that is not."""
    not_redriven: int
    """How many of `removed` were not put back, as far as is known."""
    error: str = ""


def plan(found: Survey) -> list[Removal]:
    """Of each partition with letters that are meant: its front, up to the first one that is not."""
    removals = []
    for at in sorted({letter.at for letter in found.letters}):
        mine = [letter for letter in found.letters if letter.at == at]
        front = found.fronts[at]
        removed = [letter for letter in mine if letter.offset < front]
        last = max((letter.offset for letter in removed), default=-1)
        # With the last letter of a partition its marks go too: they speak of nothing any more.
        before = front if front == found.ends[at] and removed else last + 1 if removed else -1
        removals.append(
            Removal(
                at=at,
                before=before,
                removed=removed,
                kept=[letter for letter in mine if letter.offset >= front],
                not_redriven=sum(found.marks.state(letter) != "redriven" for letter in removed),
            )
        )
    return removals


async def purge(scanner: Scanner, removals: Sequence[Removal]) -> list[Removal]:
    """Do it, partition by partition; `error` says of which the broker would not."""
    done = []
    for removal in removals:
        error = ""
        if removal.before > 0:
            try:
                await scanner.lookups.remove_before(removal.at, removal.before)
            except BrokerError as failure:
                error = str(failure)
        done.append(
            Removal(
                at=removal.at,
                before=removal.before,
                removed=() if error else removal.removed,
                kept=removal.kept,
                not_redriven=removal.not_redriven,
                error=error,
            )
        )
    return done
