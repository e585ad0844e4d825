"""The values that people and other programs read and write: requests, predictions, feedback.

Each type is the contract of one JSON value: the JSON Schemas in the folder `topics/` are generated from it. Readers
ignore fields that they do not know, so a field may be added without a new version. The tensor form is the Open
Inference Protocol v2 (JSON); what is ours sits in `parameters`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Scalar = str | int | float | bool
Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]
Outcome = Literal["ok", "partial", "default", "error", "expired"]
Reason = Literal[
    "all_answered",
    "decided_early",
    "members_missing",
    "no_answer_in_time",
    "low_confidence",
    "abstained",
    "late_on_arrival",
    "deadline_passed",
    "shed",
    "empty_value",
    "not_json",
    "wrong_form",
    "wrong_datatype",
    "wrong_shape",
    "too_large",
    "unknown_route",
    "unknown_model",
    "bad_deadline",
    "bad_header",
    "no_rows",
    "all_members_failed",
    "refused",
    "output_too_large",
]
Count = Annotated[int, Meta(ge=0)]
Version = Literal[1]


class InputTensor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input: a row-major tensor whose first dimension counts the request's rows."""

    name: Annotated[str, Meta(description="Any name; a route reads one input.")]
    shape: Annotated[
        list[Count], Meta(min_length=1, description="Rows first; the product is the number of values in `data`.")
    ]
    datatype: Annotated[Datatype, Meta(description="Type of every value; BYTES holds text.")]
    data: Annotated[list[Any], Meta(description="The values, flat in row-major order or nested by `shape`.")]
    parameters: Annotated[dict[str, Scalar], Meta(description="Accepted and not used.")] = {}


class RequestedOutput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output that the caller names; accepted for compatibility."""

    name: str
    parameters: dict[str, Scalar] = {}


class RequestValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request in the default codec `oip`: Open Inference Protocol v2."""

    inputs: Annotated[list[InputTensor], Meta(min_length=1, max_length=1, description="The rows to be predicted.")]
    id: Annotated[
        str | UnsetType, Meta(description="Repeated in the prediction. Need not be unique: the ref always is.")
    ] = UNSET
    parameters: Annotated[dict[str, Scalar], Meta(description="Accepted and not used.")] = {}
    outputs: Annotated[
        list[RequestedOutput], Meta(description="Accepted and not used: a prediction holds every output.")
    ] = []


