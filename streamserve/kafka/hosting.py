"""The models of one worker process: loaded, warmed, told of on the models topic."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

from streamserve.assembly import model_specs
from streamserve.core.desk import ModelRules
from streamserve.kafka.announcing import Announcement
from streamserve.kafka.codecs.hosts import encode_hosts
from streamserve.kafka.logs import about
from streamserve.kafka.ports import At, Record
from streamserve.kafka.runner import Runner
from streamserve.runtimes import load
from streamserve.runtimes.base import Runtime, Sharing
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.sampling import sample_of
from streamserve.runtimes.sharing import share
from streamserve.settings import Settings
from streamserve.topics.names import Kind, topic_name

_log = logging.getLogger(__name__)


def load_pool(settings: Settings, pool: str) -> dict[str, Runtime]:
    """The pool's models, loaded. Raises ModelError."""
    runtimes: dict[str, Runtime] = {}
    for spec in model_specs(settings, pool):
        _log.info("loading model %s", spec.model_id, extra=about("load", model=spec.model_id))
        runtimes[spec.model_id] = load(spec, base_dir=settings.base_dir)
    own = {settings.model_id(name) for name in settings.pools[pool].models if settings.models[name].own_thread}
    share(runtimes, cache_bytes=settings.pools[pool].plan_cache_bytes, own_thread=own)
    return runtimes


def warmer(runtimes: Mapping[str, Runtime]) -> Callable[[Runner], Any]:
    return lambda runner: runner.warm({model: sample_of(model, runtime) for model, runtime in runtimes.items()})


def form_of_rows(rules: Mapping[str, ModelRules], runtimes: Mapping[str, Runtime]) -> dict[str, ModelRules]:
    """The rules, with the form of row that each model takes where it says: other rows are refused without a call."""
    known = {}
    for model, rule in rules.items():
        sample = sample_of(model, runtimes[model])
        if sample is None:
            known[model] = rule
        else:
            known[model] = replace(rule, trailing_shape=sample.shape[1:], takes_text=sample.dtype == object)
    return known


def with_lanes(rules: Mapping[str, ModelRules], runtimes: Mapping[str, Runtime]) -> dict[str, ModelRules]:
    """The rules, with the lane that each model runs in, if any."""
    lanes = {model: one.lane for model, one in runtimes.items() if isinstance(one, Sharing) and one.lane is not None}
    return {model: replace(rule, lane=lanes[model].name) if model in lanes else rule for model, rule in rules.items()}


def plans_of(runtimes: Mapping[str, Runtime]) -> dict[str, Mapping[str, int]]:
    """Of the white-box plans among them, bytes of each array by content hash."""
    return {model: runtime.held_bytes for model, runtime in runtimes.items() if isinstance(runtime, PlanRuntime)}


def announcement(settings: Settings, pool: str, instance: str | None, runtimes: Mapping[str, Runtime]) -> Announcement:
    """What this process hosts, of plans with their arrays; under a name of its own where it was given none."""
    instance = instance or f"{socket.gethostname()}-{os.getpid()}"
    hosts = encode_hosts(pool, instance, sorted(runtimes), plans_of(runtimes))
    key = hosts.key or b""
    at = At(topic_name(settings.app.name, Kind.MODELS), crc32(key) % settings.app.partitions)
    return Announcement(at=at, instance=instance, record=hosts, retraction=Record(key=key, value=None))
