"""What a seed decides, as explicit values: the app's form, every request, every fault. A run is a function of a plan.

So a failing run is made smaller by leaving things out of its plan, and told by listing what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FeedbackAsk(NamedTuple):
    """Feedback of one request. `kind`: `label`, `reward`, `id` (no ref), `elsewhere` (wrong partition), `malformed`,
    `orphan`."""

    kind: str
    delay_ms: float
    """After the prediction was written; negative: so long after the request was, prediction or not."""
    copies: int = 1


class Ask(NamedTuple):
    """One request. `kind`: `good`, or how it is malformed."""

    number: int
    input: int
    """Names what is asked; two requests may ask the same."""
    kind: str = "good"
    rows: int = 1
    deadline_ms: int = 0
    """0: the route's."""
    copies: int = 1
    """Written so often: a client that did not hear of its acknowledgement writes again."""
    feedback: FeedbackAsk | None = None


class Burst(NamedTuple):
    """Requests appended to one partition as one batch."""

    at_ms: float
    partition: int
    asks: tuple[Ask, ...]
    held_ms: float = 0.0
    """Written in a transaction that is open for so long; 0: in none."""
    aborted: bool = False
    """And then aborted: nobody is to see it."""


class Fault(NamedTuple):
    """One planned trouble. `kind` says which, the rest what it needs.

    `crash` (`point`, `number`: at an effect), `pause`, `stop`, `hand` (stopped, and its twin joins under its name),
    `start`, `away`, `sends` (`point`: fate), `commits`, `model` (`point`: mode), `compact`, `retain` (what no commit
    needs any more is deleted), `delete` (requests of partition `point`, read or not: `number` of a hundred), `deploy`
    (every process restarted with `Form.deployed`, one each `for_ms`), `outage` (whoever writes terminal records is
    gone; `point` "all": everybody), `leader` (broker `number` dies,
    and is fenced after `for_ms`; `point` "append": whichever leads what is written to next, before it says so),
    `follower` (what is new of learnt states and models reaches the process `for_ms` late).
    """

    at_ms: float
    kind: str
    process: str = ""
    for_ms: float = 0.0
    point: str = ""
    number: int = 0
    model: str = ""


class ModelForm(NamedTuple):
    name: str
    version: str
    pool: str
    a_ms: float
    b_ms: float
    batching: str = "auto"
    poor: bool = False
    """Its answers are always wrong."""


class Process(NamedTuple):
    """One process: `role` is `worker`, `aggregate` or `learn`."""

    name: str
    role: str
    pool: str = ""
    skew_ms: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The app and its processes."""

    partitions: int
    fused: bool
    models: tuple[ModelForm, ...]
    processes: tuple[Process, ...]
    policy: str
    combine: str
    input: str
    deadline_ms: int
    has_default: bool
    decide_early: bool
    epoch_delay_ms: int
    session_ms: int
    join_window_ms: int
    publish_every_outcomes: int
    cache: bool
    max_wait_ms: int
    exactly_once: bool = False
    static: bool = False
    """Each process is a static member of its groups, by its name."""
    max_deadline_ms: int = 5_000
    """What is older than that when somebody takes over is answered behind fresh requests."""
    deployed: tuple[ModelForm, ...] = ()
    """The route's models after a deploy in the midst of the run; empty: there is none."""

    keyed: bool = False
    """A learnt state for each record key, too."""
    forget_after_ms: int = 86_400_000
    """Of these."""
    baseline: str = ""
    """A model with which the others are compared, to be frozen; empty: none is."""
    second: ModelForm | None = None
    """Asked for second opinions where the answer of one model is not sure enough."""

    @property
    def keys(self) -> int:
        """How many different ones requests have."""
        return 5 if self.keyed else 97

    @property
    def variants(self) -> tuple[tuple[ModelForm, ...], ...]:
        """The route's models, before and after the deploy."""
        return (self.models, self.deployed) if self.deployed else (self.models,)

    def hosted(self, variant: int) -> tuple[ModelForm, ...]:
        """All that pools host, before and after the deploy."""
        return self.variants[variant] if self.second is None else (*self.variants[variant], self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    form: Form
    bursts: tuple[Burst, ...]
    faults: tuple[Fault, ...]

    @property
    def requests(self) -> int:
        return sum(len(burst.asks) for burst in self.bursts)
