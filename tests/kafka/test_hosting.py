"""The models of a worker process: what goes wrong with one is told in words, naming it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve.core.desk import ModelRules
from streamserve.core.messages import Outputs
from streamserve.errors import ModelError
from streamserve.kafka.hosting import form_of_rows, load_pool, warmer
from streamserve.kafka.runner import ModelRunner
from streamserve.settings import load_settings
from streamserve.supervisor.parent import LOADS


class Asked:
    def predict(self, batch: np.ndarray) -> Outputs:
        return Outputs(labels=batch[:, 0])

    def close(self) -> None:
        """Nothing."""

    @property
    def sample(self) -> Any:
        raise ValueError("not now")


def test_a_sample_that_cannot_be_had_keeps_it_from_serving() -> None:
    words = "model m@1: its sample row cannot be had: ValueError: not now"
    with pytest.raises(ModelError, match=words):
        form_of_rows({"m@1": ModelRules(model="m@1")}, {"m@1": Asked()})
    with pytest.raises(ModelError, match=words):
        warmer({"m@1": Asked()})(ModelRunner({}, lambda _: None))


def test_each_model_is_named_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosted_model.py").write_text("def good(batch): return batch[:, 0]\n")
    (tmp_path / "app.toml").write_text(
        'app.name = "a"\npools.p.models = ["good", "gone"]\nroutes.r.models = ["good", "gone"]\n'
        'models.good.source = "hosted_model:good"\nmodels.gone.source = "hosted_model:gone"\n'
    )
    with caplog.at_level(logging.INFO, "streamserve"), pytest.raises(ModelError, match="model gone@1"):
        load_pool(load_settings(tmp_path / "app.toml"), "p")
    said = [(record.getMessage(), vars(record)["action"]) for record in caplog.records]
    assert said == [("loading model good@1", LOADS), ("loading model gone@1", LOADS)]
