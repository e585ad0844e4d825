"""One record of each topic, for the published contract. A test holds each against its type and its schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamserve.topics.names import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A record whose value is JSON."""

    key: str | None
    value: Any
    headers: Mapping[str, str] = field(default_factory=dict)


_REF = "2-1047"
_DECISION = {
    "id": "order-17",
    "route": "fraud",
    "outcome": "ok",
    "epoch": 311,
    "probability": 1.0,
    "off_epoch": False,
    "chosen": ["linear@1", "forest@1"],
    "label": [0],
    "members": {"linear@1": [1], "forest@1": [0]},
    "rows": 1,
}
_STATE = {
    "v": 1,
    "route": "fraud",
    "context": "",
    "policy": "hedge",
    "data": {"log_weights": {"linear@1": -0.9, "forest@1": 0.0}},
    "includes": {"0": 5210},
    "previous": 308,
}

EXAMPLES: Mapping[Kind, Example] = {
    Kind.REQUESTS: Example(
        key="customer-5",
        headers={"ss-route": "fraud", "ss-deadline-ms": "80"},
        value={
            "id": "order-17",
            "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP64", "data": [0.5, -1.25, 3.0, 0.0]}],
        },
    ),
    Kind.PREDICTIONS: Example(
        key="customer-5",
        headers={"ss-ref": _REF, "ss-id": "order-17", "ss-outcome": "ok"},
        value={
            "model_name": "fraud",
            "id": "order-17",
            "outputs": [
                {"name": "label", "shape": [1], "datatype": "INT64", "data": [0]},
                {"name": "member.linear@1", "shape": [1], "datatype": "INT64", "data": [1]},
            ],
            "parameters": {
                "outcome": "ok",
                "reason": "all_answered",
                "confidence": 0.71,
                "probability": 1.0,
                "epoch": 311,
                "chosen": "linear@1,forest@1",
                "queue_ms": 3,
                "inference_ms": 4,
                "total_ms": 9,
            },
        },
    ),
    Kind.FEEDBACK: Example(key="customer-5", headers={"ss-ref": _REF}, value={"id": "order-17", "label": 1}),
    Kind.OUTCOMES: Example(
        key="fraud",
        value={
            "v": 1,
            "route": "fraud",
            "context": "",
            "ref": [2, 1047],
            "decision": _DECISION,
            "feedback": [2, 88],
            "feedback_ms": 1_767_225_604_210,
            "label": 1,
            "losses": {"linear@1": 0.0, "forest@1": 1.0},
            "open_offset": 88,
            "primary": True,
            "prediction_ms": 1_767_225_601_030,
        },
    ),
    Kind.EPOCHS: Example(key="fraud", value=_STATE),
    Kind.POLICY: Example(
        key="fraud",
        value={**_STATE, "partition": 0, "epoch": 311, "append_ms": 1_767_225_604_480, "covers": 311},
    ),
    Kind.CONTEXTS: Example(
        key="fraud/eu//alice",
        value={
            **_STATE,
            "context": "eu//alice",
            "partition": 2,
            "includes": {"2": 1049},
            "epoch": 90,
            "append_ms": 1_767_225_604_480,
            "covers": 91,
            "learnt_ms": 1_767_225_604_230,
        },
    ),
    Kind.INSIGHTS: Example(
        key='["fraud","linear@1","",1767225600000]',
        value={
            "v": 1,
            "route": "fraud",
            "model": "linear@1",
            "context": "",
            "from_ms": 1_767_225_600_000,
            "until_ms": 1_767_225_660_000,
            "final": False,
            "predictions": 5_210,
            "answered": 5_198,
            "outcomes": {"ok": 5_198, "partial": 12},
            "agreement": 0.961,
            "feedback": 1_044,
            "join_rate": 0.2004,
            "judged": 1_044,
            "accuracy": 0.941,
            "delay_p50_ms": 3_180.2,
            "delay_p90_ms": 9_702.5,
            "delay_p99_ms": 28_840.9,
            "drift_alarms": 1,
            "drift_ms": 1_767_225_668_120,
        },
    ),
    Kind.MODELS: Example(
        key="main/worker-1",
        value={"kind": "hosts", "v": 1, "pool": "main", "instance": "worker-1", "models": ["linear@1", "forest@1"]},
    ),
}
