"""What a route is to the core: plain values, built from the config by the shell."""

from __future__ import annotations

from typing import Any

from streamserve.core.bounds import Bounds
from streamserve.core.contexts import GLOBAL, ContextRule
from streamserve.core.selection.base import Policy
from streamserve.core.selection.confident import Confident
from streamserve.core.values import unchanging

COMBINE_RULES = ("vote", "mean_probability", "log_probability", "mean", "best", "drawn")


#: After its deadline nothing more is decided about a request; clocks and a slow loop may take some of this.
_KEEP_MS = 60_000


@unchanging(eq=False)
class Route:
    """What a request can ask for."""

    name: str
    models: tuple[str, ...]
    """Model ids (`name@version`); their order gives the bits of masks."""
    policy: Policy
    combine: str
    """One of `COMBINE_RULES`."""
    deadline_ms: int
    input: str = "oip"
    """Name of the codec that reads its requests."""
    default: Any = None
    has_default: bool = False
    """A default may be null; this says that there is one."""
    confidence_threshold: float = 0.0
    """Below it the default is given (reason `low_confidence`), if the route has one; nothing where it `abstains`."""
    abstains: bool = False
    """Below the threshold nothing is answered (reason `abstained`)."""
    decide_early: bool = True
    """Answer as soon as the members still missing cannot change it."""
    learns: bool = False
    """Its policy has a state that feedback changes."""
    max_state_age_ms: int = 0
    """A learnt state older than this, at a request's append, is not used for it: the initial one is. 0: however old."""
    probabilities: bool = False
    """Predictions carry the combined probabilities as a second output."""
    tells_probabilities: bool = False
    """Predictions carry each member's probabilities: its policy learns from them."""
    second: str | None = None
    """A model, the last of `models`, that no policy chooses: it is asked where a first answer, of one model, is less
    sure than the threshold, and there is time; then its answer counts."""
    pools: tuple[str, ...] = ()
    """The pool that each model is asked in; empty: whichever hosts it."""
    fingerprint: str = ""
    """Of all that makes it up: versions of a route with the same one are the same."""
    contexts: ContextRule | None = None
    """Its requests have contexts, with a learnt state each; None: they share one."""

    def levels(self, context: str) -> tuple[str, ...]:
        """The contexts whose states feedback of this one teaches, its own last."""
        return (GLOBAL,) if self.contexts is None else self.contexts.levels(context)

    @property
    def second_mask(self) -> int:
        """The bit of the second opinion; 0: there is none."""
        return 0 if self.second is None else 1 << (len(self.models) - 1)

    @property
    def keyed(self) -> bool:
        """The last level of its contexts is a key, whose state belongs to a partition."""
        return self.contexts is not None and self.contexts.keyed

    @property
    def confident(self) -> Confident | None:
        """Its policy, where it learns how sure answers are."""
        return self.policy if isinstance(self.policy, Confident) else None


@unchanging(eq=False)
class AppRules:
    """What holds for all routes of an app."""

    routes: tuple[Route, ...]
    max_deadline_ms: int = 60_000
    max_request_bytes: int = 1 << 20
    guard_ms: int = 15
    """A prediction is emitted this long before its deadline, so that its append is still in time."""
    epoch_delay_ms: int = 250
    """A state holds for requests appended at least this long after it."""
    bounds: Bounds = Bounds()

    @property
    def routes_delay_ms(self) -> int:
        """Routes hold for requests appended at least this long after their record. Longer than for a state: a change
        of routes can wait, and a process that stood still for a moment has then read of it all the same."""
        return 4 * self.epoch_delay_ms

    @property
    def keep_ms(self) -> int:
        """After so long no request that was decided by something since replaced is open."""
        return self.max_deadline_ms + self.routes_delay_ms + _KEEP_MS

    @property
    def shortest_budget_ms(self) -> int:
        """Of the routes' deadlines."""
        return min((route.deadline_ms for route in self.routes), default=self.max_deadline_ms)
