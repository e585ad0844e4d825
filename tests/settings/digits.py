"""A config that is right, and what is told of one that is not."""

from __future__ import annotations

import pytest

from streamserve.errors import ConfigError
from streamserve.settings import parse_settings

# The config of the README, and the second model that it names.
DIGITS = """\
[app]
name = "digits"
partitions = 4
fused = "auto"

[broker]                       # leave out for a Kafka of our own
bootstrap_servers = "host:9092"

[pools.main]                   # one consumer group of identical processes
models = ["linear", "forest"]
processes = 1

[models.linear]
version = "1"
source = "workers.digits_linear:model"     # import path, or an artifact's file
batching = "auto"

[routes.digits]
models = ["linear", "forest"]
policy = { name = "hedge", eta = 0.3, half_life_events = 350 }
combine = "mean_probability"
deadline_ms = 100
default = -1

[models.forest]
source = "workers.digits_forest:model"
"""


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "app.toml")
    return str(caught.value).splitlines()


def changed(old: str, new: str, text: str = DIGITS) -> str:
    assert old in text
    return text.replace(old, new)


def line_of(words: str, text: str) -> int:
    return text[: text.index(words)].count("\n") + 1
