"""From logged outcomes to what another policy would have earned: exact replay, and evidence for off-policy estimates.

*Exact replay*: outcomes that tell every model's loss. The policy is played over them as if it had served: it chooses,
its choice is answered by what those models said, and it learns from what it would have seen. Any policy, learning ones
too. *Estimates*: outcomes of requests for which one model was drawn with a logged probability. The policy learns from
them in their order, so its choice at each depends on earlier ones only, and the estimates are valid for "the policy,
having learnt from this log". Only for policies that ask one model a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamserve.core.combining import MemberRows, combine
from streamserve.core.evaluation.estimates import Logged
from streamserve.core.evaluation.states import PlayedStates
from streamserve.core.losses import Unusable, label_rows, losses_of
from streamserve.core.messages import F64, I64, PROBABILITY_ONE, AnyArray
from streamserve.core.records import FeedbackRecord, OutcomeRecord
from streamserve.core.routes import Route
from streamserve.core.selection.base import Distribution, pick, salt_of
from streamserve.core.selection.stack import column_of
from streamserve.core.selection.sums import usable_losses
from streamserve.core.values import unchanging

_ANSWER = "answer"
_READ_PROBABILITIES = ("mean_probability", "log_probability")


@unchanging(eq=False)
class Evidence:
    """What the outcomes of one route say about a policy."""

    served: F64
    """Rewards of what was served, where they are known."""
    replayed: F64
    """Rewards of the policy on outcomes that tell every model's loss."""
    served_there: F64
    """Rewards of what was served on those very outcomes, where they are known."""
    as_votes: int
    """How many of `replayed` were combined as votes, though the rule reads probabilities: nothing tells them."""
    logged: Logged | None
    """Drawn decisions; None where the policy asks several models, or nothing was drawn."""
    drawn: int
    """Outcomes of one drawn model; `logged` is of these."""
    passed_over: int
    """Outcomes that are of no use for either."""


def gather(outcomes: Sequence[OutcomeRecord], route: Route) -> Evidence:
    """What `route.policy` would have earned. Outcomes of other routes, repeated and not primary ones are left out.

    The route is the one whose requests they are, with the policy that is asked about in place of its own.
    """
    mine = _of_route(outcomes, route.name)
    # With a second opinion all have answered just where the first was not sure: no sample of the requests.
    mine = [outcome for outcome in mine if outcome.decision.second is None]
    full = [outcome for outcome in mine if len(usable_losses(outcome.losses, route.models)) == len(route.models)]
    drawn = [outcome for outcome in mine if _is_drawn(outcome, route)]
    served = [reward for outcome in mine if (reward := served_reward(outcome, route)) is not None]
    replayed = _replay(full, route)
    there = [reward for outcome in replayed.outcomes if (reward := served_reward(outcome, route)) is not None]
    useful = {id(outcome) for outcome in (*replayed.outcomes, *drawn)}
    return Evidence(
        served=np.asarray(served, np.float64),
        replayed=np.asarray(replayed.rewards, np.float64),
        served_there=np.asarray(there, np.float64),
        as_votes=replayed.as_votes,
        logged=_logged(drawn, route),
        drawn=len(drawn),
        passed_over=len(mine) - len(useful),
    )


def served_reward(outcome: OutcomeRecord, route: Route) -> float | None:
    """Of the answer that the caller got: its reward, or 1 minus its loss by the label; None where nothing tells it."""
    decision = outcome.decision
    if outcome.reward is not None and 0.0 <= outcome.reward <= 1.0:
        return outcome.reward
    if not outcome.has_label or not isinstance(decision.label, list) or not decision.label:
        return None
    return _reward_of(outcome, route, decision.label)


def _of_route(outcomes: Sequence[OutcomeRecord], route: str) -> list[OutcomeRecord]:
    """The first outcome of each feedback counts."""
    found: dict[tuple[int, int], OutcomeRecord] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.partition, one.offset)):
        if outcome.route == route and outcome.primary:
            found.setdefault(outcome.feedback, outcome)
    return list(found.values())


def _is_drawn(outcome: OutcomeRecord, route: Route) -> bool:
    decision = outcome.decision
    one = len(decision.chosen) == 1 and decision.chosen[0] in route.models and not decision.off_epoch
    known = bool(usable_losses(outcome.losses, decision.chosen))
    return one and known and 1.0 / PROBABILITY_ONE <= decision.probability < 1.0


@dataclass(slots=True, kw_only=True)
class _Replayed:
    outcomes: list[OutcomeRecord] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    as_votes: int = 0


def _replay(full: list[OutcomeRecord], route: Route) -> _Replayed:
    models, states = route.models, PlayedStates(route)
    salt, found = salt_of(route.name, route.policy.name), _Replayed()
    for outcome in full:
        distribution = states.distribution(outcome)
        place = (np.array([outcome.ref[0]], np.int64), np.array([outcome.ref[1]], np.int64))
        masks, drawn = pick(distribution, *place, salt)
        chosen = [bit for bit in range(len(models)) if int(masks[0]) >> bit & 1]
        reward = _earned(outcome, route, chosen, distribution)
        if reward is not None:
            found.outcomes.append(outcome)
            found.rewards.append(reward)
            found.as_votes += len(chosen) > 1 and _is_vote(outcome, route)
        states.learn(_as_if(outcome, [models[bit] for bit in chosen], int(drawn[0]) / PROBABILITY_ONE))
    return found


