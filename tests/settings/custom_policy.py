"""A policy as another package would bring it: a module of about 30 lines, and an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULE = '''\
import math
from dataclasses import dataclass

from streamserve.core.selection.drawing import one_of, with_floor
from streamserve.errors import ConfigError, ContractError


@dataclass(frozen=True)
class Softmax:
    """Boltzmann exploration on mean rewards."""

    heat: float = 0.05
    name = "softmax"

    def __post_init__(self):
        if not 0 < self.heat <= 1:
            raise ConfigError("policy softmax: heat must be above 0 and up to 1")

    def initial(self, models):
        return {model: (1.0, 1.0) for model in models}

    def distribution(self, state, models):
        means = [state[model][1] / state[model][0] for model in models]
        scores = [math.exp((mean - max(means)) / self.heat) for mean in means]
        return one_of(with_floor([score / sum(scores) for score in scores], 0.02))

    def learn(self, state, outcome):
        losses = {model: loss for model, loss in outcome.losses.items() if model in state and 0 <= loss <= 1}
        seen = {model: (state[model][0] + 1, state[model][1] + 1 - loss) for model, loss in losses.items()}
        return state | seen if seen else state

    def dump(self, state):
        return {"v": 1, "sums": state}

    def load(self, data, models):
        if data.get("v") != 1 or not isinstance(data.get("sums"), dict):
            raise ContractError("softmax cannot read this state")
        return {model: tuple(data["sums"].get(model, (1.0, 1.0))) for model in models}
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str = "") -> None:
    """Put it where `importlib.metadata` finds it, as pip would."""
    (folder / "softmax_policy.py").write_text(MODULE)
    info = folder / "softmax_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: softmax-policy\nVersion: 1.0\n")
    points = "[streamserve.policies]\nsoftmax = softmax_policy:Softmax\n"
    (info / "entry_points.txt").write_text(points + (f"broken = {broken}\n" if broken else ""))
    monkeypatch.syspath_prepend(folder)
