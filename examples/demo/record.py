"""What a run leaves behind: every request that was sent, and everything that was read back from the topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

#: (partition, offset) of a request: its identity inside the system.
Ref = tuple[int, int]
Headers = Sequence[tuple[str, bytes | None]] | None

THIRDS = ("first", "broken", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One image that was sent."""

    truth: int
    """The digit that it shows."""
    sent_s: float
    """Seconds since the first moment of the run."""
    third: int
    """0, 1 or 2: before the faults, with them, after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """One record of the predictions topic."""

    append_ms: int
    outcome: str
    reason: str
    label: int | None
    answered: int
    """How many members' answers are in it."""
    missing: Mapping[str, str]
    """Chosen member -> why its answer is not in it."""

    @property
    def says(self) -> tuple[str, str, int | None]:
        """What makes two records of one request different ones; timings and members may differ."""
        return self.outcome, self.reason, self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What the policy had learnt at one moment."""

    append_ms: int
    shares: Mapping[str, float]
    """Model id -> weight; they sum to 1."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """Filled in while the run goes on."""

    seconds: float
    models: tuple[str, ...]
    """Model ids, `name@version`."""
    deadline_ms: int
    requests: list[Request] = field(default_factory=list)
    refs: dict[Ref, int] = field(default_factory=dict)
    """Ref -> index in `requests`, for those that the broker acknowledged."""
    refused: int = 0
    """Requests that the broker did not acknowledge."""
    appended_ms: dict[Ref, int] = field(default_factory=dict)
    """By the requests topic's own timestamps."""
    terminals: dict[Ref, list[Terminal]] = field(default_factory=dict)
    losses: dict[Ref, Mapping[str, float]] = field(default_factory=dict)
    """From the outcomes topic: model id -> 0 (right) or 1 (wrong), where a label met the model's answer."""
    weights: list[Weights] = field(default_factory=list)
    labels_sent: int = 0
    restarts: int = 0
    """Processes of the app that ended and were started anew."""
    sent_late_ms: float = 0.0
    """The most that the sender was behind its schedule."""


def third_of(sent_s: float, seconds: float) -> int:
    return min(2, int(3 * sent_s / seconds))


def header(headers: Headers, name: str) -> bytes | None:
    """The value of a header; of one given twice, the last."""
    return next((value for key, value in reversed(headers or ()) if key == name), None)


def read_ref(text: bytes | None) -> Ref | None:
    """`<partition>-<offset>` as two numbers; None where it is not that."""
    partition, dash, offset = (text or b"").decode("ascii", "replace").partition("-")
    return (int(partition), int(offset)) if dash and partition.isdigit() and offset.isdigit() else None


def read_terminal(value: bytes, append_ms: int) -> Terminal:
    """A prediction's value: Open Inference Protocol v2, what is streamserve's in `parameters`."""
    body = orjson.loads(value)
    said: Mapping[str, Any] = body["parameters"]
    labels = next((output["data"] for output in body["outputs"] if output["name"] == "label"), [None])
    chosen = said.get("chosen", "").split(",") if said.get("chosen") else []
    missing = dict(pair.rpartition("=")[::2] for pair in said.get("missing", "").split(",") if pair)
    return Terminal(
        append_ms=append_ms,
        outcome=said["outcome"],
        reason=said["reason"],
        label=labels[0],
        answered=len(chosen) - len(missing) if said["outcome"] in ("ok", "partial") else 0,
        missing=missing,
    )