class OutputTensor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One output: `label` (the answer), `probabilities`, `member.<name@version>` (what one model said) or
    `probabilities.<name@version>` (what it gave each class, where the route's policy learns from that)."""

    name: Annotated[
        str,
        Meta(
            description="`label`, `probabilities`, `member.<name@version>` or `probabilities.<name@version>`; where "
            "the route learns confidence `in_set` (which classes hold the truth as often as asked for), `lower` and "
            "`upper` (of an interval), `withheld` (an answer that was not sure enough)."
        ),
    ]
    shape: Annotated[list[Count], Meta(min_length=1, description="Rows first, in the order of the request's rows.")]
    datatype: Datatype
    data: Annotated[
        list[Any], Meta(description="The values, flat in row-major order; null for a number that JSON lacks.")
    ]


class PredictionParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the answer came about. Every value is a string, a number or a boolean, as OIP asks."""

    outcome: Annotated[
        Outcome,
        Meta(
            description="`ok`: all chosen models answered, or the rest could not change the answer. `partial`: some "
            "answered. `default`: the route's default, in time. `expired`: too late and no default. `error`: the "
            "request could not be used, or every model refused it."
        ),
    ]
    reason: Annotated[Reason, Meta(description="Why it has that outcome; also a metric label.")]
    probability: Annotated[
        float,
        Meta(ge=0, le=1, description="Probability with which these models were chosen; an exact multiple of 2^-32."),
    ]
    epoch: Annotated[
        int,
        Meta(ge=-1, description="Offset, in the epochs topic, of the learnt state that chose; -1: the initial one."),
    ]
    chosen: Annotated[str, Meta(description="Chosen models, `name@version`, comma-joined; empty if none was.")]
    queue_ms: Annotated[int, Meta(description="Milliseconds from append to the start of the model call.")]
    inference_ms: Annotated[int, Meta(description="Milliseconds of the longest model call that answered it.")]
    total_ms: Annotated[int, Meta(description="Milliseconds from append until this record was made.")]
    detail: Annotated[str | UnsetType, Meta(description="Words for a person, where the outcome needs them.")] = UNSET
    confidence: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType,
        Meta(
            description="Weighted agreement over all chosen models or, where the route learns confidence, the "
            "probability that the answer is right; left out where there is no answer."
        ),
    ] = UNSET
    agreement: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType,
        Meta(description="Weighted agreement over all chosen models, where `confidence` is learnt from it."),
    ] = UNSET
    state_age_ms: Annotated[
        Annotated[int, Meta(ge=0)] | UnsetType,
        Meta(
            description="How old the learnt state was that chose, at the request's append; left out where none was "
            "there. With `epoch` -1: it was older than the route allows, and the initial state chose."
        ),
    ] = UNSET
    set_size: Annotated[
        Annotated[float, Meta(ge=0)] | UnsetType,
        Meta(description="Classes in the set, or length of the interval, that holds the truth; the mean over rows."),
    ] = UNSET
    second_opinion: Annotated[
        str | UnsetType,
        Meta(
            description="Model that was asked because the chosen one's answer was not sure enough; where it is not in "
            "`missing`, `label` is its answer."
        ),
    ] = UNSET
    served_probability: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType,
        Meta(description='Where `combine = "drawn"`: with which this answer was given, by those who answered.'),
    ] = UNSET
    heads: Annotated[
        str | UnsetType,
        Meta(
            description="Of models whose heads learn while they serve, the rows that the head that answered knew: "
            "`sentiment@1=1250`."
        ),
    ] = UNSET
    missing: Annotated[
        str | UnsetType, Meta(description="Chosen models without an answer, and why: `forest@1=late,mlp@2=shed`.")
    ] = UNSET
    late: Annotated[
        bool | UnsetType, Meta(description="Present and true: settled after its deadline with answers from the log.")
    ] = UNSET
    stale: Annotated[
        bool | UnsetType, Meta(description="Present and true: chosen under a state that may not be the one in force.")
    ] = UNSET
    off_epoch: Annotated[
        bool | UnsetType, Meta(description="Present and true: not used for propensity-weighted learning.")
    ] = UNSET
    classes: Annotated[
        str | UnsetType, Meta(description="What the columns of `probabilities` stand for, comma-joined.")
    ] = UNSET
    context: Annotated[
        str | UnsetType,
        Meta(description="Of the request, where its route has contexts: the learnt state that chose, or its vector."),
    ] = UNSET


class PredictionValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one terminal record of a request: an Open Inference Protocol v2 response."""

    model_name: Annotated[str, Meta(description="The route; empty where the request's route is unknown.")]
    id: Annotated[str, Meta(description="The body's `id`, else the header `ce_id`, else the ref.")]
    outputs: Annotated[list[OutputTensor], Meta(description="Empty where there is no answer.")]
    parameters: PredictionParameters


class FeedbackValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What really happened to a past prediction: a label, a reward, or both."""

    id: Annotated[
        str | UnsetType, Meta(description="The prediction's id. A ref also places it where the header is left out.")
    ] = UNSET
    label: Annotated[Any, Meta(description="The true answer: one value, or a list of one per row. May be null.")] = (
        UNSET
    )
    reward: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType, Meta(description="How good the answer was: 1 is best.")
    ] = UNSET
    model: Annotated[
        str | UnsetType,
        Meta(description="The one model (`name@version`) that this speaks of; left out: the prediction."),
    ] = UNSET
