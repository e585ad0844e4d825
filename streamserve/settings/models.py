"""The config as frozen models: every section, key, default and limit, with the words of its reference page.

Long since it is a list: the reference page and the schema are generated from it, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streamserve import addresses
from streamserve.core.messages import MAX_MODELS_PER_ROUTE
from streamserve.runtimes.isolation import Limits
from streamserve.settings.bounds import BoundsSettings
from streamserve.settings.environment import DELIMITER, PREFIX, EnvironmentSource
from streamserve.settings.fields import (
    WORDS,
    AppName,
    Flag,
    Float,
    Int,
    LabelValue,
    Name,
    Names,
    Options,
    Section,
    Text,
    Texts,
    Version,
)
from streamserve.settings.policies import PolicySettings, StaticPolicy

_LIMITS = Limits()
#: A request must fit its topic's `max.message.bytes` (4 MiB) with its key and headers.
MAX_REQUEST_BYTES = (4 << 20) - (64 << 10)


class AppSettings(Section):
    """`[app]`: what holds for all routes."""

    name: AppName = Field(description="Prefix of topics and groups: lower-case letters, digits, `-`, `.`.")
    partitions: Int = Field(default=4, ge=1, le=10_000, description="Partitions of each of its topics; chosen once.")
    fused: Literal["auto", "never"] = Field(
        default="auto",
        description="`auto`: where one pool hosts everything, its processes also write the predictions (two hops). "
        "`never`: separate aggregators (three hops).",
    )
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        default="at_least_once",
        description="`exactly_once`: whatever dies, each prediction, outcome and dead letter stands in its topic once, "
        "for any reader. Needs the permission WRITE on TransactionalIds with the prefix `<app>.`.",
    )
    max_deadline_ms: Int = Field(
        default=60_000, ge=1, le=3_600_000, description="A request that asks for more is refused."
    )
    max_request_bytes: Int = Field(
        default=1 << 20, ge=1, le=MAX_REQUEST_BYTES, description="A request above it gets `error`."
    )
    guard_ms: Int = Field(
        default=15,
        ge=0,
        le=60_000,
        description="Predictions are written at least this long before the deadline, to arrive in time; longer while "
        "records of late took longer to get into the log, up to half of the shortest deadline of a route.",
    )
    epoch_delay_ms: Int = Field(
        default=250,
        ge=10,
        le=60_000,
        description="A learnt state holds for requests appended at least this long after it.",
    )
    replication: Int | None = Field(
        default=None,
        ge=1,
        le=10,
        description="Replicas of each topic; left out: 3 where there are as many brokers, else 1.",
    )
    state_dir: Path | None = Field(
        default=None,
        description="Folder of our own Kafka's data. Left out: the user's state folder.",
    )


class ClientSettings(Section):
    """`[broker.client]`: security of a Kafka that is not ours, passed through to the client as it stands."""

    client_id: Text = Field(
        default="streamserve", min_length=1, max_length=200, description="Name in the broker's logs."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How to speak to the broker."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] | None = Field(
        default=None, description="Needed with `SASL_*`."
    )
    sasl_username: Text | None = Field(default=None, description="For PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(default=None, description="For PLAIN and SCRAM; better in the environment.")
    sasl_kerberos_service_name: Text = Field(default="kafka", description="For GSSAPI.")
    sasl_kerberos_domain_name: Text | None = Field(
        default=None, description="For GSSAPI; left out: the broker's host name."
    )
    sasl_token_function: Text | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="For OAUTHBEARER: called without arguments, on a thread, for each connection; returns the text of "
        "a token that is valid now. Found from the working folder, as models are.",
        json_schema_extra={WORDS: "`package.module:function` in quotes"},
    )
    ssl_cafile: Path | None = Field(
        default=None, description="Trusted certificate authorities (PEM); left out: the system's."
    )
    ssl_certfile: Path | None = Field(default=None, description="Our certificate (PEM), where the broker asks for one.")
    ssl_keyfile: Path | None = Field(default=None, description="Our certificate's key (PEM).")
    ssl_password: SecretStr | None = Field(default=None, description="Password of the key; better in the environment.")
    ssl_check_hostname: Flag = Field(default=True, description="Refuse a broker whose certificate names another host.")


class BrokerSettings(Section):
    """`[broker]`: which Kafka. Left out: one of our own is started by `streamserve up`."""

    bootstrap_servers: Text | None = Field(
        default=None,
        pattern=addresses.PATTERN,
        description="Left out: a Kafka of our own.",
        json_schema_extra={WORDS: addresses.ALLOWED},
    )
    nodes: Literal[1, 3] = Field(default=1, description="Brokers of our own Kafka.")
    client: ClientSettings = ClientSettings()


class GroupSettings(Section):
    """`[group]`: how a process belongs to its consumer group."""

    session_timeout_ms: Int = Field(
        default=6_000, ge=1_000, le=300_000, description="A process unheard of for so long loses its partitions."
    )
    heartbeat_interval_ms: Int = Field(
        default=300, ge=50, le=100_000, description="At most a third of the session timeout."
    )
    commit_interval_ms: Int = Field(default=200, ge=10, le=60_000, description="How often offsets are committed.")


class PoolSettings(Section):
    """`[pools.NAME]`: the models that one consumer group of identical worker processes hosts."""

    models: Names = Field(min_length=1, description="Names of `[models.*]`; a model is in one pool.")
    processes: Int = Field(default=1, ge=1, le=256, description="Worker processes that `streamserve up` starts.")
    cache_bytes: Int = Field(
        default=32 << 20,
        ge=0,
        le=1 << 40,
        description="Memory of each process for results of inputs seen before; 0: no cache.",
    )
    plan_cache_bytes: Int = Field(
        default=0,
        ge=0,
        le=1 << 40,
        description="Memory of each process for features of texts that came before, where several of its plans share "
        "them; 0: none are kept.",
    )


class ModelSettings(Section):
    """`[models.NAME]`: one model, and how its batches are cut."""

    version: Version = Field(default="1", description="Answers are told apart by `name@version`; text, in quotes.")
    inherits: Text | None = Field(
        default=None,
        pattern=r"^[^@]+@[^@]+$",
        description="`name@version` of a model, mostly the version before: where a route's learnt state knows that one "
        "and not yet this, this one begins with a part of what it has earned. Left out: as any new model.",
    )
    inherits_share: Float = Field(
        default=0.5, ge=0, le=1, description="That part: 0, as any new model; 1, as if it were the same one."
    )
    source: Text = Field(
        min_length=1,
        description="Import path (`package.module:attribute`, found from the working folder) or a file, relative to "
        "this one: `.skops`, `.onnx`, `.pt` (state_dict), `.joblib`, `.plan`.",
    )
    runtime: Name | None = Field(
        default=None,
        description="How it is run; left out: the first runtime that accepts it. `plan` compiles a fitted "
        "scikit-learn model.",
    )
    precision: Literal["f64", "f32"] = Field(
        default="f64",
        description="With the runtime `plan`: `f32` keeps and adds linear heads over text in float32. Answers are then "
        "not the original's; by how much is measured at loading and logged.",
    )
    head_rate: Float | None = Field(
        default=None,
        gt=0,
        le=1_000,
        description="Of a packed text plan with a logistic head of two classes: its head learns from labels while it "
        "serves (`streamserve learn-head`), and one row moves the weights so far; about 0.5 where rows are normalised. "
        "Such a model has no result cache. Left out: it stays as it is.",
    )
    batching: Literal["auto", "aimd", "quantile", "fixed", "none"] = Field(
        default="auto",
        description="`auto`: by cost, lag and slack; `aimd`, `quantile`: Clipper's; `fixed`: `batch_size`; `none`: 1.",
    )
    max_batch: Int = Field(default=512, ge=1, le=100_000, description="Most rows of one call.")
    batch_size: Int | None = Field(
        default=None, ge=1, le=100_000, description='Rows of one call with `batching = "fixed"`.'
    )
    max_wait_ms: Int = Field(
        default=0, ge=0, le=60_000, description="How long a batch may wait for more rows while there is time to spare."
    )
    trust_pickle: Flag = Field(
        default=False,
        description="Allow a `.joblib` file, or a `.plan` with a pickled black box: loading one runs whatever code "
        "is in it.",
    )
    trusted_types: Texts = Field(default=(), description="Types that a `.skops` file may hold beyond the safe ones.")
    isolation: Literal["thread", "process"] = Field(
        default="thread",
        description="`thread`: in the worker's process; `process`: in one of its own, which may crash, hang or leak "
        "without the others: then only this model's answers are missing, and it is started again. Of a worker that is "
        "root it runs as an unprivileged user: what it opens or imports after loading must be readable for others.",
    )
    own_thread: Flag = Field(
        default=False,
        description="White-box plans of a pool share one thread, the earliest deadline first; true: this one has a "
        "thread that no other model's calls use. (Every model that is no white-box plan has one.)",
    )
    memory_bytes: Int = Field(
        default=_LIMITS.memory_bytes,
        ge=16 << 20,
        le=1 << 44,
        description='With `isolation = "process"`: resident memory above which the process is ended.',
    )
    most_threads: Int = Field(
        default=_LIMITS.most_threads, ge=1, le=10_000, description="The same: threads above which it is ended."
    )
    cpu_cores: Int = Field(
        default=_LIMITS.cpu_cores,
        ge=1,
        le=1_024,
        description="The same: cores that it may use, and threads of its numeric libraries; one that uses more is "
        "confined to so many cores.",
    )
    niceness: Int = Field(
        default=_LIMITS.niceness,
        ge=0,
        le=19,
        description="The same: its weight on a busy core, against the worker's own (0: equal, 19: least).",
    )
    call_timeout_ms: Int = Field(
        default=_LIMITS.call_timeout_ms,
        ge=10,
        le=3_600_000,
        description="The same: a call that takes longer is taken to hang, and the process is ended.",
    )
    load_timeout_ms: Int = Field(
        default=_LIMITS.load_timeout_ms,
        ge=1_000,
        le=3_600_000,
        description="The same: how long it may take from its start until it is warm.",
    )
    options: Options = Field(
        default={}, repr=False, description="The runtime's own options: see [runtimes](runtimes.md)."
    )


class GuardSettings(Section):
    """`[routes.NAME.guard]`: what a policy may choose, whatever it has learnt.

    A share is one of requests where the policy asks one model for each, else one of the weight in the combination."""

    least_share: Float = Field(default=0.0, ge=0, lt=1, description="Share that every model gets at least.")
    most_share: Float = Field(default=1.0, gt=0, le=1, description="Share that no model gets more of.")
    most_explored: Float = Field(
        default=1.0, ge=0, le=1, description="Share of all models together but the one with the largest."
    )
    control: Name | None = Field(
        default=None, description="A model of the route that alone answers a fixed share of the requests."
    )
    control_share: Float = Field(default=0.0, ge=0, lt=1, description="That share; needs `control`.")


class FreezeSettings(Section):
    """`[routes.NAME.freeze]`: a model whose answers are certainly worse than the baseline's is asked no more, until
    `streamserve models enable` lifts it."""

    baseline: Name = Field(description="A model of the route; it is never frozen.")
    confidence: Float = Field(
        default=0.99,
        ge=0.5,
        lt=1,
        description="That in a stretch no model is frozen whose answers were no worse, however often one looks.",
    )
    stretch_outcomes: Int = Field(
        default=10_000,
        ge=100,
        description="Judged requests of a stretch; then the comparison begins anew, or a long good record would hide a "
        "new fault.",
    )


class ConfidenceSettings(Section):
    """`[routes.NAME.confidence]`: how sure answers are, learnt from labels; else the models' weighted agreement."""

    of: Literal["agreement", "probability"] = Field(
        default="agreement",
        description="What it is learnt from: the models' weighted agreement, or the answer's highest probability: the "
        "only sign of doubt where one model answers alone, and the better one where learnt weights lean on one model.",
    )
    method: Literal["counts", "isotonic", "temperature"] = Field(
        default="counts",
        description="From the models' agreement to the probability that the answer is right. `counts`: how often "
        "answers of this agreement were right lately; `isotonic`: the same, made to rise with the agreement; "
        "`temperature`: a curve of two numbers.",
    )
    half_life_events: Float = Field(default=350.0, ge=1, description="Labels after which one counts half.")
    prior: Float = Field(default=5.0, gt=0, description="How many labels the agreement itself counts as, at first.")
    coverage: Float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Predictions tell a set of classes, or an interval, that holds the truth in this share of cases; "
        "0: none.",
    )
    step: Float = Field(default=0.02, gt=0, le=1, description="How far its threshold moves at a miss.")
    scale: Float = Field(
        default=1.0, gt=0, description='With `combine = "mean"`: what counts as one; a usual error is a good choice.'
    )


