"""`[bounds]`: every bound that is not one of a single part of the config."""

from __future__ import annotations

from pydantic import Field

from streamserve.core.bounds import Bounds
from streamserve.settings.fields import Int, Section

_BOUNDS = Bounds()


class BoundsSettings(Section):
    """`[bounds]`: how much one process may hold; what happens then is in [bounds.md](bounds.md)."""

    fetched_records: Int = Field(
        default=_BOUNDS.fetched_records,
        ge=500,
        le=10_000_000,
        description="Records fetched and not yet looked at; with so many all fetching waits.",
    )
    fetched_bytes: Int = Field(
        default=_BOUNDS.fetched_bytes, ge=1 << 20, le=1 << 40, description="The same, of their bytes."
    )
    queue_requests: Int = Field(
        default=_BOUNDS.queue_requests,
        ge=1,
        le=10_000_000,
        description="Requests queued at one model; when every model has so many, the rest of a backlog stays in the "
        "log. Where others have room, a model that has so many more as can have been fetched (twice "
        "`fetched_records`) sheds.",
    )
    queue_bytes: Int = Field(
        default=_BOUNDS.queue_bytes, ge=1 << 20, le=1 << 40, description="The same, of their bytes."
    )
    open_requests: Int = Field(
        default=_BOUNDS.open_requests,
        ge=1,
        le=100_000_000,
        description="Requests whose answers an aggregator waits for; with so many it reads no more requests.",
    )
    open_bytes: Int = Field(
        default=_BOUNDS.open_bytes,
        ge=1 << 20,
        le=1 << 40,
        description="Bytes of the requests (bodies, keys, headers) that a worker or an aggregator holds until their "
        "records are acknowledged; with so many it reads no more.",
    )
    early_answers: Int = Field(
        default=_BOUNDS.early_answers,
        ge=1,
        le=100_000_000,
        description="Answers that came before their requests; with so many an aggregator reads no more answers.",
    )
    unacknowledged_records: Int = Field(
        default=_BOUNDS.unacknowledged_records,
        ge=1,
        le=100_000_000,
        description="Records sent that the broker has not acknowledged; with so many nothing more is fetched.",
    )
    waiting_feedback: Int = Field(
        default=_BOUNDS.waiting_feedback,
        ge=1,
        le=10_000_000,
        description="Feedback of one partition that waits for its prediction; with so many no more of it is read.",
    )
    remembered_feedback: Int = Field(
        default=_BOUNDS.remembered_feedback,
        ge=1,
        le=100_000_000,
        description="Feedback of one partition of which a second copy is known to be one; above it the oldest is "
        "forgotten.",
    )
    learnt_states: Int = Field(
        default=_BOUNDS.learnt_states,
        ge=1,
        le=1_000_000,
        description="Learnt states of one route, each in force from its moment on; above it the oldest are forgotten.",
    )
