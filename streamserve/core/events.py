"""Events: facts that the shell reports to a stage.

An event never asks for anything; what to do about it is the stage's decision (see `effects`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from streamserve.core.messages import I64, Answers, Outputs, Requests
from streamserve.core.records import Feedback, JoinedPredictions, Outcomes, StateRecord, UnreadableState
from streamserve.core.route_versions import RoutesRecord
from streamserve.core.switches import SwitchRecord
from streamserve.core.values import unchanging

if TYPE_CHECKING:
    from streamserve.core.desk import ModelRules


@unchanging()
class Resume:
    """Where a new owner starts in one partition, as the last commit left it."""

    position: int
    """First offset of the driving topic to be read."""
    metadata: str = ""
    """The stage's own words, written by `Commit.metadata` of a previous owner; empty if there is no commit."""
    answered: I64 | None = None
    """Offsets >= position that already have a terminal record in the log; None where the stage needs none."""
    answers_from: int = 0
    """First offset of the answers partition that will be read."""
    answers_end: int = 0
    """End offset of the answers partition when ownership began: a deadline fires only once it has been reached."""


@unchanging()
class Assigned:
    """Partitions that this process now owns. Their fetches start at `Resume.position`."""

    partitions: Mapping[int, Resume]


@unchanging()
class Revoked:
    """Partitions that this process no longer owns: their state is dropped, nothing more is emitted for them."""

    partitions: tuple[int, ...]


@unchanging()
class RequestsFetched:
    """Everything that was fetched since the last event of this kind, of any partitions: to be decided together."""

    requests: Requests


@unchanging()
class AnswersFetched:
    """Answers of any partitions of the answers topic, and the positions after them."""

    blocks: tuple[Answers, ...]
    positions: Mapping[int, int]
    """Partition -> first offset that is not yet read."""
    waited_ms: int = 0
    """So long ago the first of them was there to be taken in; what comes from the log is taken in at once."""


@unchanging(eq=False)
class RawAnswers:
    """A block of answers as it stands in the log: what it is about has been read, the rest on demand only."""

    model: str
    offsets: I64
    """The requests, increasing."""
    value: bytes


@unchanging()
class RawAnswersFetched:
    """Answers of one partition, for a stage that needs few of them, and the position after them."""

    partition: int
    blocks: tuple[RawAnswers, ...]
    next_offset: int


@unchanging()
class StatesFetched:
    """Learnt states as they stand in the log (epochs topic; snapshots at the start)."""

    states: tuple[StateRecord, ...]
    unreadable: tuple[UnreadableState, ...] = ()
    switches: tuple[SwitchRecord, ...] = ()
    """Of the models topic."""
    routes: tuple[RoutesRecord, ...] = ()
    """Of the models topic, in its order."""


@unchanging()
class ContextsFetched:
    """Keyed states of a partition that was assigned, as they stand in the log: snapshots, and what follows them."""

    partition: int
    states: tuple[StateRecord, ...] = ()
    unreadable: tuple[UnreadableState, ...] = ()
    loaded: bool = False
    """All that stood there when the partition was assigned has come."""


@unchanging()
class ModelsHosted:
    """What this process hosts from now on, loaded and warmed: all of it, by model id."""

    models: Mapping[str, ModelRules]


@unchanging()
class StatesKnownUntil:
    """Every state appended before this broker time has been seen."""

    known_until_ms: int


@unchanging()
class BatchFinished:
    """A model call has returned, raised, or was given up."""

    batch: int
    outputs: Outputs | None
    error: str = ""
    """Words for a person where the call raised; empty otherwise."""
    exception: str = ""
    """Its class."""
    stack: str = ""
    away: bool = False
    """What runs the model is gone for now: the batch was never run, or its end is not known. No request is blamed."""
    duration_ms: float = 0.0
    """Service time of the call, measured by the shell's monotonic clock."""


@unchanging()
class BatchesFinished:
    """Model calls that have ended since the last event of this kind."""

    batches: tuple[BatchFinished, ...]


@unchanging()
class FeedbackFetched:
    """Feedback of one partition, in offset order; undecodable records are already dead letters."""

    feedback: Feedback


@unchanging()
class PredictionsFetched:
    """Terminal records of one partition of the predictions topic, and the position after them."""

    partition: int
    predictions: JoinedPredictions
    next_offset: int


@unchanging()
class OutcomesFetched:
    """Outcomes of one partition, in offset order."""

    outcomes: Outcomes


@unchanging()
class Produced:
    """The broker has acknowledged everything sent under this token."""

    token: int
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Partition -> offset of the first record written there."""
    append_ms: int = -1
    """Of the last one."""

    @property
    def offset(self) -> int:
        """Where the one record stands that was sent; -1 where nothing was."""
        return next(iter(self.offsets.values()), -1)


@unchanging()
class ProduceFailed:
    """Some of what was sent under this token is not in the log, or it is not known whether it is."""

    token: int
    error: str
    written: Mapping[int, int] = field(default_factory=dict)
    """Partition -> how many of its rows, the first ones, are in the log all the same: to send them again would have
    them there twice."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """As of `Produced`, where something was written."""


@unchanging()
class Drain:
    """The process is to stop: take nothing new, finish what is begun."""


@unchanging()
class Tick:
    """Time has passed; sent at the stage's deadline, or earlier."""


Event = (
    Assigned
    | Revoked
    | RequestsFetched
    | AnswersFetched
    | RawAnswersFetched
    | StatesFetched
    | ModelsHosted
    | ContextsFetched
    | StatesKnownUntil
    | BatchesFinished
    | FeedbackFetched
    | PredictionsFetched
    | OutcomesFetched
    | Produced
    | ProduceFailed
    | Drain
    | Tick
)
