"""The config that the run serves: the template, with the network `cnn` added where torch is."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import dataclass
from pathlib import Path

from streamserve.assembly import app_rules
from streamserve.core.routes import Route
from streamserve.errors import ConfigError
from streamserve.settings import load_settings

TEMPLATE = Path(__file__).parents[1] / "demo.toml"
ROUTE = "digits"
_POOL = "networks"
_CNN = """
[models.cnn]
source = "workers.faulty:model()"

[models.cnn.options]
source = "workers.digits_cnn:model"
key = "cnn"
control = "$DEMO_FAULTS"
options = { output = "logits" }
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """The config as written, and what it says."""

    config: Path
    route: Route
    pools: int
    with_cnn: bool


def write_config(folder: Path, with_cnn: bool | None = None) -> Served:
    """Write `demo.toml` into the folder. `with_cnn`: None adds the network where torch can be imported.

    Raises `ConfigError` where the template is not of the form that the network can be added to.
    """
    with_cnn = importlib.util.find_spec("torch") is not None if with_cnn is None else with_cnn
    text = TEMPLATE.read_text(encoding="utf-8")
    config = folder / TEMPLATE.name
    config.write_text(_with_cnn(text) if with_cnn else text, encoding="utf-8")
    settings = load_settings(config)
    route = next(route for route in app_rules(settings).routes if route.name == ROUTE)
    return Served(config=config, route=route, pools=len(settings.pools), with_cnn=with_cnn)


def _with_cnn(text: str) -> str:
    parsed = tomllib.loads(text)
    for models in (parsed["pools"][_POOL]["models"], parsed["routes"][ROUTE]["models"]):
        names = ", ".join(f'"{name}"' for name in models)
        line = f"models = [{names}]"
        if text.count(line) != 1:
            raise ConfigError(f'{TEMPLATE}: expected one line `{line}`, to add "cnn" to it')
        text = text.replace(line, f'{line[:-1]}, "cnn"]')
    return text + _CNN
