"""`routes.X.policy`: one settings class per policy that comes with streamserve, and one for those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from streamserve.settings.fields import EnvironmentText, Float, Name, Weights, read_environment, words


class _Policy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def options(self) -> dict[str, Any]:
        """What the config says beyond the name; what it leaves out keeps the policy's own default."""
        return {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}


class StaticPolicy(_Policy):
    """All models of the route are asked; their weights never change."""

    name: Literal["static"] = Field(default="static", description="All models are asked; weights never change.")
    weights: Weights | None = Field(
        default=None, min_length=1, description="Weight of each model; 0: it is not asked. Left out: all equal."
    )


class HedgePolicy(_Policy):
    """All models of the route are asked; weights follow their losses."""

    name: Literal["hedge"] = Field(description="All models are asked; weights follow the losses that feedback shows.")
    eta: Float | None = Field(default=None, gt=0, le=10, description="Learning rate: how fast weights follow losses.")
    half_life_events: Float | None = Field(
        default=None,
        gt=0,
        description="After this many outcomes a past loss counts half.",
    )


class Exp3Policy(_Policy):
    """One model answers each request, drawn by weights that follow the losses seen."""

    name: Literal["exp3"] = Field(description="One model answers each request, drawn with a logged probability.")
    eta: Float | None = Field(default=None, gt=0, le=10, description="Learning rate: how fast weights follow losses.")
    gamma: Float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Share of requests that explore: each model gets at least gamma / models of them.",
    )
    half_life_events: Float | None = Field(
        default=None,
        gt=0,
        description="After this many outcomes a past loss counts half; left out: nothing is forgotten.",
    )


class OtherPolicy(BaseModel):
    """A policy that another package brings (entry point group `streamserve.policies`), with its own options."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    name: Name

    def options(self) -> dict[str, Any]:
        """The policy's own options, unchecked: its class checks them."""
        return dict(self.model_extra or {})


BUILT_IN = {"static": StaticPolicy, "hedge": HedgePolicy, "exp3": Exp3Policy}


def _tag(value: object) -> str:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return name if isinstance(name, str) and name in BUILT_IN else "other"


def _read(value: object) -> object:
    """A policy given by its name alone, or as a whole by an environment variable."""
    value = read_environment(value)
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping) and isinstance(value.get("name"), EnvironmentText):
        return {**value, "name": str(value["name"])}
    return value


PolicySettings = Annotated[
    Annotated[StaticPolicy, Tag("static")]
    | Annotated[HedgePolicy, Tag("hedge")]
    | Annotated[Exp3Policy, Tag("exp3")]
    | Annotated[OtherPolicy, Tag("other")],
    Discriminator(_tag),
    BeforeValidator(_read),
    words("a policy's name, or a table of its name and options"),
]