class ContextSettings(Section):
    """`[routes.NAME.contexts]`: its requests have contexts, with a learnt state each."""

    source: Literal["header", "key", "body"] = Field(
        default="header",
        description="Where a request names its context. `header`: in `ss-context`; `key`: in its record key; `body`: "
        "in a field of its JSON.",
    )
    until: Text = Field(
        default="",
        max_length=100,
        description="With `key`: the context is what stands before this text; left out: the whole key.",
    )
    field: Text | None = Field(
        default=None,
        pattern=r"^[^.]+(\.[^.]+)*$",
        description="With `body`: name of the field; of one inside others, all names with dots between them.",
    )
    most: Int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="Contexts with a state. The feedback of any more teaches only the levels above them, which also "
        "decide for them.",
    )
    pooling: Float = Field(
        default=20.0,
        ge=0,
        le=1e6,
        description="A state is drawn towards the level above it as by so many outcomes of that level's mean.",
    )
    keyed: Flag = Field(
        default=False,
        description="A state for each record key too, below the levels that `source` names: of users, of which there "
        'may be a million. With `source = "key"` the key says both: before and behind `until`, or its last level.',
    )
    most_keyed: Int = Field(
        default=1_000_000,
        ge=1,
        le=10_000_000,
        description="With `keyed`: keys with a state, in one partition; as `most`.",
    )
    forget_after_ms: Int = Field(
        default=2_592_000_000,
        ge=1_000,
        description="With `keyed`: a state that has learnt nothing for so long is forgotten. What it learnt stays in "
        "the levels above it.",
    )


