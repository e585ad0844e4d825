"""Every topic of an app, declared once: who writes and reads it, how long it is kept, what its values are.

`TOPICS` holds what is the same for every app; `catalogue` adds an app's name, partitions and replication. Topics are
created, checked and documented from here and from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from streamserve.topics.internal_values import (
    AnswersBlock,
    EpochValue,
    InsightValue,
    ModelsValue,
    OutcomeValue,
    PolicyValue,
)
from streamserve.topics.names import Kind, check_app, topic_name
from streamserve.topics.values import FeedbackValue, PredictionValue, RequestValue

_DAY_MS = 86_400_000
_MIB = 1 << 20

#: How long roles may be down without losing a request, an answer or a prediction: a long weekend.
TOLERATED_OUTAGE_MS = 4 * _DAY_MS
JSON = "application/json"
MESSAGE_PACK = "application/vnd.msgpack"
ANY_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A record header; values are UTF-8 text."""

    name: str
    meaning: str
    always: bool = False
    """Every record has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """What holds for one kind of topic in every app."""

    kind: Kind
    purpose: str
    key: str
    """What the record key is, in words; empty: records have none."""
    value: Any
    """Type of the value, as msgspec decodes it; None: any bytes."""
    content_type: str
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    cleanup: Literal["delete", "compact", "compact,delete"] = "delete"
    retention_ms: int | None = 7 * _DAY_MS
    """How long a record is kept at least; None: for ever, the newest of each key."""
    timestamp_type: str = "LogAppendTime"
    max_message_bytes: int = 8 * _MIB
    headers: tuple[Header, ...] = ()
    notes: str = ""
    """More for the published page (Markdown)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic of one app."""

    name: str
    spec: TopicSpec
    partitions: int
    replication: int
    retention_ms: int | None
    """`spec.retention_ms`, or more where the app's join window needs it."""

    @property
    def min_insync(self) -> int:
        """Replicas that must have a record before it is acknowledged: one broker may be down, where there are more."""
        return max(1, self.replication - 1)

    def configs(self) -> dict[str, str]:
        """The topic's settings under Kafka's names: what a broker is compared with."""
        configs = {
            "cleanup.policy": self.spec.cleanup,
            "message.timestamp.type": self.spec.timestamp_type,
            "max.message.bytes": str(self.spec.max_message_bytes),
            "min.insync.replicas": str(self.min_insync),
        }
        if self.retention_ms is not None:
            configs["retention.ms"] = str(self.retention_ms)
        return configs

    def tuning(self) -> dict[str, str]:
        """Settings given at creation and not compared later: they change the cost of a topic, not its meaning."""
        if self.spec.cleanup == "delete":
            return {}
        # A role reads the whole topic when it starts. With Kafka's defaults (1 GiB segments, no bound on the lag) a
        # state of 2 KiB published four times a second would be 700 MB a day before the first compaction. A segment
        # must hold the largest record (8 MiB).
        return {"segment.bytes": str(16 * _MIB), "max.compaction.lag.ms": "600000", "delete.retention.ms": str(_DAY_MS)}


_REF = Header(name="ss-ref", meaning="`<partition>-<offset>` of the request: its identity, always unique.", always=True)
_TRACE = Header(name="traceparent", meaning="W3C trace context, copied from the request.")

_REDRIVEN = (
    Header(name="ss-redriven", meaning="How often it was put back from the dead letters, if it was."),
    Header(name="ss-redriven-from", meaning="`<partition>-<offset>` in this topic where it stood before."),
)

