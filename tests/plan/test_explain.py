"""`explain` tells the graph before, after each rule, and the stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier

from streamserve.plan import compile_plan
from streamserve.plan.costs import chosen, cycled, shares, timed
from streamserve.plan.explain import as_mermaid, explain
from streamserve.plan.packing import load, pack
from streamserve.plan.physical import SIZES
from streamserve.plan.store import Store
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


def test_every_rule_that_fired_is_told_with_the_graph_after_it() -> None:
    plan = compile_plan(fitted(clone(VECTORISERS["union"])))
    text = explain(plan)
    places = [
        text.index(part) for part in ("as imported", *(f"after {one.rule.name}:" for one in plan.fired), "stages")
    ]
    assert places == sorted(places)
    assert "%1 = vectorise(%0)" in text
    assert "lower=True" in text
    assert "<- featureunion / word" in text
    assert "=> predict_proba" in text
    assert "fused up to 1 rows, fused up to 10 rows, fused up to 1000 rows" in text


@pytest.mark.slow
def test_a_packed_plan_tells_its_rules_and_black_boxes(tmp_path: Path) -> None:
    plan = compile_plan(fitted(clone(VECTORISERS["word"]), DummyClassifier()))
    pack(plan, tmp_path / "x.plan", Store(tmp_path / "s"))
    text = explain(load(tmp_path / "x.plan", Store(tmp_path / "s")))
    assert "rules that fired where it was packed\n  split-vectorisers: vectorisers become their single steps" in text
    assert "dummyclassifier: no importer for DummyClassifier" in text


def test_a_picture_has_every_node_and_edge_and_no_loose_quote() -> None:
    plan = compile_plan(fitted(clone(VECTORISERS["pattern_spaces"])))
    picture = as_mermaid(plan.graph)
    assert picture.startswith("flowchart LR\n")
    for i, node in enumerate(plan.graph.nodes):
        assert f'n{i}["{node.op}' in picture
        for source in node.inputs:
            assert f"n{source} --> n{i}" in picture
    assert all(line.count('"') in {0, 2} for line in picture.splitlines())


def test_the_fastest_variant_is_chosen_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(clone(VECTORISERS["word"]))
    plan = compile_plan(model)
    seconds = {"fused": 3.0, "matrix-then-dot": 2.0}
    monkeypatch.setattr(
        "streamserve.plan.costs._stage_seconds",
        lambda layout, outputs, rows, size, stage: seconds[layout.choice[stage][0]] * (size != SIZES[1]),
    )
    other = chosen(plan)
    stage = next(i for i, node in enumerate(plan.graph.nodes) if node.op == "score")
    assert other.layout.choice[stage] == ("matrix-then-dot", "fused", "matrix-then-dot")
    for rows in (DOCUMENTS, DOCUMENTS[:1]):
        assert other.predict_proba(rows).tolist() == model.predict_proba(rows).tolist()


def test_shares_and_times() -> None:
    plan = compile_plan(fitted(clone(VECTORISERS["union"])))
    told = shares(plan, DOCUMENTS)
    assert abs(sum(share for _, share in told) - 1) < 1e-9
    assert told[0][0].split()[1] == "score"
    assert timed(plan.predict, DOCUMENTS, 10) > 0
    assert cycled(DOCUMENTS, 20)[8] == DOCUMENTS[0]
