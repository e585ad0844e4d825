"""Invariants of the learning loop: feedback, outcomes, states, and the choices made under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from streamserve.core.contexts import GLOBAL, is_keyed
from streamserve.core.epochs import EpochTable, outcome_partition
from streamserve.core.events import ContextsFetched
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord, StateRecord
from streamserve.core.routes import Route
from streamserve.testing.simulator.app import key_of
from streamserve.testing.simulator.evidence import Evidence, Feedback, Request, Terminal
from streamserve.testing.simulator.plan import Form
from streamserve.testing.simulator.verdict import Verdict


def feedback_is_joined_once(evidence: Evidence) -> Verdict:
    """Every feedback record ends, and one whose prediction it can name in time ends as an outcome."""
    verdict = Verdict()
    if not evidence.simulation.seen.settled:
        return verdict
    for (number, offset), feedback in evidence.feedback.items():
        if feedback.forwarded:
            continue
        verdict.premise += 1
        name = f"feedback {number}-{offset}"
        if not feedback.ends:
            verdict.fail(f"{name} ({feedback.value[:40]!r}) is settled and led to nothing")
        elif _must_join(evidence, feedback) and "outcome" not in feedback.ends:
            verdict.fail(
                f"{name} ({feedback.value[:40]!r}) names a prediction of its window and became {feedback.ends}"
            )
    return verdict


def _must_join(evidence: Evidence, feedback: Feedback) -> bool:
    """A label for a prediction of the same partition, within the window of all feedback that can come with it."""
    ref = feedback.ref
    if ref is None or ref[0] != feedback.partition or b'"label"' not in feedback.value:
        return False
    terminals = evidence.terminals[ref[0]].get(ref[1])
    if not terminals or terminals[0].value.parameters.outcome not in ("ok", "partial"):
        return False
    return feedback.append_ms - terminals[0].append_ms < evidence.form.join_window_ms // 2


@dataclass(slots=True)
class Replay:
    """What one learner that never stops makes of a route's outcomes: each feedback once, in the order of the log."""

    value: Any
    changed: list[int]
    """Offsets of the outcomes that changed the state."""


def replay(evidence: Evidence, route: Route) -> Replay:
    home = outcome_partition(route.name, "", evidence.form.partitions)
    found, seen = Replay(value=route.policy.initial(route.models), changed=[]), set()
    for outcome in evidence.outcomes:
        key = (outcome.feedback, outcome.route, outcome.context)
        if outcome.partition != home or outcome.context or key in seen:
            continue
        seen.add(key)
        learnt = route.policy.learn(found.value, outcome)
        if learnt is not found.value:
            found.changed.append(outcome.offset)
        found.value = learnt
    return found


def the_state_is_that_of_no_crash(evidence: Evidence) -> Verdict:
    """The newest state is what one learner makes of the outcomes in the log, each feedback once, in their order.

    Where the route's models are changed in between, what an outcome teaches depends on who learns from it: there each
    state is to be what that of its predecessor and the outcomes between them make, with the one config or the other.
    """
    verdict = Verdict()
    route = evidence.rules[0].routes[0]
    if not route.learns or not evidence.simulation.seen.settled:
        return verdict
    replayed = replay(evidence, route)
    verdict.premise += len(replayed.changed)
    states = [state for state in evidence.states if state.route == route.name and not state.context]
    _judge_keyed(evidence, route, verdict)
    if len(evidence.rules) > 1:
        _judge_steps(evidence, states, verdict)
    elif replayed.changed and not states:
        verdict.fail(f"{len(replayed.changed)} outcomes taught {route.name}, and no state was published")
    elif replayed.changed:
        # One that reached the log late may stand last; the newest is the one that holds most.
        newest = _plain(max(states, key=lambda state: (state.included, state.epoch)).data)
        expected = _plain(route.policy.dump(replayed.value))
        if newest != expected:
            verdict.fail(f"the state of {route.name} is {newest}; without a crash it is {expected}")
    return verdict