def _as_if(outcome: OutcomeRecord, chosen: list[str], probability: float) -> OutcomeRecord:
    """The outcome that the policy would have learnt from, had it served."""
    losses = {model: outcome.losses[model] for model in chosen}
    decision = replace(outcome.decision, chosen=tuple(chosen), probability=probability, off_epoch=False)
    return replace(outcome, decision=decision, losses=losses)


def _earned(outcome: OutcomeRecord, route: Route, chosen: list[int], distribution: Distribution) -> float | None:
    """One model: 1 - its loss. Several: their answers are combined by the weights, and judged by the label.

    Where one's answer is drawn, it earns what is expected of the draw. None: it cannot be told.
    """
    if len(chosen) == 1:
        return 1.0 - outcome.losses[route.models[chosen[0]]]
    if route.combine == "drawn":
        losses = np.array([outcome.losses[route.models[bit]] for bit in chosen])
        return 1.0 - float(np.average(losses, weights=distribution.weights[chosen]))
    members = _members(outcome, route, chosen) if outcome.has_label else None
    if members is None:
        return None
    rule = "vote" if _is_vote(outcome, route) else route.combine
    combined = combine(rule, np.tile(distribution.weights[chosen], (len(members[0].labels), 1)), members)
    return _reward_of(outcome, route, combined.labels.tolist())


def _is_vote(outcome: OutcomeRecord, route: Route) -> bool:
    """Whether probabilities are asked for and the outcome tells none: only policies that read them put them there."""
    return route.combine in _READ_PROBABILITIES and not outcome.decision.probabilities


def _members(outcome: OutcomeRecord, route: Route, chosen: list[int]) -> list[MemberRows] | None:
    """What they said. None: not all of it is known; one that answered late told its label alone."""
    decision = outcome.decision
    models = [route.models[bit] for bit in chosen]
    said = [decision.members.get(model) for model in models]
    if any(not isinstance(rows, list) for rows in said):
        return None
    labels = [_array(rows) for rows in said]
    n = len(labels[0])
    if not n or any(len(rows) != n for rows in labels):
        return None
    present = np.ones(n, np.bool_)
    if route.combine not in _READ_PROBABILITIES or not decision.probabilities:
        return [MemberRows(present=present, labels=rows, probabilities=None, classes=None) for rows in labels]
    classes = _classes(decision.classes, [*said, label_rows(outcome.label, n, vectors=False)])
    given = [_probabilities(decision.probabilities.get(model), n, len(classes)) for model in models]
    if any(one is None for one in given):
        return None
    return [
        MemberRows(present=present, labels=rows, probabilities=one, classes=classes)
        for rows, one in zip(labels, given, strict=True)
    ]


def _probabilities(told: list[list[float]] | None, n: int, width: int) -> F64 | None:
    """`[n, width]`; None where these are not n lists of so many numbers from 0 to 1."""
    try:
        found = np.asarray(told, np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.shape == (n, width) and bool(np.all((found >= 0.0) & (found <= 1.0))) else None


def _classes(names: Sequence[str], seen: Sequence[Any]) -> AnyArray:
    """The classes as labels: their names in a record are texts, of whatever kind the labels are."""
    classes = np.empty(len(names), object)
    classes[:] = names
    for label in (label for rows in seen for label in rows or ()):
        column = column_of(label, names)
        if column >= 0:
            classes[column] = label
    return classes


def _array(rows: Any) -> AnyArray:
    kinds = {type(row) for row in rows}
    if kinds <= {int, float, bool}:
        return np.asarray(rows)
    found = np.empty(len(rows), object)
    found[:] = [tuple(row) if isinstance(row, list) else row for row in rows]
    return found


def _reward_of(outcome: OutcomeRecord, route: Route, answer: list[Any]) -> float | None:
    feedback = FeedbackRecord(
        partition=0, offset=0, append_ms=0, ref=None, id=None, label=outcome.label, has_label=True
    )
    rows = [list(row) if isinstance(row, tuple) else row for row in answer]
    losses = losses_of(route.combine, outcome.decision, {_ANSWER: rows}, feedback)
    return None if isinstance(losses, Unusable) or _ANSWER not in losses else 1.0 - losses[_ANSWER]


def _logged(drawn: list[OutcomeRecord], route: Route) -> Logged | None:
    models, states = route.models, PlayedStates(route)
    n = len(drawn)
    wanted: F64 = np.zeros((n, len(models)))
    actions: I64 = np.zeros(n, np.int64)
    probabilities, rewards = np.ones(n), np.zeros(n)
    for turn, outcome in enumerate(drawn):
        shares = _one_each(states.distribution(outcome), len(models))
        if shares is None:
            return None
        model = outcome.decision.chosen[0]
        wanted[turn], actions[turn] = shares, models.index(model)
        probabilities[turn], rewards[turn] = outcome.decision.probability, 1.0 - outcome.losses[model]
        states.learn(outcome)
    return Logged(actions=actions, probabilities=probabilities, rewards=rewards, wanted=wanted) if n else None


def _one_each(distribution: Distribution, models: int) -> F64 | None:
    """`[models]`: each one's share of requests; None where several are asked at once."""
    shares = np.zeros(models)
    for mask, probability in zip(distribution.masks.tolist(), distribution.probabilities.tolist(), strict=True):
        if mask & (mask - 1):
            return None
        shares[mask.bit_length() - 1] = probability / PROBABILITY_ONE
    return shares
