"""The plan's app as the product sees it: a config, models, topics; and the bytes of its requests and feedback."""

from __future__ import annotations

import struct
import tomllib
from typing import Any

import numpy as np
import orjson

from streamserve.kafka.composition import topics_of
from streamserve.kafka.perform import Topics
from streamserve.kafka.ports import Columns
from streamserve.settings import Settings
from streamserve.testing.simulator.models import SimulatedModel, truth_of
from streamserve.testing.simulator.plan import Ask, Form

APP = "sim"
MODELS = f"{APP}.models.v1"
"""The topic."""
ROUTE = "r"
MAX_REQUEST_BYTES = 4_096
GUARD_MS = 15
DEFAULT = 7
NAMES = ("ash", "birch", "cedar", "dogwood")
"""Of models."""
_WEIGHTS = {"static": "", "hedge": ", eta = 0.5", "exp3": ", eta = 0.3, gamma = 0.2"}


def config_of(form: Form, variant: int = 0) -> str:
    """The config file of this app; 1: after the deploy."""
    models = form.hosted(variant)
    pools: dict[str, list[str]] = {}
    for model in models:
        pools.setdefault(model.pool, []).append(model.name)
    names = ", ".join(f'"{model.name}"' for model in form.variants[variant])
    lines = [
        "[app]",
        f'name = "{APP}"',
        f"partitions = {form.partitions}",
        "replication = 1",
        f'fused = "{"auto" if form.fused else "never"}"',
        f"guard_ms = {GUARD_MS}",
        f"max_deadline_ms = {form.max_deadline_ms}",
        f'delivery = "{"exactly_once" if form.exactly_once else "at_least_once"}"',
        f"max_request_bytes = {MAX_REQUEST_BYTES}",
        f"epoch_delay_ms = {form.epoch_delay_ms}",
        "[group]",
        f"session_timeout_ms = {form.session_ms}",
        "heartbeat_interval_ms = 300",
        "commit_interval_ms = 300",
        "[learn]",
        f"join_window_ms = {form.join_window_ms}",
        f"publish_every_outcomes = {form.publish_every_outcomes}",
    ]
    for pool, hosted in pools.items():
        quoted = ", ".join(f'"{name}"' for name in hosted)
        lines += [f"[pools.{pool}]", f"models = [{quoted}]", f"cache_bytes = {1 << 20 if form.cache else 0}"]
    for model in models:
        lines += [
            f"[models.{model.name}]",
            'source = "simulated:model"',
            f'version = "{model.version}"',
            f'batching = "{model.batching}"',
            f"max_wait_ms = {form.max_wait_ms}",
        ]
        lines += ["batch_size = 32"] if model.batching == "fixed" else []
    lines += [
        f"[routes.{ROUTE}]",
        f"models = [{names}]",
        f'policy = {{ name = "{form.policy}"{_WEIGHTS[form.policy]} }}',
        f'combine = "{form.combine}"',
        f"deadline_ms = {form.deadline_ms}",
        f'input = "{form.input}"',
        f"decide_early = {str(form.decide_early).lower()}",
    ]
    lines += [f"default = {DEFAULT}"] if form.has_default else []
    if form.second is not None:
        lines += [f'second_opinion = "{form.second.name}"', 'below_threshold = "second_opinion"']
        lines += ["confidence_threshold = 0.7", 'confidence = { of = "probability" }']
    if form.baseline:
        lines += [f'freeze = {{ baseline = "{form.baseline}", confidence = 0.5, stretch_outcomes = 100 }}']
    if form.keyed:
        keyed = f"keyed = true, forget_after_ms = {form.forget_after_ms}"
        lines += [f'contexts = {{ source = "key", pooling = 3.0, {keyed} }}']
    return "\n".join(lines) + "\n"


def settings_of(form: Form, variant: int = 0) -> Settings:
    """Validated as any config is, but for what no form can get wrong: looking for plug-ins takes longer than a run."""
    return Settings(**tomllib.loads(config_of(form, variant)))