def _judge_keyed(evidence: Evidence, route: Route, verdict: Verdict) -> None:
    """Each keyed state is what its own outcomes make, begun anew where one came after it was forgotten."""
    policy, seen = route.policy, set[tuple[tuple[int, int], str]]()
    made: dict[tuple[int, str], tuple[Any, int]] = {}
    for outcome in evidence.outcomes:
        if not is_keyed(outcome.context) or (outcome.feedback, outcome.context) in seen:
            continue
        seen.add((outcome.feedback, outcome.context))
        at = (outcome.partition, outcome.context)
        if outcome.partition != outcome.ref[0]:
            verdict.fail(f"an outcome of {outcome.context} stands in {at[0]}, its request in {outcome.ref[0]}")
        value, learnt_ms = made.get(at, (policy.initial(route.models), 1 << 60))
        if outcome.append_ms > learnt_ms + evidence.form.forget_after_ms:
            value = policy.initial(route.models)
        learnt = policy.learn(value, outcome)
        if learnt is not value:
            verdict.premise += 1
            made[at] = learnt, outcome.append_ms
    newest: dict[tuple[int, str], StateRecord] = {}
    for state in evidence.states:
        if is_keyed(state.context):
            at = (state.partition, state.context)
            newest[at] = max(newest.get(at, state), state, key=lambda one: (one.included, one.epoch))
    found = {at: (_plain(state.data), state.learnt_ms) for at, state in newest.items()}
    expected = {at: (_plain(policy.dump(value)), learnt_ms) for at, (value, learnt_ms) in made.items()}
    for at in sorted({*found, *expected}):
        if found.get(at) != expected.get(at):
            verdict.fail(
                f"the state of {at[1]} in {at[0]} is {found.get(at)}; without a crash it is {expected.get(at)}"
            )


def _judge_steps(evidence: Evidence, states: list[StateRecord], verdict: Verdict) -> None:
    routes = [rules.routes[0] for rules in evidence.rules]
    home = outcome_partition(routes[0].name, "", evidence.form.partitions)
    seen: set[tuple[int, int]] = set()
    taught = []
    for outcome in evidence.outcomes:
        if outcome.partition == home and outcome.feedback not in seen:
            seen.add(outcome.feedback)
            taught.append(outcome)
    known = {state.epoch: state for state in states}
    for state in states:
        before = known.get(state.previous)
        first = 0 if before is None else before.included
        between = [outcome for outcome in taught if first <= outcome.offset < state.included]
        found = _plain(state.data)
        if not any(
            found == _plain(_learnt(route, before, between[passed:]))
            for route, other in zip(routes, reversed(routes), strict=True)
            # A learner of the other config may have read some before: what told it nothing was settled.
            for passed in range(_says_nothing(other, before, between) + 1)
        ):
            made = [_plain(_learnt(route, before, between)) for route in routes]
            verdict.fail(
                f"the state {state.epoch} is {found}; made of that before it would be {' or '.join(map(str, made))}"
            )


def _learnt(route: Route, before: StateRecord | None, outcomes: list[OutcomeRecord]) -> Mapping[str, Any]:
    policy = route.policy
    value = policy.initial(route.models) if before is None else policy.load(before.data, route.models)
    for outcome in outcomes:
        value = policy.learn(value, outcome)
    return policy.dump(value)


def _says_nothing(route: Route, before: StateRecord | None, outcomes: list[OutcomeRecord]) -> int:
    """How many of them, the first ones, change nothing with this config."""
    policy = route.policy
    value = policy.initial(route.models) if before is None else policy.load(before.data, route.models)
    return next((n for n, outcome in enumerate(outcomes) if policy.learn(value, outcome) is not value), len(outcomes))


def _plain(data: Mapping[str, Any]) -> Any:
    """As it comes out of the log again."""
    return orjson.loads(orjson.dumps(dict(data)))


def choices_follow_the_epochs(evidence: Evidence) -> Verdict:
    """A choice that is not marked is that of the state in force at the request's append time, among the models that
    the route has in the config of who says so. Not of those decided while a leader was lost: a learnt state that was
    appended meanwhile is seen later than its stamp says, and who reads the log cannot know of it."""
    verdict = Verdict()
    if not evidence.rules[0].routes[0].learns:
        return verdict
    variant_of = evidence.simulation.env.variant_of
    for variant, rules in enumerate(evidence.rules):
        table = EpochTable(rules)
        table.known_until(1 << 60)
        table.own(range(evidence.form.partitions))
        table.apply(evidence.states)
        for number in range(evidence.form.partitions):
            table.take(ContextsFetched(partition=number, loaded=True))
        for number, requests in enumerate(evidence.requests):
            if requests:
                mine = [
                    (offset, terminal)
                    for offset, terminals in evidence.terminals[number].items()
                    for terminal in terminals
                    if variant_of[terminal.writer] == variant and not evidence.leaderless(terminal.at_ms)
                ]
                asked = requests, _contexts(rules.routes[0], evidence.form, requests)
                _judge_choices(table, rules.routes[0].models, asked, mine, verdict)
    return verdict


