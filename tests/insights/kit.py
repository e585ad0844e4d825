"""Predictions and outcomes of a made-up app, as insights read them."""

from __future__ import annotations

from typing import Any

from streamserve.core.records import Decision, OutcomeRecord
from streamserve.insights.slices import InsightRules, Key, Slice

MODELS = ("a@1", "b@1")
RULES = InsightRules(routes={}, window_ms=1_000)


def decision(**fields: Any) -> Decision:
    said: dict[str, Any] = {
        "id": "x",
        "route": "main",
        "outcome": "ok",
        "epoch": -1,
        "probability": 1.0,
        "off_epoch": False,
        "chosen": MODELS,
        "label": [1],
        "members": {"a@1": [1], "b@1": [0]},
        "rows": 1,
    }
    return Decision(**(said | fields))


def outcome(offset: int, **fields: Any) -> OutcomeRecord:
    said: dict[str, Any] = {
        "to_partition": 0,
        "route": "main",
        "context": "",
        "ref": (0, offset),
        "decision": decision(),
        "feedback": (0, offset),
        "feedback_ms": 1_500,
        "label": 1,
        "has_label": True,
        "losses": {"a@1": 0.0, "b@1": 1.0},
        "prediction_ms": 1_000,
        "partition": 0,
        "offset": offset,
        "append_ms": 1_600,
    }
    return OutcomeRecord(**(said | fields))


def written_by(slice_: Slice, held: dict[Key, bytes]) -> None:
    """Write all of its changes."""
    for step in slice_.changes().steps:
        apply(step, held)


def apply(step: Any, held: dict[Key, bytes]) -> None:
    for key, value in step.items():
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value