class RouteSettings(Section):
    """`[routes.NAME]`: what a request can ask for."""

    models: Names = Field(min_length=1, max_length=MAX_MODELS_PER_ROUTE, description="Candidates, each in a pool.")
    policy: PolicySettings = Field(
        default=StaticPolicy(), description="Which models are asked, and with what weight; see below."
    )
    guard: GuardSettings | None = None
    freeze: FreezeSettings | None = None
    confidence: ConfidenceSettings | None = None
    contexts: ContextSettings | None = None
    combine: Literal["vote", "mean_probability", "log_probability", "mean", "best", "drawn"] = Field(
        default="vote",
        description="`vote`: label with most weight; `mean_probability`: class with the highest mean probability; "
        "`log_probability`: the same of log-probabilities, as `stack` needs it; "
        "`mean`: weighted mean of numbers; `best`: the answer of the heaviest model; "
        "`drawn`: the answer of one model, drawn by its weight, as `exp4` needs it.",
    )
    deadline_ms: Int = Field(default=100, ge=1, description="From append to prediction, where a request names none.")
    default: LabelValue = Field(default=None, description="Label given when no model answered in time; left out: none.")
    confidence_threshold: Float = Field(
        default=0.0, ge=0, le=1, description="With less confidence than this an answer is not given ..."
    )
    below_threshold: Literal["default", "abstain", "second_opinion"] = Field(
        default="default",
        description="... but the default, or none: reason `abstained`, outcome `default`; or a second opinion is asked "
        "of another model, whose answer is given where it comes in time.",
    )
    second_opinion: Name | None = Field(
        default=None, description="That model: a costlier one, in the same pool, and none of `models`."
    )
    input: Literal["oip", "rows", "text", "raw"] = Field(
        default="oip",
        description="`oip`: Open Inference Protocol v2 JSON; `rows`: plain JSON rows; `text`: UTF-8 text; "
        "`raw`: tensor bytes, dtype and shape in headers.",
    )
    decide_early: Flag = Field(
        default=True,
        description="Answer at most 5 ms after the members still missing cannot change the answer any more. "
        "Their answers still reach the learner.",
    )
    max_state_age_ms: Int = Field(
        default=0,
        ge=0,
        le=86_400_000,
        description="A learnt state older than this when a request comes is not used for it; the policy's initial "
        "state is (no learner has been heard of since). 0: however old; else at least 5,000.",
    )
    probabilities: Flag = Field(
        default=False, description="Predictions carry the combined probabilities as a second output."
    )

    @property
    def has_default(self) -> bool:
        """Whether the config names a default."""
        return "default" in self.model_fields_set