def _contexts(route: Route, form: Form, requests: list[Request | None]) -> list[str] | None:
    rule = route.contexts
    if rule is None:
        return None
    return [GLOBAL if request is None else rule.of_key(key_of(request.ask, form)) for request in requests]


def _judge_choices(
    table: EpochTable,
    models: tuple[str, ...],
    asked: tuple[list[Request | None], list[str] | None],
    terminals: list[tuple[int, Terminal]],
    verdict: Verdict,
) -> None:
    requests, contexts = asked
    number = next((request.partition for request in requests if request is not None), 0)
    choice = table.choose(
        0,
        np.full(len(requests), number, np.int64),
        np.arange(len(requests), dtype=np.int64),
        np.array([0 if request is None else request.append_ms for request in requests], np.int64),
        contexts,
    )
    epochs, masks = choice.epoch.tolist(), choice.chosen.tolist()
    probabilities = (choice.probability / PROBABILITY_ONE).tolist()
    for offset, terminal in terminals:
        said = terminal.value.parameters
        request = requests[offset]
        if said.stale is True or said.off_epoch is True or request is None or request.ask.kind != "good":
            continue
        verdict.premise += epochs[offset] >= 0
        names = ",".join(model for bit, model in enumerate(models) if masks[offset] >> bit & 1)
        expected = (epochs[offset], names, probabilities[offset])
        if (said.epoch, said.chosen, said.probability) != expected:
            found = (said.epoch, said.chosen, said.probability)
            verdict.fail(f"{number}-{offset} was decided as {found}; in force was {expected}")


def commits_of_the_learner(evidence: Evidence) -> Verdict:
    """Below a commit of the join all feedback has led to something; below one of the update it is in a state."""
    verdict, seen = Verdict(), evidence.simulation.seen
    joined = _first_times(evidence.outcomes)
    reached: dict[int, int] = {}
    routes = [rules.routes[0] for rules in evidence.rules]
    home = outcome_partition(routes[0].name, "", evidence.form.partitions)
    changed: list[int] = []
    if routes[0].learns:  # whoever of both configs has read it
        changed = sorted(set.intersection(*(set(replay(evidence, route).changed) for route in routes)))
    published = [
        (evidence.world_ms(state.append_ms), state.includes.get(home, 0))
        for state in evidence.states
        if not state.context
    ]
    for commit in seen.commits:
        if commit.group.endswith(".join"):
            for offset in range(reached.get(commit.partition, 0), commit.offset):
                feedback = evidence.feedback.get((commit.partition, offset))
                if feedback is None or feedback.forwarded or feedback.sent_on or feedback.ends != ["outcome"]:
                    continue
                verdict.premise += 1
                if evidence.world_ms(joined[commit.partition, offset]) > commit.at_ms:
                    verdict.fail(f"the join committed {commit.partition}-{commit.offset} before {offset} was joined")
            reached[commit.partition] = max(reached.get(commit.partition, 0), commit.offset)
        elif commit.group.endswith(".update") and commit.partition == home:
            verdict.premise += 1
            below = [offset for offset in changed[-400:] if offset < commit.offset]
            included = max((upto for at_ms, upto in published if at_ms <= commit.at_ms), default=0)
            if below and below[-1] >= included:
                verdict.fail(
                    f"the update committed {home}-{commit.offset} at {commit.at_ms:.0f} ms; outcome {below[-1]} is in "
                    "no state"
                )
    return verdict


def _first_times(outcomes: list[OutcomeRecord]) -> dict[tuple[int, int], int]:
    times: dict[tuple[int, int], int] = {}
    for outcome in outcomes:
        times[outcome.feedback] = min(times.get(outcome.feedback, 1 << 62), outcome.append_ms)
    return times
