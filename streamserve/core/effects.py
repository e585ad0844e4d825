"""Effects: commands from a stage to the shell. The shell performs them in order and reports back by events.

Every `Emit*` carries a token, unique within the stage: the shell answers it with exactly one `Produced` or
`ProduceFailed`. `Settle` says that an input needs nothing more; the shell's ledger turns that into commits.
"""

from __future__ import annotations

from streamserve.core.fast import distinct
from streamserve.core.messages import I64, Answers, AnyArray, DeadLetters, Predictions
from streamserve.core.records import FeedbackForward, OutcomeRecord, StateRecord
from streamserve.core.values import unchanging


@unchanging(eq=False)
class RunBatch:
    """Run a model on n rows; answered by one `BatchFinished`."""

    batch: int
    model: str
    inputs: AnyArray
    """`[n, ...]`"""
    why: str
    """What decided the size: `floor`, `slack`, `cap`, `drained`, ... (a metric label)."""
    target_rows: int = 0
    """What the size would have been, had more been queued."""
    here: bool = False
    """By the loop itself, since it is brief and cannot hang (`lanes`); else off it."""


@unchanging(eq=False)
class EmitAnswers:
    token: int
    answers: Answers


@unchanging(eq=False)
class EmitPredictions:
    token: int
    predictions: Predictions


@unchanging(eq=False)
class EmitDeadLetters:
    token: int
    letters: DeadLetters


@unchanging(eq=False)
class EmitOutcomes:
    """Outcomes, each to the partition that it names."""

    token: int
    outcomes: tuple[OutcomeRecord, ...]


@unchanging(eq=False)
class EmitState:
    """One learnt state to the epochs topic; the acknowledgement gives its epoch (offset) and append time."""

    token: int
    state: StateRecord


@unchanging(eq=False)
class EmitSnapshot:
    """The same state to the compacted policy topic (a keyed one: contexts topic), after its epochs record was
    acknowledged."""

    token: int
    state: StateRecord


@unchanging(eq=False)
class ForgetState:
    """A tombstone to the contexts topic: the keyed state of this context is not in force for any open request."""

    token: int
    route: str
    context: str
    partition: int


@unchanging(eq=False)
class ForwardFeedback:
    """Feedback that landed on another partition than its prediction: sent on, once."""

    token: int
    forward: FeedbackForward


@unchanging(eq=False)
class Settle:
    """These offsets of the driving topic need nothing more."""

    partition: int
    offsets: I64


@unchanging()
class Pause:
    """Stop fetching these partitions of a source (`requests`, `answers`, ...) until `Continue`."""

    source: str
    partitions: tuple[int, ...]


@unchanging()
class Continue:
    source: str
    partitions: tuple[int, ...]


@unchanging()
class Count:
    """Something that is not lost in silence: a named count with one label value."""

    what: str
    label: str
    n: int
    model: str = ""
    """Whose count it is, where it is a model's."""


Effect = (
    RunBatch
    | EmitAnswers
    | EmitPredictions
    | EmitDeadLetters
    | EmitOutcomes
    | EmitState
    | EmitSnapshot
    | ForgetState
    | ForwardFeedback
    | Settle
    | Pause
    | Continue
    | Count
)


def settles(partition: I64, offsets: I64) -> list[Settle]:
    """Offsets of several partitions, `[n]` each, as one effect a partition."""
    found = distinct(partition)
    if len(found) == 1:
        return [Settle(partition=found[0], offsets=offsets)]
    return [Settle(partition=number, offsets=offsets[partition == number]) for number in found]
