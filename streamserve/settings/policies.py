"""`routes.X.policy`: one settings class per policy that comes with streamserve, and one for those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from streamserve.errors import ConfigError
from streamserve.settings.fields import EnvironmentText, Flag, Float, Int, Name, Weights, read_environment, words


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


_Rate = Annotated[Float, Field(gt=0, le=10)]
_Share = Annotated[Float, Field(ge=0, lt=1)]
_HalfLife = Annotated[Float, Field(ge=1)]

_HALF_LIFE = "After this many outcomes a past %s counts half."
_FEATURES = "How many numbers a context holds, commas between them."
_Features = Annotated[Int, Field(ge=1, le=64)]
_FLOOR = "Share of requests that explore: each model gets at least gamma / models of them."
_DRAWN_FLOOR = "Share of answers that explore: each model serves at least gamma / models of them."


class ABPolicy(_Policy):
    """One model answers each request, drawn by fixed shares: an experiment."""

    name: Literal["ab"] = Field(description="One model answers each request, drawn by fixed shares.")
    shares: Weights | None = Field(
        default=None, min_length=1, description="Share of each model, in any unit; 0: never asked. Left out: all equal."
    )
    sticky_by_key: Flag | None = Field(
        default=None, description="Requests with the same record key go to the same model; those without one do not."
    )


class HedgePolicy(_Policy):
    """All models of the route are asked; weights follow their losses."""

    name: Literal["hedge"] = Field(description="All models are asked; weights follow the losses that feedback shows.")
    eta: _Rate | None = Field(default=None, description="Learning rate: how fast weights follow losses.")
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "loss")
    least: _Share | None = Field(
        default=None, description="Of the best model's weight; none falls below it, so a mended model comes back soon."
    )


class StackPolicy(_Policy):
    """All models of the route are asked; their log-probabilities are weighed by gradient steps. Needs `combine =
    "log_probability"`."""

    name: Literal["stack"] = Field(description="All models are asked; weights are learnt from their probabilities.")
    rate: Annotated[Float, Field(gt=0, le=1)] | None = Field(default=None, description="Of a gradient step.")


class LeaderPolicy(_Policy):
    """One model serves, the best so far; a sampled few requests ask all models, to keep learning about the others."""

    name: Literal["leader"] = Field(description="The best model so far serves; a sampled few requests ask all.")
    shadow: _Share | None = Field(
        default=None, description="Share of requests that ask all models; the leader's answer still serves."
    )
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")
    prior: Annotated[Float, Field(ge=0)] | None = Field(
        default=None, description="Answers of the common mean that each model's own mean is mixed with."
    )


class EpsilonGreedyPolicy(_Policy):
    """One model answers each request: the best so far, and with a fixed probability any."""

    name: Literal["epsilon_greedy"] = Field(description="The best model so far answers; a fixed share goes to any.")
    epsilon: _Share | None = Field(default=None, description="Share of requests that go to any model, all equally.")
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")


class Exp3Policy(_Policy):
    """One model answers each request, drawn by weights that follow the losses seen."""

    name: Literal["exp3"] = Field(description="One model answers each request, drawn with a logged probability.")
    eta: _Rate | None = Field(default=None, description="Learning rate: how fast weights follow losses.")
    gamma: _Share | None = Field(default=None, description=_FLOOR)
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "loss")


class Exp3IXPolicy(_Policy):
    """One model answers each request, drawn as by `exp3`; one unlucky draw weighs less."""

    name: Literal["exp3ix"] = Field(description="As exp3, but a rare model's loss is bounded.")
    eta: _Rate | None = Field(default=None, description="Learning rate: how fast weights follow losses.")
    gamma: _Share | None = Field(default=None, description=_FLOOR)
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "loss")


class Exp4Policy(_Policy):
    """All models of the route are asked; the answer of one of them serves, drawn by weights that follow the losses
    seen. Needs `combine = "drawn"`."""

    name: Literal["exp4"] = Field(description="All models are asked; one's answer serves, drawn by its weight.")
    eta: _Rate | None = Field(default=None, description="Learning rate: how fast weights follow losses.")
    gamma: _Share | None = Field(default=None, description=_DRAWN_FLOOR)
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "loss")


class ThompsonPolicy(_Policy):
    """One model answers each request, drawn with the probability that it is the best."""

    name: Literal["thompson"] = Field(description="Each model answers with the probability that it is the best.")
    gamma: _Share | None = Field(default=None, description=_FLOOR)
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")


class UCBPolicy(_Policy):
    """One model answers all requests until the next state: the one that may yet be the best."""

    name: Literal["ucb"] = Field(description="The model with the highest upper bound of its mean reward answers.")
    width: _Rate | None = Field(
        default=None, description="Of the bound: mean + sqrt(width * ln(answers of all) / answers)."
    )
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")


class LinUCBPolicy(_Policy):
    """One model answers each request: the one that may yet be the best for the numbers that come with the request as
    its context. Needs `contexts`."""

    name: Literal["linucb"] = Field(description="The model with the highest upper bound, given features, answers.")
    features: _Features = Field(description=_FEATURES)
    alpha: _Rate | None = Field(default=None, description="Of the bound: standard deviations above the mean.")
    ridge: _Rate | None = Field(default=None, description="Of the regression.")
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")


class SquareCBPolicy(_Policy):
    """One model answers each request, drawn by what is expected of each for the numbers that come with the request as
    its context. Needs `contexts`."""

    name: Literal["squarecb"] = Field(description="One model is drawn by what features let expect of each.")
    features: _Features = Field(description=_FEATURES)
    rate: _Rate | None = Field(default=None, description="How soon models that promise less are asked less.")
    ridge: _Rate | None = Field(default=None, description="Of the regression.")
    gamma: _Share | None = Field(default=None, description=_FLOOR)
    half_life_events: _HalfLife | None = Field(default=None, description=_HALF_LIFE % "reward")


class OtherPolicy(BaseModel):
    """A policy that another package brings (entry point group `streamserve.policies`), with its own options."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    name: Name

    def options(self) -> dict[str, Any]:
        """The policy's own options, unchecked: its class checks them."""
        return dict(self.model_extra or {})


