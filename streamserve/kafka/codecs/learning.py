"""The learning loop's own values as JSON: outcomes and learnt states (`streamserve.topics.internal_values`).

Reading raises `ContractError` for a value of another version, `MalformedRecord` for one not of its declared form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from streamserve.core.contexts import is_keyed
from streamserve.core.records import Decision, OutcomeRecord, StateRecord
from streamserve.errors import MalformedRecord
from streamserve.kafka.codecs.contract import VERSION, read
from streamserve.topics.internal_values import DecisionValue, EpochValue, OutcomeValue, PolicyValue

_encode = msgspec.json.Encoder(order="deterministic").encode
_outcome = msgspec.json.Decoder(OutcomeValue).decode
_epoch = msgspec.json.Decoder(EpochValue).decode
_policy = msgspec.json.Decoder(PolicyValue).decode


def state_key(route: str, context: str) -> bytes:
    """Key of outcomes, epochs and policy records: `<route>`, or `<route>/<context>`."""
    return (f"{route}/{context}" if context else route).encode("utf-8", "replace")


def route_and_context(key: bytes | None) -> tuple[str, str]:
    """What `state_key` made a key of; a name of a route has no slash."""
    route, _, context = (key or b"").decode("utf-8", "replace").partition("/")
    return route, context


def is_keyed_key(key: bytes | None) -> bool:
    """Whether `state_key` made it of a keyed context."""
    return key is not None and is_keyed(key.decode("utf-8", "replace"))


def encode_outcome(outcome: OutcomeRecord) -> bytes:
    decision = outcome.decision
    return _encode(
        OutcomeValue(
            v=VERSION,
            route=outcome.route,
            context=outcome.context,
            ref=list(outcome.ref),
            decision=DecisionValue(
                id=decision.id,
                route=decision.route,
                outcome=decision.outcome,
                epoch=decision.epoch,
                probability=decision.probability,
                off_epoch=decision.off_epoch,
                chosen=list(decision.chosen),
                label=decision.label,
                members=dict(decision.members),
                rows=decision.rows,
                probabilities=dict(decision.probabilities),
                classes=list(decision.classes) if decision.probabilities or decision.combined else [],
                agreement=decision.agreement,
                combined=decision.combined,
                withheld=decision.withheld,
                context=decision.context,
                second=decision.second,
                served_probability=decision.served_probability,
                state_age_ms=decision.state_age_ms,
            ),
            feedback=list(outcome.feedback),
            feedback_ms=outcome.feedback_ms,
            open_offset=outcome.open_offset,
            primary=outcome.primary,
            label=outcome.label if outcome.has_label else UNSET,
            reward=UNSET if outcome.reward is None else outcome.reward,
            losses=dict(outcome.losses),
            prediction_ms=outcome.prediction_ms,
        )
    )


def decode_outcome(value: bytes | None, *, partition: int, offset: int, append_ms: int) -> OutcomeRecord:
    """The outcome that stands at this place of the outcomes topic."""
    outcome = read(value, _outcome, f"the outcome {partition}-{offset}")
    decision = outcome.decision
    return OutcomeRecord(
        to_partition=partition,
        route=outcome.route,
        context=outcome.context,
        ref=(outcome.ref[0], outcome.ref[1]),
        decision=Decision(
            id=decision.id,
            route=decision.route,
            outcome=decision.outcome,
            epoch=decision.epoch,
            probability=decision.probability,
            off_epoch=decision.off_epoch,
            chosen=tuple(decision.chosen),
            label=decision.label,
            members=decision.members,
            rows=decision.rows,
            probabilities=decision.probabilities,
            classes=tuple(decision.classes),
            agreement=decision.agreement,
            combined=decision.combined,
            withheld=decision.withheld,
            context=decision.context,
            second=decision.second,
            served_probability=decision.served_probability,
            state_age_ms=decision.state_age_ms,
        ),
        feedback=(outcome.feedback[0], outcome.feedback[1]),
        feedback_ms=outcome.feedback_ms,
        label=None if outcome.label is UNSET else outcome.label,
        has_label=outcome.label is not UNSET,
        reward=None if isinstance(outcome.reward, msgspec.UnsetType) else outcome.reward,
        losses=outcome.losses,
        open_offset=outcome.open_offset,
        primary=outcome.primary,
        prediction_ms=outcome.prediction_ms,
        partition=partition,
        offset=offset,
        append_ms=append_ms,
    )


def encode_epoch(state: StateRecord) -> bytes:
    """Value of the epochs topic; its offset will be the state's epoch."""
    return _encode(EpochValue(**_shared_fields(state)))


def encode_snapshot(state: StateRecord) -> bytes:
    """Value of the policy and the contexts topic: the same state, with the place and time of its epochs record."""
    return _encode(
        PolicyValue(
            **_shared_fields(state),
            partition=state.partition,
            epoch=state.epoch,
            append_ms=state.append_ms,
            covers=state.covers,
        )
    )


def _shared_fields(state: StateRecord) -> dict[str, Any]:
    return {
        "v": VERSION,
        "route": state.route,
        "context": state.context,
        "policy": state.policy,
        "data": dict(state.data),
        "includes": {str(partition): offset for partition, offset in state.includes.items()},
        "previous": state.previous,
        "learnt_ms": state.learnt_ms,
    }


def decode_epoch(value: bytes | None, *, partition: int, offset: int, append_ms: int) -> StateRecord:
    """The state that stands at this place of the epochs topic."""
    what = f"the epochs record {partition}-{offset}"
    state = read(value, _epoch, what)
    return StateRecord(
        route=state.route,
        context=state.context,
        policy=state.policy,
        data=state.data,
        includes=_includes(state.includes, what),
        partition=partition,
        epoch=offset,
        append_ms=append_ms,
        previous=state.previous,
        learnt_ms=state.learnt_ms,
    )


def decode_snapshot(value: bytes | None, *, partition: int, offset: int) -> StateRecord:
    """The state of a record of the policy or the contexts topic; its epoch and time are those of its epochs record."""
    what = f"the snapshot {partition}-{offset}"
    state = read(value, _policy, what)
    return StateRecord(
        route=state.route,
        context=state.context,
        policy=state.policy,
        data=state.data,
        includes=_includes(state.includes, what),
        partition=state.partition,
        epoch=state.epoch,
        append_ms=state.append_ms,
        previous=state.previous,
        covers=state.covers,
        learnt_ms=state.learnt_ms,
    )


def _includes(offsets: Mapping[str, int], what: str) -> dict[int, int]:
    try:
        return {int(partition): offset for partition, offset in offsets.items()}
    except ValueError:
        raise MalformedRecord(f"{what} names an outcomes partition that is not a number") from None
