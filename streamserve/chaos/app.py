"""Which app is served while a fault is done: the user's, or a small one of ours in either form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamserve.errors import ConfigError
from streamserve.settings import Settings, load_settings

Form = Literal["fused", "split"]

_OURS = """\
[app]
name = "chaos"
partitions = 4
guard_ms = 100
{fused}

{pools}

[models.tens]
source = "streamserve.chaos.models:tens"

[models.units]
source = "streamserve.chaos.models:units"

[routes.main]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 1000
"""
_POOLS: Mapping[Form, str] = {
    "fused": '[pools.main]\nmodels = ["tens", "units"]',
    "split": '[pools.left]\nmodels = ["tens"]\n\n[pools.right]\nmodels = ["units"]',
}
_FUSED: Mapping[Form, str] = {"fused": 'fused = "auto"', "split": 'fused = "never"'}
_REQUEST = b'{"id":"chaos","inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[42.0,1.0]}]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A config, and a request that its (first) route can read."""

    config: Path
    request: bytes

    def settings(self, overrides: Mapping[str, str]) -> Settings:
        """The config as the processes see it under these variables."""
        with _environment(overrides):
            return load_settings(self.config)


def own_app(folder: Path, form: Form) -> App:
    """Ours: two small models, one pool (`fused`) or two and an aggregator (`split`)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{form}.toml"
    config.write_text(_OURS.format(pools=_POOLS[form], fused=_FUSED[form]), "utf-8")
    return App(config=config, request=_REQUEST)


def users_app(config: Path, request: Path | None) -> App:
    """The user's. Raises ConfigError where there is no request that could be sent to it."""
    if request is None:
        raise ConfigError(
            f"{config}: --request FILE is needed: one request as a client would send it (the record's value). "
            "Leave CONFIG out to try the faults on a small app of streamserve's own"
        )
    try:
        return App(config=config.absolute(), request=request.read_bytes())
    except OSError as error:
        raise ConfigError(f"--request {request}: cannot be read: {error.strerror}") from None


@contextmanager
def _environment(overrides: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in overrides}
    os.environ.update(overrides)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
