"""One fitted text pipeline served three ways on a real broker: as it is, compiled at loading, and packed as a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from streamserve.cli.entry import app as main
from streamserve.plan import compile_plan
from streamserve.plan.packing import pack
from streamserve.plan.store import Store
from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, foreign_client
from tests.acceptance.running import STOP_S, metric, project, serving
from tests.plan.texts import VECTORISERS, fitted

pytestmark = [
    pytest.mark.broker,
    pytest.mark.beside,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),
]

CONFIG = """
[app]
name = "APP"
partitions = 1

[pools.main]
models = ["plain", "compiled", "packed"]
plan_cache_bytes = 1048576

[models.plain]
source = "model.joblib"
trust_pickle = true

[models.compiled]
source = "model.joblib"
trust_pickle = true
runtime = "plan"

[models.packed]
source = "model.plan"

[models.packed.options]
store = "STORE"

[routes.plain]
models = ["plain"]
input = "text"
probabilities = true
deadline_ms = 5000

[routes.compiled]
models = ["compiled"]
input = "text"
probabilities = true
deadline_ms = 5000

[routes.packed]
models = ["packed"]
input = "text"
probabilities = true
deadline_ms = 5000
"""
ROUTES = ("plain", "compiled", "packed")
TEXTS = ["the world is big", " ", "GROßER Straße 😀", "İstanbul ™ TM", "a b c", "hello  world"]


def outputs(client: Foreign, route: str, tags: list[int]) -> list[Any]:
    """What each text got: the whole outputs of its prediction."""
    for tag, text in zip(tags, TEXTS, strict=True):
        client.send(text.encode(), tag=tag, headers=[("ss-route", route.encode())])
    seen = client.answers(tags)
    assert {seen[tag].outcome for tag in tags} == {"ok"}
    return [seen[tag].json["outputs"] for tag in tags]


def test_a_plan_answers_what_its_pipeline_answers(broker: BrokerForTests, tmp_path: Path) -> None:
    model = fitted(clone(VECTORISERS["union"]), labels=["good", "bad"] * 4)
    config = CONFIG.replace("STORE", str(tmp_path / "store"))
    path = project(tmp_path, config=config, model="", servers=broker.bootstrap_servers)
    joblib.dump(model, tmp_path / "model.joblib")
    pack(compile_plan(model), tmp_path / "model.plan", Store(tmp_path / "store"))
    with serving(path, "--no-spares", state=tmp_path / "state") as app:
        with foreign_client(app.ready) as client:
            found = [outputs(client, route, [10 * i + j for j in range(len(TEXTS))]) for i, route in enumerate(ROUTES)]
        port = next(role["metrics_port"] for role in app.ready["roles"] if role["name"].startswith("worker-main"))
        shared = metric(port, "streamserve_plan_bytes", kind="shared", model="packed@1")
        looked = metric(port, "streamserve_plan_cache_lookups_total", result="miss")
        held = CliRunner().invoke(main, ["plan", "place", "--pools", "1", "--config", str(path), "--json"]).output
        assert app.stop() <= STOP_S
    assert shared > 0
    assert looked >= len(TEXTS)
    assert set(json.loads(held)["pools"][0]["models"]) == {"compiled@1", "packed@1"}
    assert json.dumps(found[1]) == json.dumps(found[2]) == json.dumps(found[0])
    labels = [next(one["data"][0] for one in each if one["name"] == "label") for each in found[0]]
    assert labels == model.predict(TEXTS).tolist()
    shown = [next(one["data"] for one in each if one["name"] == "probabilities") for each in found[1]]
    assert np.array(shown).reshape(len(TEXTS), -1).tolist() == model.predict_proba(TEXTS).tolist()
