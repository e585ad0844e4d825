"""The values that roles write for one another: answers, outcomes, learnt states, models.

They are part of the contract too: outcomes are what anyone who retrains reads. `v` is the version of the value;
readers accept this one and the one before, and stop loudly on others.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from streamserve.topics.values import Count, Version

Place = Annotated[list[Count], Meta(min_length=2, max_length=2, description="[partition, offset] of a record.")]


class DecisionValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided about the request, as its prediction says."""

    id: str
    route: str
    outcome: str
    epoch: Annotated[int, Meta(ge=-1, description="Offset of the learnt state that chose; -1: the initial one.")]
    probability: Annotated[float, Meta(ge=0, le=1, description="Of the choice; an exact multiple of 2^-32.")]
    off_epoch: Annotated[bool, Meta(description="True: leave out of propensity-weighted learning.")]
    chosen: Annotated[list[str], Meta(description="Model ids, `name@version`.")]
    label: Annotated[Any, Meta(description="What was answered, a list of one value per row; null if nothing was.")]
    members: Annotated[dict[str, Any], Meta(description="Model id -> what it said, one value per row.")]
    rows: Count
    probabilities: Annotated[
        dict[str, list[list[float]]],
        Meta(description="Model id -> what it gave each class, per row; only where the policy learns from it."),
    ] = {}
    classes: Annotated[list[str], Meta(description="What the columns of `probabilities` stand for.")] = []
    agreement: Annotated[float | None, Meta(description="Of the chosen models; only where confidence is learnt.")] = (
        None
    )
    combined: Annotated[
        list[list[float]] | None,
        Meta(description="What the answer gave each class, per row; only where sets are learnt."),
    ] = None
    withheld: Annotated[Any, Meta(description="What was not answered since it was not sure enough.")] = None
    context: Annotated[str, Meta(description="Of the request, with all its levels; or the vector of its policy.")] = ""
    second: Annotated[str | None, Meta(description="Model that was asked for a second opinion.")] = None
    served_probability: Annotated[
        float | None, Meta(description='With which the answer was given; only where `combine = "drawn"`.')
    ] = None
    state_age_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="How old the learnt state was that chose, at the request's append; -1: none was there, or an "
            "older release has written this.",
        ),
    ] = -1


class OutcomeValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision joined with its feedback: what learning, evaluation and retraining read."""

    v: Version
    route: str
    context: Annotated[str, Meta(description="Which learnt state of the route it teaches; empty: the shared one.")]
    ref: Annotated[Place, Meta(description="The request, in the requests topic.")]
    decision: DecisionValue
    feedback: Annotated[Place, Meta(description="Where the feedback first landed, in the feedback topic.")]
    feedback_ms: Annotated[int, Meta(description="Append time of the feedback, epoch milliseconds of the broker.")]
    open_offset: Annotated[
        int, Meta(ge=0, description="Lowest feedback offset of that partition that the join had not settled.")
    ]
    primary: Annotated[bool, Meta(description="False: a second outcome of the same feedback, for another state.")]
    label: Annotated[Any, Meta(description="The true answer; left out where the feedback is a reward only.")] = UNSET
    reward: float | UnsetType = UNSET
    losses: Annotated[dict[str, float], Meta(description="Model id -> loss in [0, 1], where the feedback informs it.")]
    prediction_ms: Annotated[
        int, Meta(ge=-1, description="Append time of the prediction; -1: an older release has written this.")
    ] = -1


class EpochValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A learnt state. It holds for requests appended at least the app's `epoch_delay_ms` after this record."""

    v: Version
    route: str
    context: str
    policy: Annotated[str, Meta(description="Name of the policy; a state of another policy is not used.")]
    data: Annotated[dict[str, Any], Meta(description="The policy's state.")]
    includes: Annotated[
        dict[str, Count],
        Meta(description="Outcomes partition -> offset below which every outcome has been learnt."),
    ]
    previous: Annotated[int, Meta(ge=-1, description="Offset of this state's record before; -1: none.")]
    learnt_ms: Annotated[
        int,
        Meta(ge=-1, description="Of a keyed context: append time of the newest outcome that it holds; else -1."),
    ] = -1