_REQUEST_HEADERS = (
    Header(name="ss-route", meaning="The route. May be left out when the app has one."),
    Header(name="ss-deadline-ms", meaning="Budget in milliseconds from append; left out: the route's."),
    Header(name="ss-priority", meaning="-9 to 9, else 0: under overload the highest is shed last."),
    Header(name="ss-without", meaning="Models, by id or name, with commas, that this request is not to be given to."),
    Header(
        name="ss-context",
        meaning="Whose learnt state chooses, where the route has contexts: text of at most 200 bytes, `/` between "
        "levels; or the numbers that its policy reads, with commas between them.",
    ),
    Header(name="mlserver-model", meaning="MLServer's name for the same: a route, else one model that answers alone."),
    Header(name="ce_id", meaning="CloudEvents id: the prediction's id where the body has none."),
    Header(name="traceparent", meaning="W3C trace context, copied to the prediction."),
    Header(name="ss-dtype", meaning="Codec `raw`: numpy's name of the dtype, such as `float64`."),
    Header(name="ss-shape", meaning="Codec `raw`: the shape, rows first, such as `3,20`."),
    *_REDRIVEN,
)
_REQUEST_NOTES = """\
The value is read by the route's codec (`routes.X.input`):

* `oip` (default): Open Inference Protocol v2, as below; one input, of any name.
* `rows`: JSON `[[...], [...]]`, or `[...]` for one row, or `{"rows": ..., "id": ...}`; numbers.
* `text`: UTF-8 text, one row.
* `raw`: a little-endian tensor; dtype and shape in headers.

What cannot be read still gets its one terminal record (outcome `error`, with a reason), and a dead letter."""
_PREDICTION_HEADERS = (
    _REF,
    Header(name="ss-id", meaning="The prediction's `id`.", always=True),
    Header(name="ss-outcome", meaning="`ok`, `partial`, `default`, `error` or `expired`.", always=True),
    _TRACE,
)
_DEAD_LETTER_HEADERS = (
    Header(name="__connect.errors.topic", meaning="Topic where the record was.", always=True),
    Header(name="__connect.errors.partition", meaning="Its partition.", always=True),
    Header(name="__connect.errors.offset", meaning="Its offset.", always=True),
    Header(name="__connect.errors.stage", meaning="The role that gave up on it.", always=True),
    Header(name="__connect.errors.exception.message", meaning="Words for a person.", always=True),
    Header(name="__connect.errors.exception.class.name", meaning="Class of what a model raised on it alone."),
    Header(name="__connect.errors.exception.stacktrace", meaning="Where it was raised."),
    Header(name="ss-attempts", meaning="Calls of that model that held the request."),
    Header(name="ss-model", meaning="That model, `name@version`."),
    Header(name="ss-reason", meaning="Why, from the closed list of reasons.", always=True),
    Header(name="ss-sha256", meaning="Hash of the whole value, where only its first 64 KiB are kept."),
)

_DEAD_LETTER_NOTES = """\
`streamserve dlq list`, `show`, `redrive` and `purge` work on this topic. A redrive leaves marks here that are no dead
letters: their only header is `ss-redrive`, `begun` or `done`, and their value says in JSON which records it speaks of.
Skip them by that."""

_FEEDBACK = Annotated[
    FeedbackValue, Meta(extra_json_schema={"anyOf": [{"required": ["label"]}, {"required": ["reward"]}]})
]