class LearnSettings(Section):
    """`[learn]`: how feedback is joined and learnt from."""

    join_window_ms: Int = Field(
        default=600_000, ge=1_000, le=30 * 86_400_000, description="Feedback later than this is late."
    )
    window_bytes: Int = Field(
        default=512 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="Memory for predictions and answers remembered until their feedback comes, of all partitions "
        "together; above it the oldest are forgotten, and their feedback is late.",
    )
    window_store: Literal["memory", "rocksdb"] = Field(
        default="memory",
        description="Where predictions are remembered. `rocksdb`: on disk, in the app's state folder, for windows "
        "larger than memory (`window_bytes` then bounds what is kept on disk); needs the extra `learn`. Answers stay "
        "in memory, at most 128 MiB of them.",
    )
    outcomes: Literal["auto", "always"] = Field(
        default="auto",
        description="Whether `streamserve up` starts a learner, without which feedback is joined with nothing. `auto`: "
        "where a route learns, or splits by `ab`, whose result is in the outcomes; `always`: for fixed weights, too.",
    )
    processes: Int = Field(default=1, ge=1, le=256, description="Learner processes that `streamserve up` starts.")
    publish_every_outcomes: Int = Field(
        default=100,
        ge=1,
        description="A changed state is published after so many outcomes (fewer: a failure is heard of sooner, and "
        "more records are written)",
    )
    publish_every_ms: Int = Field(
        default=250, ge=10, le=60_000, description="... or after this time, whichever is first."
    )


