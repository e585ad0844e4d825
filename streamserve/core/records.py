"""Messages of the learning loop: feedback, what the join remembers of a prediction, outcomes, learnt states.

Feedback is rare beside requests (labels come late and for some), so these are records, not columns; a fetch of them
is a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from streamserve.core.messages import Headers
from streamserve.core.values import unchanging

#: A label is what JSON can say: for a request of many rows, a list of one per row.
Label = Any


@unchanging()
class FeedbackRecord:
    """One label or reward for a past prediction."""

    partition: int
    offset: int
    append_ms: int
    ref: tuple[int, int] | None
    """(partition, offset) of the request: from the header `ss-ref`, else from an id that is a ref."""
    id: str | None
    label: Label = None
    has_label: bool = False
    """A label may be null; this says that there is one."""
    reward: float | None = None
    model: str | None = None
    key: bytes | None = None
    value: bytes = b""
    """The raw record, to be forwarded or dead-lettered byte for byte."""
    headers: Headers = ()
    origin: tuple[int, int] | None = None
    """(partition, offset) where it first landed, if it was forwarded."""
    origin_ms: int | None = None
    """When."""

    @property
    def landed_ms(self) -> int:
        """When it came, whoever has forwarded it since."""
        return self.append_ms if self.origin_ms is None else self.origin_ms


@unchanging()
class Feedback:
    """One fetch of one partition of the feedback topic."""

    partition: int
    records: tuple[FeedbackRecord, ...]
    next_offset: int


@unchanging()
class FeedbackForward:
    to_partition: int
    record: FeedbackRecord


@unchanging()
class PredictionRecord:
    """What the join keeps of a terminal record; `raw` is decoded only on a match."""

    request_offset: int
    """Offset in the requests partition of the same number: with the partition, the ref."""
    append_ms: int
    id: str | None
    raw: bytes


@unchanging()
class JoinedPredictions:
    records: tuple[PredictionRecord, ...]


@unchanging()
class Decision:
    """A terminal record, decoded: what was chosen, who answered what, and under which state."""

    id: str
    route: str
    outcome: str
    epoch: int
    probability: float
    """Of the choice, exact: a multiple of 2**-32."""
    off_epoch: bool
    chosen: tuple[str, ...]
    """Model ids."""
    label: Label
    """What was answered: one value per row (a list), or None."""
    members: Mapping[str, Label]
    """Model id -> what it said, one value per row; those that answered only."""
    rows: int
    probabilities: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Model id -> what it gave each class, one list per row; only where the route's policy learns from it."""
    classes: tuple[str, ...] = ()
    """What the columns of `probabilities` stand for, as text."""
    agreement: float | None = None
    """Weighted agreement over all chosen; only where the route learns confidence."""
    combined: list[list[float]] | None = None
    """What the answer gave each class, one list per row; only where the route learns sets."""
    withheld: Label = None
    """What was not answered since it was not sure enough, one value per row."""
    context: str = ""
    """Of the request, with all its levels; or the vector that its route's policy reads."""
    second: str | None = None
    """The model that was asked for a second opinion; not one of `chosen`, but of `members` where it answered."""
    served_probability: float | None = None
    """With which the answer that was given would be given; only where the route's rule draws it."""
    state_age_ms: int = -1
    """How old the learnt state was that chose, at the request's append; -1: there was none, or nothing tells."""

    @property
    def answer(self) -> Label:
        """What the chosen models said together, whether it was given or withheld."""
        return self.label if self.withheld is None else self.withheld

    @property
    def first_answer(self) -> Label:
        """What was said before a second opinion, if one was asked: by the one model chosen."""
        return self.answer if self.second is None else self.members.get(self.chosen[0])


@unchanging()
class OutcomeRecord:
    """A decision joined with its feedback: what learning, evaluation and retraining read."""

    to_partition: int
    """Outcomes partition: that of the state which it teaches."""
    route: str
    context: str
    ref: tuple[int, int]
    decision: Decision
    feedback: tuple[int, int]
    """(partition, offset) where the feedback first landed."""
    feedback_ms: int
    label: Label = None
    has_label: bool = False
    reward: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    """Model id -> loss in [0, 1], for each member that the feedback informs."""
    open_offset: int = 0
    """Lowest feedback offset of its partition that the join had not settled: bounds the reader's dedupe set."""
    primary: bool = True
    prediction_ms: int = -1
    """Append time of the prediction; -1 in outcomes of older releases, which do not say it."""
    partition: int = -1
    """Where it stands in the log; -1 before it is sent."""
    offset: int = -1
    append_ms: int = -1


@unchanging()
class Outcomes:
    """One fetch of one partition of the outcomes topic."""

    partition: int
    records: tuple[OutcomeRecord, ...]
    next_offset: int


@unchanging()
class StateRecord:
    """One learnt state of a (route, context), and from when it holds."""

    route: str
    context: str
    policy: str
    """The policy's name; a state of another policy is not used."""
    data: Mapping[str, Any]
    """`Policy.dump(state)`: plain JSON values."""
    includes: Mapping[int, int]
    """Outcomes partition -> offset below which every outcome is included."""
    partition: int
    """Epochs (and policy) partition: hash(route, context)."""
    epoch: int = -1
    """Offset of its record in the epochs topic; -1 before it is acknowledged."""
    append_ms: int = -1
    previous: int = -1
    """Epoch of this state's record before."""
    covers: int = 0
    """Snapshots only: epochs offset below which the partition is fully in snapshots."""
    learnt_ms: int = -1
    """Of a keyed state: append time of the newest outcome that it holds. It is forgotten by this."""

    @property
    def included(self) -> int:
        """Offset below which the outcomes of its own partition are included: what tells which of two is newer."""
        return self.includes.get(self.partition, 0)


@unchanging()
class UnreadableState:
    """A record of the epochs topic that should be a learnt state and cannot be read; its key tells whose."""

    route: str
    context: str
    partition: int
    epoch: int
    """Its offset."""
    is_whole: bool
    """It is not damaged, but of a form that this code does not know: another release has written it."""
    words: str
