"""The messages that stages exchange: columns, not records.

Conventions
-----------
* A column is a numpy array or a list with one entry a request. `I64`, `F64`, ... name the dtype.
* Rows: a request holds one row or many. `row_starts` has n + 1 entries; the rows of request i are
  `row_starts[i]:row_starts[i + 1]`.
* Models of a route are bits of a `U64` mask, in the order in which the route lists them (at most 64).
* A probability is fixed point: `PROBABILITY_ONE` is 1.0 (rounded before it is drawn and logged, so that every CPU
  draws and logs the same).
* Times are integer epoch milliseconds of the broker's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from streamserve.core.values import unchanging

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: An array of any dtype: labels may be integers, floats, strings (object) or vectors.
AnyArray = NDArray[np.generic]

#: Hashable on purpose: equal headers are parsed once. Kafka allows a null header value.
Headers = tuple[tuple[str, bytes | None], ...]


def headers_bytes(headers: Headers) -> int:
    """What they take, names and values."""
    return sum(map(len, filter(None, chain.from_iterable(headers))))


PROBABILITY_ONE = 1 << 32
#: The epoch of a route's initial state, before any learnt one is in force.
INITIAL_EPOCH = -1
MAX_MODELS_PER_ROUTE = 64
#: Of a model whose head does not learn while it serves.
NO_HEAD = -1
_OFFSET_BITS = 44


def request_keys(partition: I64, offsets: I64) -> I64:
    """One number for each request of a topic; increasing with partition, then offset."""
    return (partition << _OFFSET_BITS) + offsets


@unchanging(eq=False)
class Requests:
    """Requests as they were fetched, of any partitions; offsets of each partition increase but may have gaps."""

    partition: I64
    offsets: I64
    append_ms: I64
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    lag: Mapping[int, int] = field(default_factory=dict)
    """Partition -> records in the log behind its last one here, as the fetch told it."""

    def __len__(self) -> int:
        return len(self.offsets)


@unchanging(eq=False)
class Outputs:
    """What one model call says of a batch of n rows. Built by a runtime, checked by the worker stage."""

    labels: AnyArray
    """`[n]` or `[n, ...]`: the model's answer for each row (class, value or vector)."""
    probabilities: F64 | None = None
    """`[n, classes]`, or None where the model gives none."""
    classes: AnyArray | None = None
    """`[classes]`: what the columns of `probabilities` stand for; None means 0, 1, 2, ..."""
    row_errors: Mapping[int, str] = field(default_factory=dict)
    """Rows that the model refused, with its words; their labels are ignored."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The model's own metrics of this call, added to `streamserve_model_metric`."""
    head: int = NO_HEAD
    """Of a model whose head learns while it serves, the rows that the head which answered had learnt from."""


@unchanging(eq=False)
class Choice:
    """Which models n requests go to, and under which learnt state that was decided."""

    chosen: U64
    probability: I64
    epoch: I64
    stale: Flags


@unchanging()
class Failure:
    """What a dead letter tells of a model's failure on one request."""

    exception: str = ""
    """Its class."""
    stack: str = ""
    attempts: int = 0
    """Calls that held the request."""
    model: str = ""
    """`name@version`."""


@unchanging(eq=False)
class Answers:
    """One model's answers to n requests of one route. A record of the answers topic holds those of one partition."""

    partition: I64
    route: str
    model: str
    offsets: I64
    row_starts: I64
    labels: AnyArray | None
    """`[rows, ...]`, or None where no request of the block was answered."""
    probabilities: F64 | None
    classes: AnyArray | None
    missing: U8
    """`Missing` code of each request; a request that is not PRESENT has no rows."""
    ids: list[str | None]
    """The bodies' ids, None where the body had none."""
    choice: Choice
    queue_ms: I32
    """From append to the start of the model call."""
    inference_ms: I32
    """The model call that answered it."""
    errors: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    """Index -> (`Reason` code, words), for a request that no model can use (then `missing` is BAD_INPUT)."""
    details: Mapping[int, str] = field(default_factory=dict)
    """Index -> words, for a member that failed on this request."""
    failures: Mapping[int, Failure] = field(default_factory=dict)
    """Index -> more than words, for a request on which the model failed when it was called with it alone."""
    models: tuple[str, ...] = ()
    """The route's models as its writer knows them: what the bits of `choice.chosen` stand for. Empty: as we do."""
    head: int = NO_HEAD
    """Rows that the model's head had learnt from, where it learns while it serves."""
    route_index: int = -1
    """Of the route's version, in the process that made it; nobody else can read it."""
    log_offset: I64 | None = None
    """Where each answer stands in the answers topic; None if it was never there."""

    def __len__(self) -> int:
        return len(self.offsets)


