"""Which records of a role stand in the log once where delivery is exactly once, and the parts that see to it."""

from __future__ import annotations

from functools import partial

from streamserve.kafka import intake
from streamserve.kafka.clients import ClientOptions
from streamserve.kafka.fencing import Fences, Transactions
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.once import ExactlyOnce, Outputs
from streamserve.kafka.perform import Topics
from streamserve.kafka.rawfetch import RawReader
from streamserve.kafka.writer import KafkaWriter
from streamserve.settings import Settings


def terminal_outputs(topics: Topics) -> Outputs:
    """Answers are not among them: all who read them drop a second one, and a marker at their end would keep a new
    aggregator waiting for what comes behind it."""
    return Outputs(own={topics.predictions: None, topics.dlq: intake.letter_keys})


def join_outputs(topics: Topics, partitions: int) -> Outputs:
    """Forwarded feedback is not among them: it is known by where it first landed. Outcomes go to every partition: which
    states there are to be taught may change while the app runs."""
    return Outputs(
        own={topics.dlq: intake.letter_keys},
        spread={topics.outcomes: partial(intake.outcome_keys, topics.feedback)},
        numbers=frozenset(range(partitions)),
    )


def update_outputs(topics: Topics) -> Outputs:
    """Epochs and policy never: their readers go by the newest."""
    return Outputs(own={topics.dlq: intake.letter_keys})


def exactly_once(
    settings: Settings,
    options: ClientOptions,
    outputs: Outputs | None,
    *,
    group: str,
    topics: Topics,
    writer: KafkaWriter,
    lookups: KafkaLookups,
) -> ExactlyOnce | None:
    """None where delivery is at least once, or the role writes nothing that must stand there once.

    `group`: the role's, with which its transactional ids begin.
    """
    if settings.app.delivery != "exactly_once" or outputs is None:
        return None
    return ExactlyOnce(
        fences=Fences(Transactions(options, settings.app.name), prefix=group, covers=outputs.of, send=writer.send),
        outputs=outputs,
        lookups=lookups,
        scan_reader=lambda: RawReader(options),
        letter_topics=topics.of,
    )