class AggregatorSettings(Section):
    """`[aggregator]`: only where the app is not fused."""

    processes: Int = Field(default=1, ge=1, le=256, description="Aggregator processes that `streamserve up` starts.")


class InsightsSettings(Section):
    """`[insights]`: with this table `streamserve up` starts `streamserve insights`, and a learner for its outcomes."""

    window_ms: Int = Field(
        default=60_000, ge=1_000, le=86_400_000, description="Length of the windows in which figures are counted."
    )
    publish_every_ms: Int = Field(
        default=1_000, ge=100, le=60_000, description="Rows that have changed are published so often."
    )
    most_rows: Int = Field(
        default=20_000,
        ge=100,
        le=1_000_000,
        description="Rows (route, model, context, window) of one partition that are not closed yet; what would need "
        "more is left out, and counted as left out.",
    )
    drift_threshold: Float = Field(
        default=20.0, gt=0, description="Page-Hinkley: how far losses may add up above their mean before the alarm."
    )
    drift_tolerance: Float = Field(
        default=0.05, ge=0, le=1, description="The same: by how much a loss may be above the mean without counting."
    )
    web_port: Int = Field(
        default=0, ge=0, le=65_535, description="Loopback port of the web view; 0: any free one, named in the log."
    )


class MetricsSettings(Section):
    """`[metrics]`: the loopback port of `/metrics`, `/healthz` and `/readyz`."""

    port: Int = Field(default=0, ge=0, le=65_535, description="0: any free one, named when the process serves.")


class Settings(BaseSettings):
    """A whole config. Made by `load_settings`, which also checks what no single key can tell."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
    )

    app: AppSettings
    broker: BrokerSettings = BrokerSettings()
    pools: dict[Name, PoolSettings] = Field(min_length=1)
    models: dict[Name, ModelSettings] = Field(min_length=1)
    routes: dict[Name, RouteSettings] = Field(min_length=1)
    learn: LearnSettings = LearnSettings()
    aggregator: AggregatorSettings = AggregatorSettings()
    group: GroupSettings = GroupSettings()
    metrics: MetricsSettings = MetricsSettings()
    insights: InsightsSettings | None = None
    bounds: BoundsSettings = BoundsSettings()

    _path: Path = PrivateAttr(default=Path("streamserve.toml"))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first, then what the file says."""
        del env_settings, dotenv_settings, file_secret_settings
        return EnvironmentSource(settings_cls, file=init_settings()), init_settings

    @property
    def path(self) -> Path:
        """The config's file."""
        return self._path

    @property
    def base_dir(self) -> Path:
        """The config's folder: relative files are found from here."""
        return self._path.absolute().parent

    @property
    def fused(self) -> bool:
        """Whether worker and aggregator run in one process: `fused = "auto"` and a single pool that hosts it all."""
        return self.app.fused == "auto" and len(self.pools) == 1

    def model_id(self, name: str) -> str:
        """`name@version` of a model of this config."""
        return f"{name}@{self.models[name].version}"
