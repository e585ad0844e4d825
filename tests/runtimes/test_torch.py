"""Modules from an import path and from a state dict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Runtime, load

pytestmark = pytest.mark.torch

BATCH = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
NETWORK = """
from torch import nn

class Network(nn.Module):
    def __init__(self, columns=2):
        super().__init__()
        self.layer = nn.Linear(2, columns, bias=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.layer(x))

model = Network()
nn.init.eye_(model.layer.weight)
"""


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Imported when a test runs, not when it is collected: two seconds that `make test-fast` has no use for."""
    return pytest.importorskip("torch")


@pytest.fixture
def app(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An application's folder with a network and its weights, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "app_network.py").write_text(NETWORK)
    torch.save({"layer.weight": torch.eye(2)}, tmp_path / "weights.pt")
    yield tmp_path
    sys.modules.pop("app_network", None)


def served(source: str, **options: Any) -> Runtime:
    return load(ModelSpec(name="m", version="1", source=source, options=options))


def test_a_module_is_called_in_evaluation_mode(app: Path) -> None:
    runtime = served("app_network:model", output="logits", classes=["left", "right"])
    for _ in range(5):  # drop-out would show
        outputs = runtime.predict(BATCH)
        assert outputs.labels.tolist() == ["left", "right", "left"]
        np.testing.assert_allclose(outputs.probabilities[0], np.exp([1, 0]) / (np.e + 1), atol=1e-6)


def test_a_state_dict_is_loaded_into_its_module(app: Path) -> None:
    outputs = served("weights.pt", module="app_network:Network", output="value").predict(BATCH)
    np.testing.assert_array_equal(outputs.labels, BATCH)
    with pytest.raises(ModelError, match=r"weights.pt cannot be loaded: RuntimeError: .*size mismatch"):
        served("weights.pt", module="app_network:Network", module_arguments={"columns": 3}, output="value")


def test_a_file_with_code_is_not_read(torch: Any, app: Path) -> None:
    served("app_network:model", output="value")  # puts the folder on `sys.path`
    from app_network import Network

    torch.save(Network(), app / "whole.pt")
    with pytest.raises(ModelError, match=r"whole.pt cannot be loaded: "):
        served("whole.pt", module="app_network:Network", output="value")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int64])
def test_numbers_of_any_type_go_in(app: Path, dtype: Any) -> None:
    batch = BATCH.astype(dtype)
    batch.flags.writeable = False
    assert served("app_network:model", output="logits").predict(batch).labels.tolist() == [0, 1, 0]


def test_types_of_computation(app: Path) -> None:
    for dtype in ("float64", "bfloat16"):
        outputs = served("app_network:model", output="value", dtype=dtype).predict(BATCH)
        np.testing.assert_array_equal(outputs.labels, BATCH)
    with pytest.raises(ModelError, match=r"options.dtype = 'floating': not a type of torch"):
        served("app_network:model", output="value", dtype="floating")


def test_options_are_checked(app: Path) -> None:
    for options, words in (
        ({}, r"options.output must say what the module answers: logits \| probabilities \| value"),
        ({"output": "value", "device": "warp"}, "options.device = 'warp' cannot be used here"),
        ({"output": "value", "gpu": 1}, "unknown option gpu"),
    ):
        with pytest.raises(ModelError, match=words):
            served("app_network:model", **options)


def test_text_is_refused(app: Path) -> None:
    with pytest.raises(ModelError, match="takes numbers, not object"):
        served("app_network:model", output="value").predict(np.array(["a"], dtype=object))


def test_threads_are_limited(torch: Any, app: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        served("app_network:model", output="value").predict(BATCH)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
