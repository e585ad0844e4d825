"""What the plans of a process say of themselves, up to the page of metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes.base import ModelSpec, Runtime
from streamserve.runtimes.plan import PlanRuntime
from streamserve.runtimes.plan_figures import figures_of
from streamserve.runtimes.sharing import share
from tests.plan.tables import NUMBERS, TWO
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


def runtime(model: Any) -> PlanRuntime:
    return PlanRuntime(model, ModelSpec(name="m", version="1", source="m"))


@pytest.fixture(scope="module")
def runtimes() -> dict[str, Runtime]:
    found: dict[str, Runtime] = {
        "a@1": runtime(fitted(clone(VECTORISERS["word"]), LogisticRegression())),
        "b@1": runtime(fitted(clone(VECTORISERS["word"]), LogisticRegression(C=9))),
        "c@1": runtime(LogisticRegression().fit(NUMBERS, TWO)),
    }
    share(found, cache_bytes=1 << 20)
    return found


def test_shared_arrays_are_those_of_several_models(runtimes: dict[str, Runtime]) -> None:
    figures = figures_of(runtimes)
    assert figures is not None
    assert figures.bytes_shared["a@1"] == figures.bytes_shared["b@1"] > figures.bytes_unique["a@1"] > 0
    assert figures.bytes_shared["c@1"] <= 16  # the classes 0 and 1
    assert figures_of({}) is None


def test_the_page_of_metrics(runtimes: dict[str, Runtime]) -> None:
    texts = np.array(DOCUMENTS[:2], dtype=object)
    for _ in range(200):
        runtimes["a@1"].predict(texts)
        runtimes["b@1"].predict(texts)
    metrics = RoleMetrics("worker", "app")
    assert "streamserve_plan" not in metrics.page().decode()
    metrics.plans(ModelRunner(runtimes, lambda _: None).plans())
    page = metrics.page().decode()
    value = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    assert value['streamserve_plan_bytes{kind="shared",model="a@1"}'] > 0
    assert value['streamserve_plan_stage_seconds_count{operator="score"}'] == 25  # one call in sixteen, of both models
    assert value['streamserve_plan_stage_seconds_bucket{le="+Inf",operator="score"}'] == 25
    looked = [
        value[f'streamserve_plan_cache_lookups_total{{result="{result}"}}'] for result in ("hit", "miss", "skipped")
    ]
    assert sum(looked) == 800
    assert looked[0] > 400
    assert value['streamserve_plan_cache_rows_total{event="admitted"}'] == 2
    assert 0 < value['streamserve_plan_cache_bytes{kind="held"}'] < value['streamserve_plan_cache_bytes{kind="most"}']


def test_without_memory_for_it_nothing_is_kept() -> None:
    found: dict[str, Runtime] = {name: runtime(fitted(clone(VECTORISERS["word"]))) for name in ("a@1", "b@1")}
    share(found)
    figures = figures_of(found)
    assert figures is not None
    assert figures.cache is None