@unchanging(eq=False)
class MemberOutput:
    """What one member said, in a block of predictions: only requests where it is present and differs."""

    model: str
    labels: AnyArray
    """`[rows, ...]`, aligned with the block's rows; meaningful where `differs`."""
    differs: Flags
    """One a request: the member answered and its labels are not those of `outputs`."""


@unchanging(eq=False)
class ToldProbabilities:
    """What one member's probabilities were, in a block of predictions: for policies that learn from them."""

    model: str
    rows: F64
    """`[rows, classes]`, aligned with the block's rows, in the columns of the block's `classes`."""
    told: Flags
    """One a request: the member answered, with probabilities."""


@unchanging(eq=False)
class NamedRows:
    """One more output of a block of predictions."""

    name: str
    rows: AnyArray
    """`[rows, ...]`, aligned with the block's rows."""
    told: Flags
    """One a request: it is a part of its record."""


@unchanging(eq=False)
class Predictions:
    """Terminal records of n requests of one route, settled in one step; each belongs to its request's partition."""

    partition: I64
    route: str
    """Empty where the request's route is unknown."""
    models: tuple[str, ...]
    """The route's models: what the bits of `chosen` and `answered` stand for."""
    offsets: I64
    append_ms: I64
    keys: list[bytes | None]
    ids: list[str | None]
    """Body's id, else `ce_id`, else None (the ref is then the id)."""
    traces: list[bytes | None]
    outcome: U8
    reason: U8
    row_starts: I64
    labels: AnyArray | None
    probabilities: F64 | None
    classes: AnyArray | None
    confidence: F64
    """Weighted agreement over all chosen, 0..1; where the route learns it, the probability that the answer is right.
    NaN where there is no answer."""
    choice: Choice
    answered: U64
    missing: NDArray[np.uint8]
    """`[n, models]`: `Missing` code of each chosen model; PRESENT (0) for those not chosen."""
    members: tuple[MemberOutput, ...]
    queue_ms: I32
    inference_ms: I32
    total_ms: I32
    late: Flags
    off_epoch: Flags
    details: Mapping[int, str] = field(default_factory=dict)
    """Index -> words for a person, where the outcome needs them."""
    told: tuple[ToldProbabilities, ...] = ()
    """Only where the route's policy learns from them."""
    agreement: F64 | None = None
    """Beside a learnt confidence: the weighted agreement that it comes from."""
    state_age_ms: I64 | None = None
    """How old the learnt state was that chose, at the request's append; -1: there was none. None: nothing is learnt."""
    set_size: F64 | None = None
    """Classes in the set, or length of the interval, the mean over a request's rows; NaN where there is none."""
    second: str | None = None
    """The route's model for second opinions: of `choice.chosen`, its bit says that it was asked for one."""
    served_probability: F64 | None = None
    """With which each answer would be given, by those who answered; only where the rule draws it."""
    extras: tuple[NamedRows, ...] = ()
    heads: Mapping[int, str] = field(default_factory=dict)
    """Index -> `name@version=rows` of each answering model whose head learns while it serves, comma-joined."""
    contexts: Sequence[str] = ()
    """One a request, where the route's requests have contexts."""

    def __len__(self) -> int:
        return len(self.offsets)


@unchanging(eq=False)
class DeadLetters:
    """Records whose value could not be used, kept whole (up to a limit, cut by the shell) with their reason."""

    source: str
    """Kind of the source topic: `requests` or `feedback`."""
    partition: int
    offsets: I64
    append_ms: I64
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    reasons: list[str]
    details: list[str]
    stage: str
    failures: Mapping[int, Failure] = field(default_factory=dict)
    """Index -> which model failed on it, and how."""
