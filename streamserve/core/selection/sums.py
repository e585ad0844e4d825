"""What the exponential-weights policies share: decayed cumulative losses, a safe softmax, exact probabilities.

Losses are kept, never weights: a weight that underflows to 0 can not come back, a loss can always be forgotten. The
largest exponent is 0, so nothing overflows; underflow touches the probability only, not the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import F64, I64, PROBABILITY_ONE
from streamserve.core.selection.inheriting import Heir, towards
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError, ContractError

#: Of what `dump` gives. A state without a version is of the first.
STATE_VERSION = 1


@unchanging()
class LossSums:
    """Decayed sums of losses, one a model; immutable."""

    models: tuple[str, ...]
    losses: tuple[float, ...]
    """>= 0, finite."""
    events: int = 0
    """Outcomes learnt from, ever."""


def initial_sums(models: Sequence[str]) -> LossSums:
    return LossSums(models=tuple(models), losses=(0.0,) * len(models))


def dump_sums(state: LossSums) -> Mapping[str, Any]:
    return {"v": STATE_VERSION, "losses": dict(zip(state.models, state.losses, strict=True)), "events": state.events}


def load_sums(data: Mapping[str, Any], models: Sequence[str]) -> LossSums:
    """Sums for `models`: those that `data` lacks enter at the mean of the others, those it has too many are left out.

    Raises ContractError where `data` is not what `dump_sums` writes.
    """
    check_version(data)
    try:
        known = {str(model): float(loss) for model, loss in data["losses"].items()}
        events = int(data["events"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"a learnt state cannot be read: {error!r}; written by another version?") from error
    if not all(math.isfinite(loss) and loss >= 0.0 for loss in known.values()):
        raise ContractError(f"a learnt state holds a loss that is negative or not finite: {known}")
    kept = [known[model] for model in models if model in known]
    mean = math.fsum(kept) / len(kept) if kept else 0.0
    return LossSums(models=tuple(models), losses=tuple(known.get(model, mean) for model in models), events=events)


def aligned(state: LossSums, models: Sequence[str]) -> LossSums:
    """The same sums in the order of `models`."""
    return state if state.models == tuple(models) else load_sums(dump_sums(state), models)


def pooled_losses(states: Sequence[LossSums], strength: float, half_life_events: float | None) -> LossSums:
    """The last of these sums, with the mean loss that each level before it has seen counted `strength` times more.

    The mean is that of the levels above together, drawn towards one another in the same way; a level that has seen
    less than `strength` outcomes counts for no more than these.
    """
    last = states[-1]
    sums, weight = list(states[0].losses), events_held(states[0], half_life_events)
    for state in states[1:]:
        counted = min(strength, weight)
        means = [loss / weight if weight > 0.0 else 0.0 for loss in sums]
        above = aligned(state, states[0].models).losses
        sums = [loss + counted * mean for loss, mean in zip(above, means, strict=True)]
        weight = events_held(state, half_life_events) + counted
    return LossSums(models=states[0].models, losses=tuple(sums), events=last.events)


def events_held(state: LossSums, half_life_events: float | None) -> float:
    """How many outcomes the decayed sums stand for."""
    decay = decay_of(half_life_events)
    return float(state.events) if decay == 1.0 else (1.0 - decay**state.events) / (1.0 - decay)


class KeepsLosses:
    """What every policy does alike whose state is `LossSums`: part of the protocol `Policy`."""

    __slots__ = ()

    half_life_events: float | None

    def initial(self, models: Sequence[str]) -> LossSums:
        return initial_sums(models)

    def pooled(self, states: Sequence[LossSums], strength: float) -> LossSums:
        return pooled_losses(states, strength, self.half_life_events)

    def dump(self, state: LossSums) -> Mapping[str, Any]:
        return dump_sums(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> LossSums:
        return load_sums(data, models)

    def inherited(self, data: Mapping[str, Any], model: str, heir: Heir) -> Mapping[str, Any]:
        return towards(data, "losses", model, heir)


def softmin(losses: Sequence[float], eta: float) -> list[float]:
    """`exp(-eta * loss)`, normalised to sum 1."""
    least = min(losses)
    scores = [math.exp(-eta * (loss - least)) for loss in losses]
    total = math.fsum(scores)
    return [score / total for score in scores]


def fixed_point(shares: Sequence[float], at_least: int = 0) -> I64:
    """Shares (sum 1) as integers that sum to `PROBABILITY_ONE` exactly, each >= `at_least`: largest remainders win."""
    n = len(shares)
    to_share = PROBABILITY_ONE - at_least * n
    scaled: F64 = np.asarray(shares, np.float64) * to_share
    units = np.floor(scaled).astype(np.int64)
    rest = to_share - int(units.sum())
    order = np.argsort(units - scaled, kind="stable")
    units[order[:rest]] += 1
    # Only if the shares do not sum to 1 within a rounding error; the sum must be exact whatever comes in.
    units[order[0]] += to_share - int(units.sum())
    return units + at_least


def within_reach(losses: tuple[float, ...], eta: float, least: float) -> tuple[float, ...]:
    """Losses so far above the least that the weight `exp(-eta * loss)` is below `least` of the best one's stop there.

    What fixed share does for weights (Herbster and Warmuth 1998): a model that is mended, or the next best when the
    best one fails, is found in hundreds of feedbacks, not thousands. `least` 0: no such bound.
    """
    if least <= 0.0:
        return losses
    most = min(losses) - math.log(least) / eta
    return tuple(min(loss, most) for loss in losses)


def mean_of_present(state: LossSums, losses: Mapping[str, float], eta: float) -> float:
    """Weighted mean loss of the models in `losses`, weights `exp(-eta * sum)` renormalised over them."""
    present = [total for model, total in zip(state.models, state.losses, strict=True) if model in losses]
    shares = softmin(present, eta)
    return min(1.0, math.fsum(share * loss for share, loss in zip(shares, losses.values(), strict=True)))


def usable_losses(losses: Mapping[str, float], models: Sequence[str]) -> dict[str, float]:
    """Losses of known models that are in [0, 1]; NaN and out-of-range ones teach nothing."""
    return {model: losses[model] for model in models if model in losses and 0.0 <= losses[model] <= 1.0}


def decay_of(half_life_events: float | None) -> float:
    """Factor an event by which older losses shrink; 1 means that nothing is forgotten."""
    return 1.0 if half_life_events is None else 0.5 ** (1.0 / half_life_events)


def check_version(data: Mapping[str, Any]) -> None:
    """Raises ContractError on a state of another version than ours: its numbers may mean something else."""
    version = data.get("v", STATE_VERSION) if isinstance(data, Mapping) else None
    if version != STATE_VERSION:
        raise ContractError(
            f"a learnt state has version {version!r}, this program reads {STATE_VERSION}; "
            "run the program that wrote it, or a newer one"
        )


def check_share(policy: str, name: str, value: float) -> None:
    if not (_is_number(value) and 0.0 <= value < 1.0):
        raise ConfigError(f"policy {policy}: {name} must be at least 0 and below 1, not {value!r}")


def check_prior(policy: str, value: float) -> None:
    if not (_is_number(value) and math.isfinite(value) and value >= 0.0):
        raise ConfigError(f"policy {policy}: prior must be a number of at least 0, not {value!r}")


def check_rate(policy: str, name: str, value: float) -> None:
    if not (_is_number(value) and math.isfinite(value) and value > 0.0):
        raise ConfigError(f"policy {policy}: {name} must be a number above 0, not {value!r}")


def check_half_life(policy: str, value: float | None) -> None:
    if value is not None and not (_is_number(value) and math.isfinite(value) and value >= 1.0):
        raise ConfigError(f"policy {policy}: half_life_events must be a number of at least 1, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