BUILT_IN = {
    "static": StaticPolicy,
    "ab": ABPolicy,
    "hedge": HedgePolicy,
    "stack": StackPolicy,
    "leader": LeaderPolicy,
    "epsilon_greedy": EpsilonGreedyPolicy,
    "exp3": Exp3Policy,
    "exp3ix": Exp3IXPolicy,
    "exp4": Exp4Policy,
    "thompson": ThompsonPolicy,
    "ucb": UCBPolicy,
    "linucb": LinUCBPolicy,
    "squarecb": SquareCBPolicy,
}


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
    | Annotated[ABPolicy, Tag("ab")]
    | Annotated[HedgePolicy, Tag("hedge")]
    | Annotated[StackPolicy, Tag("stack")]
    | Annotated[LeaderPolicy, Tag("leader")]
    | Annotated[EpsilonGreedyPolicy, Tag("epsilon_greedy")]
    | Annotated[Exp3Policy, Tag("exp3")]
    | Annotated[Exp3IXPolicy, Tag("exp3ix")]
    | Annotated[Exp4Policy, Tag("exp4")]
    | Annotated[ThompsonPolicy, Tag("thompson")]
    | Annotated[UCBPolicy, Tag("ucb")]
    | Annotated[LinUCBPolicy, Tag("linucb")]
    | Annotated[SquareCBPolicy, Tag("squarecb")]
    | Annotated[OtherPolicy, Tag("other")],
    Discriminator(_tag),
    BeforeValidator(_read),
    words("a policy's name, or a table of its name and options"),
]


def read_policy(text: str) -> PolicySettings:
    """A policy as a command line gives it: its name, or its table as JSON. Raises ConfigError on anything else."""
    try:
        read: PolicySettings = TypeAdapter(PolicySettings).validate_python(read_environment(EnvironmentText(text)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise ConfigError(f"{where}: {first['msg']}" if where else str(first["msg"])) from None
    return read