TOPICS: tuple[TopicSpec, ...] = (
    TopicSpec(
        kind=Kind.REQUESTS,
        purpose="What is to be predicted. Any record whose value the route's codec can read is a request.",
        key="the user's, or none",
        value=RequestValue,
        content_type=JSON,
        written_by=("anyone",),
        read_by=("worker", "aggregator"),
        max_message_bytes=4 * _MIB,
        headers=_REQUEST_HEADERS,
        notes=_REQUEST_NOTES,
    ),
    TopicSpec(
        kind=Kind.ANSWERS,
        purpose="What one model said, a batch at a time, in the requests' partition.",
        key="",
        value=AnswersBlock,
        content_type=MESSAGE_PACK,
        written_by=("worker",),
        read_by=("aggregator", "join"),
    ),
    TopicSpec(
        kind=Kind.PREDICTIONS,
        purpose="The one terminal record of each request, in the request's partition.",
        key="the request's key, else the id",
        value=PredictionValue,
        content_type=JSON,
        written_by=("aggregator", "worker (fused)"),
        read_by=("anyone", "join", "insights", "aggregator", "worker (fused)"),
        headers=_PREDICTION_HEADERS,
        notes="The first record of a ref counts; a reader drops a second one with the same `ss-ref`.",
    ),
    TopicSpec(
        kind=Kind.FEEDBACK,
        purpose="Labels and rewards for past predictions.",
        key="the request's key, else the id",
        value=_FEEDBACK,
        content_type=JSON,
        written_by=("anyone", "join"),
        read_by=("join",),
        retention_ms=30 * _DAY_MS,
        notes=(
            "The header `ss-ref`, or an `id` that is a ref, places the feedback. Produce it to the request's partition "
            "where you can; what lands elsewhere is sent on once.\n"
            "\n"
            "An `id` that is no ref is looked for: the feedback waits up to 10 s for that prediction in the partition "
            "where it landed, then goes on to the next one, record by record, until all have been asked. With 4 "
            "partitions it is learnt from after up to 30 s, and an orphan after 40 s. Give the ref where you have it."
        ),
        headers=(
            Header(name="ss-ref", meaning="Copied from the prediction: places the feedback."),
            Header(name="ss-origin", meaning="`<partition>-<offset>` where it first landed, if it was forwarded."),
            Header(name="ss-origin-ms", meaning="When it first landed."),
            *_REDRIVEN,
        ),
    ),
    TopicSpec(
        kind=Kind.OUTCOMES,
        purpose="Predictions joined with their feedback: for learning, evaluation and anyone who retrains.",
        key="`<route>` or `<route>/<context>`",
        value=OutcomeValue,
        content_type=JSON,
        written_by=("join",),
        read_by=("update", "insights", "anyone"),
        retention_ms=365 * _DAY_MS,
    ),
    TopicSpec(
        kind=Kind.EPOCHS,
        purpose="Every learnt state, and from when it holds.",
        key="`<route>` or `<route>/<context>`",
        value=EpochValue,
        content_type=JSON,
        written_by=("update",),
        read_by=("worker", "aggregator", "update"),
    ),
    TopicSpec(
        kind=Kind.POLICY,
        purpose="The newest learnt state of each key: where a role that starts begins.",
        key="`<route>` or `<route>/<context>`",
        value=PolicyValue,
        content_type=JSON,
        written_by=("update",),
        read_by=("worker", "aggregator", "update"),
        cleanup="compact",
        retention_ms=None,
    ),
    TopicSpec(
        kind=Kind.CONTEXTS,
        purpose="The newest learnt state of each keyed context, in the partition of its requests: where a role that is "
        "given the partition begins.",
        key="`<route>/<context>`",
        value=PolicyValue,
        content_type=JSON,
        written_by=("update",),
        read_by=("worker", "aggregator", "update"),
        cleanup="compact",
        retention_ms=None,
        notes="A record without a value: the state was forgotten, and decides nothing any more.",
    ),
    TopicSpec(
        kind=Kind.MODELS,
        purpose="Which models each worker process hosts, which are switched off, and which routes are in force.",
        key="`<pool>/<instance>`, or a model, or `@<number>` of a config in force, or `@proposed`, or `@head <model>`",
        value=ModelsValue,
        content_type=JSON,
        written_by=("worker", "aggregator", "join", "update", "the commands `models` and `learn-head`"),
        read_by=("worker", "aggregator", "the command `learn-head`", "anyone"),
        cleanup="compact",
        retention_ms=None,
        notes=(
            "A worker writes its record before it joins its group, again when it hosts other models and every 20 s, "
            "and one with its key and no value when it stops in order; `streamserve models deploy` waits for "
            "it, unless nothing was heard of it for `lease_ms`. A switch holds for requests appended at least "
            "`epoch_delay_ms` after it; a config in force for those appended at least four times that after it. "
            "All configs are in one partition. `streamserve tail CONFIG models` shows all. Every process writes a "
            "record with the key `clock` and no value when it starts: its acknowledgement tells it the broker's "
            "time."
        ),
    ),
    TopicSpec(
        kind=Kind.INSIGHTS,
        purpose="How each route and model did in each window of time: shares, accuracy, delays, drift.",
        key="`[route, model, context, from_ms]` as JSON",
        value=InsightValue,
        content_type=JSON,
        written_by=("insights",),
        read_by=("anyone",),
        cleanup="compact,delete",
        retention_ms=30 * _DAY_MS,
        notes=(
            "A record replaces the one before with its key: it holds the whole of its window so far, not a change. "
            "`model` is empty in the row of the route itself, `context` in the row of all its requests. Windows are "
            "those of the predictions' append times: feedback changes the window of what it speaks of, however late it "
            "comes. The last record of a window has `final` true; none comes after it."
        ),
    ),
    TopicSpec(
        kind=Kind.DLQ,
        purpose="Records whose value could not be used: original key, headers and value (its first 64 KiB).",
        key="the original key",
        value=None,
        content_type=ANY_BYTES,
        written_by=("aggregator", "worker (fused)", "join", "update"),
        read_by=("anyone",),
        retention_ms=30 * _DAY_MS,
        headers=_DEAD_LETTER_HEADERS,
        notes=_DEAD_LETTER_NOTES,
    ),
)
#: Kept at least as long as feedback may come: the join looks predictions and answers up by ref, and reads the
#: window's feedback again when it is rebuilt.
_JOINED = frozenset({Kind.ANSWERS, Kind.PREDICTIONS, Kind.FEEDBACK})


def spec_of(kind: Kind) -> TopicSpec:
    """The declaration of one kind."""
    return next(spec for spec in TOPICS if spec.kind is kind)


def catalogue(app: str, partitions: int, replication: int, *, join_window_ms: int = 600_000) -> tuple[Topic, ...]:
    """All topics of an app, requests first. Every one has the same number of partitions.

    Answers, predictions and feedback are kept for the join window (ms: how late feedback may come) and the outage,
    at least. Raises `IllegalName` for an app's name that cannot prefix a topic, `ValueError` for numbers below 1.
    """
    check_app(app)
    for what, number in (("partitions", partitions), ("replication", replication)):
        if number < 1:
            raise ValueError(f"{what} = {number}: allowed are 1 and more")
    return tuple(
        Topic(
            name=topic_name(app, spec.kind),
            spec=spec,
            partitions=partitions,
            replication=replication,
            retention_ms=_retention_ms(spec, join_window_ms),
        )
        for spec in TOPICS
    )


def _retention_ms(spec: TopicSpec, join_window_ms: int) -> int | None:
    if spec.retention_ms is None or spec.kind not in _JOINED:
        return spec.retention_ms
    return max(spec.retention_ms, join_window_ms + TOLERATED_OUTAGE_MS)