class PolicyValue(EpochValue, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of a learnt state: where a role that starts begins, before it follows the epochs topic."""

    partition: Annotated[int, Meta(ge=0, description="Partition of its epochs record.")]
    epoch: Annotated[int, Meta(ge=0, description="Offset of its epochs record.")]
    append_ms: Annotated[int, Meta(description="Append time of its epochs record, epoch milliseconds of the broker.")]
    covers: Annotated[int, Meta(ge=0, description="Epochs offset below which the partition is fully in snapshots.")]


class HostsValue(Struct, tag="hosts", tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """A worker process says which models it has loaded and warmed."""

    v: Version
    pool: str
    instance: Annotated[str, Meta(description="The process: its name within the consumer group.")]
    models: Annotated[list[str], Meta(description="Model ids, `name@version`.")]
    plans: Annotated[
        dict[str, dict[str, Count]],
        Meta(description="Of white-box plans among them: content hash -> bytes of each array of 4,096 bytes or more."),
    ] = {}

    failed: Annotated[
        dict[str, str], Meta(description="Models that it is to host and could not load, and why, in words.")
    ] = {}
    seen: Annotated[int, Meta(description="Number of the newest config in the log that it has acted on; 0: none.")] = 0
    config: Annotated[
        dict[str, Any] | None,
        Meta(description="Sections `models`, `pools` and `routes` that it was started with, where it has seen none."),
    ] = None
    lease_ms: Annotated[
        Count, Meta(description="It is gone when no record of it has come for so long; 0: until one without a value.")
    ] = 0


class ConfigValue(Struct, tag="config", tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """The models, pools and routes of the app, as its config file says them: proposed, for pools to load what is new;
    or in force, for requests appended at least four `epoch_delay_ms` after this record. The first one in force holds
    for older requests too."""

    v: Version
    number: Annotated[int, Meta(ge=1, description="Rises with each.")]
    in_force: Annotated[bool, Meta(description="False: only proposed.")]
    models: Annotated[dict[str, Any], Meta(description="`[models.*]`")]
    pools: Annotated[dict[str, Any], Meta(description="`[pools.*]`")]
    routes: Annotated[dict[str, Any], Meta(description="`[routes.*]`")]


class SwitchValue(Struct, tag="switch", tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """A model is switched off, or on again, for requests appended at least `epoch_delay_ms` after this record."""

    v: Version
    model: Annotated[str, Meta(description="`name@version`, or a name: every version of it.")]
    disabled: bool
    why: Annotated[str, Meta(description="Words for a person.")] = ""


class HeadValue(Struct, tag="head", tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """The head of a white-box plan as it is after some labelled rows: workers that host the model answer with it from
    their next call on. A record counts only where it is further than the one before: its offsets add up to more."""

    v: Version
    model: Annotated[str, Meta(description="`name@version`.")]
    base: Annotated[str, Meta(description="Content hash of the plan that it was first learnt from.")]
    rate: Annotated[float, Meta(ge=0, description="How far one row moves the weights.")]
    rows: Annotated[Count, Meta(description="Rows that it has learnt from: its version, as answers name it.")]
    read: Annotated[
        dict[str, Place],
        Meta(description="Outcomes partition -> [offset below which it has been learnt from, newest time of these]."),
    ]
    plan: Annotated[str, Meta(description="Of the plan with this head, in the object store: hash of its manifest.")]
    store: Annotated[str, Meta(description="Machine and folder of the store that it was put into.")]


#: What a record of the models topic may hold.
ModelsValue = HostsValue | SwitchValue | ConfigValue | HeadValue

_Share = Annotated[float, Meta(ge=0, le=1)]


class InsightValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a route, or one of its models, did in one window of time, for all requests or those of one context."""

    v: Version
    route: str
    model: Annotated[str, Meta(description="`name@version`; empty: the route, by what it served.")]
    context: Annotated[str, Meta(description="One level of the requests' context; empty: all requests.")]
    from_ms: Annotated[int, Meta(description="Begin of the window, by append time of predictions.")]
    until_ms: Annotated[int, Meta(description="Its end, exclusive.")]
    final: Annotated[bool, Meta(description="True: the window is closed; feedback for it would be too late.")]
    predictions: Annotated[Count, Meta(description="Predictions; of a model: those of requests it was chosen for.")]
    answered: Annotated[Count, Meta(description="Of these, those with an answer (of the model).")]
    outcomes: Annotated[dict[str, Count], Meta(description="Outcome -> how many of the predictions had it.")]
    agreement: Annotated[
        _Share | None,
        Meta(
            description="How far the model said what was served, the mean over its answers; of a route the mean over "
            "its members. Null where nothing was answered."
        ),
    ]
    feedback: Annotated[Count, Meta(description="Feedback records that met one of the predictions.")]
    join_rate: Annotated[
        _Share | None,
        Meta(description="`feedback` over `predictions`, at most 1; null without predictions."),
    ]
    judged: Annotated[Count, Meta(description="Of the feedback, what told how good the answer was.")]
    accuracy: Annotated[_Share | None, Meta(description="1 less the mean loss of those; null where there are none.")]
    delay_p50_ms: Annotated[
        float | None, Meta(description="From prediction to feedback: median, within 1 %; null without feedback.")
    ]
    delay_p90_ms: Annotated[float | None, Meta(description="The same, 90th percentile.")]
    delay_p99_ms: Annotated[float | None, Meta(description="The same, 99th percentile.")]
    drift_alarms: Annotated[
        Count, Meta(description="How often feedback of this window raised the alarm that losses have risen.")
    ]
    drift_ms: Annotated[int | None, Meta(description="Append time of the feedback that raised it last; null: none.")]


class ArrayValue(Struct, frozen=True, array_like=True):
    """An array inside an answers block."""

    dtype: Annotated[str, Meta(description="numpy's name, little-endian (`<f8`), or `json` for values of any kind.")]
    shape: list[Count]
    data: Annotated[
        bytes | list[Any], Meta(description="Row-major bytes; a flat list of values where dtype is `json`.")
    ]


class AnswersBlock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model's answers to n requests of the record's partition: one record, MessagePack."""

    v: Version
    route: str
    model: Annotated[str, Meta(description="`name@version`.")]
    offsets: Annotated[ArrayValue, Meta(description="`[n]` int64: the requests, by offset.")]
    row_starts: Annotated[
        ArrayValue, Meta(description="`[n + 1]` int64: the rows of request i are `row_starts[i]:row_starts[i + 1]`.")
    ]
    labels: Annotated[ArrayValue | None, Meta(description="`[rows, ...]`; null where nothing was answered.")]
    probabilities: Annotated[ArrayValue | None, Meta(description="`[rows, classes]` float64.")]
    classes: Annotated[ArrayValue | None, Meta(description="`[classes]`: what the columns stand for.")]
    missing: Annotated[ArrayValue, Meta(description="`[n]` uint8: 0 answered, else why not (closed list of codes).")]
    ids: Annotated[list[str | None], Meta(description="`[n]`: the bodies' ids.")]
    chosen: Annotated[ArrayValue, Meta(description="`[n]` uint64: chosen models as bits in the route's order.")]
    probability: Annotated[ArrayValue, Meta(description="`[n]` int64: of the choice, in units of 2^-32.")]
    epoch: Annotated[ArrayValue, Meta(description="`[n]` int64: the learnt state that chose; -1: the initial one.")]
    stale: Annotated[ArrayValue, Meta(description="`[n]` bool.")]
    queue_ms: Annotated[ArrayValue, Meta(description="`[n]` int32: from append to the start of the model call.")]
    inference_ms: Annotated[ArrayValue, Meta(description="`[n]` int32: the model call that answered it.")]
    models: Annotated[
        list[str], Meta(description="The route's models in the writer's config; empty: as in the reader's.")
    ] = []
    head: Annotated[
        int, Meta(ge=-1, description="Rows that the model's head had learnt from while it serves; -1: it does not.")
    ] = -1
    errors: Annotated[
        dict[int, tuple[int, str]], Meta(description="Index -> reason code and words: no model can use this request.")
    ] = {}
    details: Annotated[dict[int, str], Meta(description="Index -> words, for a member that failed.")] = {}
    failures: Annotated[
        dict[int, tuple[str, str, Count]],
        Meta(description="Index -> exception class, stack and number of calls, for a request refused when alone."),
    ] = {}
