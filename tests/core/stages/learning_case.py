"""What the tests of join and update share: a route, a codec of decisions that is plain JSON, events and effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.core.contexts import ContextRule
from streamserve.core.effects import Count, Effect
from streamserve.core.epochs import outcome_partition
from streamserve.core.events import (
    Assigned,
    FeedbackFetched,
    OutcomesFetched,
    PredictionsFetched,
    Produced,
    RawAnswers,
    RawAnswersFetched,
    Resume,
    StatesKnownUntil,
)
from streamserve.core.messages import Answers, Choice
from streamserve.core.records import (
    Decision,
    Feedback,
    FeedbackRecord,
    JoinedPredictions,
    OutcomeRecord,
    Outcomes,
    PredictionRecord,
)
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.base import Policy
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.static import Static
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.core.stages.update import UpdateOptions, UpdateStage
from streamserve.kafka.codecs import encode_answers
from streamserve.kafka.intake import late_answers

PARTITIONS = 3
MODELS = ("a@1", "b@1")
HOME = outcome_partition("r", "", PARTITIONS)
NOW_MS = 1_700_000_000_000


def rules_of(policy: Policy | None = None, combine: str = "vote") -> AppRules:
    learnt = Route(
        name="r",
        models=MODELS,
        policy=policy or Hedge(),
        combine=combine,
        deadline_ms=100,
        learns=True,
        contexts=ContextRule(),
    )
    fixed = Route(name="fixed", models=MODELS, policy=Static(), combine="vote", deadline_ms=100)
    return AppRules(routes=(learnt, fixed))


# -- join ------------------------------------------------------------------------------------------------------


def decode(raw: bytes) -> Decision | None:
    try:
        fields = json.loads(raw)
    except ValueError:
        return None
    return Decision(**{**fields, "chosen": tuple(fields["chosen"])})


def prediction(offset: int, append_ms: int = NOW_MS, id_: str | None = None, **changed: Any) -> PredictionRecord:
    fields: dict[str, Any] = {
        "id": id_ or f"0-{offset}", "route": "r", "outcome": "ok", "epoch": -1, "probability": 1.0,
        "off_epoch": False, "chosen": MODELS, "label": [1], "members": {"a@1": [1], "b@1": [2]}, "rows": 1, **changed,
    }  # fmt: skip
    return PredictionRecord(
        request_offset=offset, append_ms=append_ms, id=id_ or f"0-{offset}", raw=json.dumps(fields).encode()
    )


def predictions(partition: int, *records: PredictionRecord, next_offset: int = 0) -> PredictionsFetched:
    joined = JoinedPredictions(records=records)
    return PredictionsFetched(partition=partition, predictions=joined, next_offset=next_offset or len(records))


def feedback(offset: int, partition: int = 0, append_ms: int = NOW_MS, **fields: Any) -> FeedbackRecord:
    if "reward" not in fields and "label" not in fields:
        fields["label"] = 1
    fields.setdefault("has_label", "label" in fields)
    fields.setdefault("ref", None)
    fields.setdefault("id", None)
    return FeedbackRecord(partition=partition, offset=offset, append_ms=append_ms, value=b"raw", **fields)


def fetched(*records: FeedbackRecord) -> FeedbackFetched:
    partition, last = records[0].partition, records[-1].offset
    return FeedbackFetched(feedback=Feedback(partition=partition, records=records, next_offset=last + 1))


def answers(model: str, offsets: list[int], labels: list[Any], missing: list[int] | None = None) -> Answers:
    n = len(offsets)
    empty = np.zeros(n, np.int64)
    return Answers(
        partition=np.zeros(len(offsets), np.int64), route="r", model=model, offsets=np.array(offsets, np.int64),
        row_starts=np.arange(n + 1, dtype=np.int64), labels=np.array(labels), probabilities=None, classes=None,
        missing=np.array(missing or [0] * n, np.uint8), ids=[None] * n,
        choice=Choice(chosen=empty.astype(np.uint64), probability=empty, epoch=empty, stale=empty.astype(bool)),
        queue_ms=empty.astype(np.int32), inference_ms=empty.astype(np.int32),
    )  # fmt: skip


def answers_fetched(*blocks: Answers, partition: int = 0, next_offset: int) -> RawAnswersFetched:
    raw = (RawAnswers(model=block.model, offsets=block.offsets, value=encode_answers(block)[0]) for block in blocks)
    return RawAnswersFetched(partition=partition, blocks=tuple(raw), next_offset=next_offset)


def join_of(**options: Any) -> JoinStage:
    return JoinStage(rules_of(), JoinOptions(partitions=PARTITIONS, **options), decode, late_answers)


def assigned(*partitions: int, position: int = 0, metadata: str = "") -> Assigned:
    return Assigned(partitions={number: Resume(position=position, metadata=metadata) for number in partitions})


# -- update ----------------------------------------------------------------------------------------------------


def outcome(
    offset: int, losses: Mapping[str, float] | None = None, *, source: tuple[int, int] | None = None, **changed: Any
) -> OutcomeRecord:
    """An outcome in the home partition of route `r`; feedback of the same number unless `source` is given."""
    decision = decode(prediction(offset).raw)
    assert decision is not None
    fields: dict[str, Any] = {
        "to_partition": HOME, "route": "r", "context": "", "ref": (0, offset), "decision": decision,
        "feedback": source or (0, offset), "feedback_ms": NOW_MS, "label": 1, "has_label": True,
        "losses": {"a@1": 0.0, "b@1": 1.0} if losses is None else losses, "open_offset": 0,
        "partition": HOME, "offset": offset, "append_ms": NOW_MS, **changed,
    }  # fmt: skip
    return OutcomeRecord(**fields)


def outcomes(*records: OutcomeRecord) -> OutcomesFetched:
    partition, last = records[0].partition, records[-1].offset
    return OutcomesFetched(outcomes=Outcomes(partition=partition, records=records, next_offset=last + 1))


def update_of(policy: Policy | None = None, **options: Any) -> UpdateStage:
    return UpdateStage(rules_of(policy), UpdateOptions(partitions=PARTITIONS, **options))


def ready(stage: UpdateStage, now_ms: int = NOW_MS, **resume: Any) -> list[Effect]:
    """Assign the home partition and say that all states are known."""
    effects = stage.handle(assigned(HOME, **resume), now_ms)
    return effects + stage.handle(StatesKnownUntil(known_until_ms=now_ms), now_ms)


# -- effects ---------------------------------------------------------------------------------------------------


def of_kind(effects: list[Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def only(effects: list[Effect], kind: type) -> Any:
    found = of_kind(effects, kind)
    assert len(found) == 1, f"expected one {kind.__name__}, got {effects}"
    return found[0]


def counts(effects: list[Effect]) -> dict[str, int]:
    return {count.label: count.n for count in of_kind(effects, Count)}


def ack(effect: Any, offset: int = -1, append_ms: int = -1) -> Produced:
    return Produced(token=effect.token, offsets={HOME: offset}, append_ms=append_ms)
