"""What a broker has, compared with what is declared: pure, so that every rule is tested without a broker.

A broker may be more generous than the declaration (longer retention, more replicas, larger records): that is no
difference. What changes the meaning of a topic (partitions, cleanup, timestamp type) must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamserve.topics.catalogue import Topic
from streamserve.topics.names import Kind

_UNLIMITED = -1


class Repair(StrEnum):
    """What would mend a difference."""

    CREATE = "create"
    ALTER = "alter"
    BY_HAND = "by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as a broker has it."""

    partitions: int
    replication: int
    """The fewest replicas of any of its partitions."""
    configs: Mapping[str, str]
    """Kafka's names and values, the broker's defaults included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One way in which a broker is not as declared."""

    topic: str
    what: str
    """`missing`, `partitions`, `replication`, or the name of a Kafka setting."""
    declared: str
    found: str
    repair: Repair
    advice: str = ""
    """Where no command of ours mends it: what a person may do."""

    def __str__(self) -> str:
        if self.what == "missing":
            return f"{self.topic}: missing"
        return f"{self.topic}: {self.what} is {self.found}, declared is {self.declared}"


def listed(found: Iterable[Difference]) -> list[str]:
    """A line for each difference, then each piece of advice once."""
    some = list(found)
    return [*(str(difference) for difference in some), *dict.fromkeys(one.advice for one in some if one.advice)]


def differences(
    topics: Sequence[Topic], found: Mapping[str, FoundTopic], *, allow_create_time: bool = False
) -> tuple[Difference, ...]:
    """Every difference, in the order of `topics`; empty where the broker is as declared.

    `allow_create_time`: the requests topic (no other) may carry its producers' times.
    """
    return tuple(difference for topic in topics for difference in _of(topic, found.get(topic.name), allow_create_time))


def _of(topic: Topic, found: FoundTopic | None, allow_create_time: bool) -> Iterator[Difference]:
    if found is None:
        yield Difference(
            topic=topic.name,
            what="missing",
            declared=f"{topic.partitions} partitions",
            found="nothing",
            repair=Repair.CREATE,
        )
        return
    yield from _layout(topic, found)
    for setting, declared in topic.configs().items():
        value = found.configs.get(setting, "unknown")
        if setting == "message.timestamp.type" and allow_create_time and topic.spec.kind is Kind.REQUESTS:
            continue
        if not _fits(setting, declared, value, found.replication):
            yield Difference(topic=topic.name, what=setting, declared=declared, found=value, repair=Repair.ALTER)


def _layout(topic: Topic, found: FoundTopic) -> Iterator[Difference]:
    """What Kafka cannot change in place, or what must not be changed in passing."""
    if found.partitions != topic.partitions:
        yield Difference(
            topic=topic.name,
            what="partitions",
            declared=str(topic.partitions),
            found=str(found.partitions),
            repair=Repair.BY_HAND,
            advice=_partition_advice(topic.partitions, found.partitions),
        )
    if found.replication < topic.replication:
        yield Difference(
            topic=topic.name,
            what="replication",
            declared=str(topic.replication),
            found=str(found.replication),
            repair=Repair.BY_HAND,
            advice=(
                "Kafka's own kafka-reassign-partitions adds replicas; "
                f"or set `[app] replication = {found.replication}` in the config."
            ),
        )


def _partition_advice(declared: int, found: int) -> str:
    mend = (
        f"set `[app] partitions = {found}` in the config, if the app's other topics have {found} too, "
        "or give the app a new name."
    )
    if found > declared:
        return f"Kafka cannot take partitions away: {mend}"
    return f"Adding partitions moves keys, so that open requests and learnt states no longer meet their records: {mend}"


def _fits(setting: str, declared: str, found: str, replication: int) -> bool:
    if setting == "cleanup.policy":
        return set(declared.split(",")) == {policy.strip() for policy in found.split(",")}
    if setting == "message.timestamp.type":
        return declared == found
    try:
        number = int(found)
    except ValueError:
        return False
    match setting:
        case "retention.ms":
            return number == _UNLIMITED or number >= int(declared)
        case "min.insync.replicas":
            # More than there are replicas refuses every record.
            return int(declared) <= number <= max(replication, int(declared))
        case _:
            return number >= int(declared)