def models_of(form: Form, variant: int = 0) -> dict[str, dict[str, SimulatedModel]]:
    """Pool -> model id -> model."""
    pools: dict[str, dict[str, SimulatedModel]] = {}
    for model in form.hosted(variant):
        model_id = f"{model.name}@{model.version}"
        pools.setdefault(model.pool, {})[model_id] = SimulatedModel(
            model=model_id,
            number=2 * NAMES.index(model.name) + int(model.version) % 2,
            numeric=form.combine == "mean",
            probabilities=form.combine == "mean_probability" or form.second is not None,
            a_ms=model.a_ms,
            b_ms=model.b_ms,
            poor=model.poor,
            doubts=form.second is not None and model is not form.second,
        )
    return pools


def topics(form: Form) -> tuple[Topics, dict[str, int], tuple[str, ...]]:
    """Names, partitions by name, those that are compacted."""
    names = topics_of(APP)
    every = [
        names.requests,
        names.answers,
        names.predictions,
        names.feedback,
        names.outcomes,
        names.epochs,
        names.policy,
        names.contexts,
        names.dlq,
        MODELS,
    ]
    return names, dict.fromkeys(every, form.partitions), (names.policy, names.contexts, MODELS)


_Headers = list[tuple[str, bytes | None]]
_ROW = struct.Struct("<dd")


def key_of(ask: Ask, form: Form) -> bytes:
    """Of its record, which stands in whatever partition: a key has requests in several."""
    return b"k%d" % (ask.number % form.keys)


class Bytes:
    """Requests as a client of this app writes them."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._input = form.input

    def requests(self, asks: list[Ask]) -> Columns:
        ones = [self._one(ask) for ask in asks]
        keys = self._form.keys
        return Columns(
            keys=[b"k%d" % (ask.number % keys) for ask in asks],
            values=[value for value, _ in ones],
            headers=[headers for _, headers in ones],
        )

    def _one(self, ask: Ask) -> tuple[bytes | None, _Headers]:
        headers: _Headers = []
        if ask.deadline_ms:
            headers.append(("ss-deadline-ms", b"%d" % ask.deadline_ms))
        if self._input == "raw":
            value: bytes | None = b"".join([_ROW.pack(ask.input + i, 0.5) for i in range(ask.rows)])
            headers += [("ss-dtype", b"float64"), ("ss-shape", b"%d,2" % ask.rows)]
        else:
            value = b"[%b]" % b",".join([b"[%d,0.5]" % (ask.input + i) for i in range(ask.rows)])
            if self._input == "oip":
                value = b'{"id":"q%d","inputs":[{"name":"x","shape":[%d,2],"datatype":"FP64","data":%b}]}' % (
                    ask.number,
                    ask.rows,
                    value,
                )
        if ask.kind == "good":
            return value, headers
        return self._bad(ask, value, headers)

    def _bad(self, ask: Ask, value: bytes | None, headers: _Headers) -> tuple[bytes | None, _Headers]:
        match ask.kind:
            case "empty":
                value = None if ask.number % 2 else b""
            case "not_json":
                value = b"\xff\xfe{]" if self._input != "raw" else b"\x00" * 7
            case "shape":
                value = b"[[1,2],[3]]" if self._input != "raw" else b"\x00" * 24
            case "large":
                value = b"[" + b"1," * MAX_REQUEST_BYTES + b"1]"
            case "route":
                headers.append(("ss-route", b"nowhere"))
            case "deadline":
                headers = [*(h for h in headers if h[0] != "ss-deadline-ms"), ("ss-deadline-ms", b"soon")]
            case "header":
                headers.append(("ss-route", b"\xff\xfe"))
            case "form":
                value = b'"words"' if self._input != "raw" else b"\x01"
            case _:
                raise ValueError(f"no way to malform a request as {ask.kind!r}")
        return value, headers


def feedback_of(kind: str, ask: Ask, ref: str | None, request_id: str, numeric: bool) -> tuple[bytes, _Headers]:
    """One feedback record's value and headers; `ref` None: the client did not keep it."""
    headers: _Headers = [] if ref is None else [("ss-ref", ref.encode())]
    if kind == "malformed":
        return b'{"id":', headers
    inputs = np.arange(ask.input, ask.input + ask.rows)
    labels: Any = (inputs % 1000 if numeric else truth_of(inputs)).tolist()
    body: dict[str, Any] = {"id": request_id}
    body |= {"reward": (ask.number % 11) / 10} if kind == "reward" else {"label": labels if ask.rows > 1 else labels[0]}
    return orjson.dumps(body), headers
