"""A head learnt further: the steps are scikit-learn's, and nothing but the head changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.svm import LinearSVC

from streamserve.errors import PlanError
from streamserve.plan import Plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.learning import HeadLearner
from streamserve.plan.packing import load, pack
from streamserve.plan.precision import narrowed
from streamserve.plan.sharing import Group
from streamserve.plan.store import Store
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
RATE = 0.3
OTHER_WAY = [1 - label for label in LABELS]
MODEL = fitted(clone(VECTORISERS["union"]), LogisticRegression(), LABELS)
PLAN = laid_out(import_fitted(MODEL).graph)


def learnt(plan: Plan = PLAN, passes: int = 1, labels: Any = OTHER_WAY) -> Plan:
    learner = HeadLearner(plan, rate=RATE)
    for _ in range(passes):
        learner.learn(DOCUMENTS, labels)
    return learner.plan()


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", ["word", "union"])
def test_steps_are_those_of_scikit_learn(name: str, passes: int) -> None:
    model = fitted(clone(VECTORISERS[name]), LogisticRegression(), LABELS)
    rows = model[:-1].transform(DOCUMENTS).toarray()  # of sparse rows it would hold the intercept back
    theirs = SGDClassifier(
        loss="log_loss", penalty=None, learning_rate="constant", eta0=RATE, shuffle=False, max_iter=passes, tol=None
    ).fit(rows, OTHER_WAY, coef_init=model[-1].coef_.copy(), intercept_init=model[-1].intercept_.copy())
    ours = learnt(laid_out(import_fitted(model).graph), passes).decision_function(DOCUMENTS)
    assert np.abs(ours - theirs.decision_function(rows)).max() <= 1e-12
    assert np.abs(ours - model.decision_function(DOCUMENTS)).max() > 0.1


def test_what_it_learns_it_answers() -> None:
    assert PLAN.predict(DOCUMENTS).tolist() == LABELS
    assert learnt(passes=60).predict(DOCUMENTS).tolist() == OTHER_WAY


def test_rows_right_are_counted_before_they_are_learnt_from() -> None:
    learner = HeadLearner(PLAN, rate=0)
    assert learner.learn(DOCUMENTS, LABELS).right == len(DOCUMENTS)
    assert learner.learn(DOCUMENTS, OTHER_WAY).right == 0
    assert learner.changed == 0
    assert learner.plan().digest == PLAN.digest


def test_only_the_head_is_another() -> None:
    before = {constant.digest for constant in PLAN.graph.constants()}
    after = {constant.digest for constant in learnt().graph.constants()}
    heads = [node for node in PLAN.graph.nodes if node.op in {"score", "intercept"}]
    assert len(after - before) == len(heads)


def test_others_over_its_vocabulary_answer_as_before() -> None:
    other = laid_out(import_fitted(fitted(clone(VECTORISERS["union"]), LogisticRegression(C=3), LABELS)).graph)
    plans = {"before": PLAN, "after": learnt(), "other": other}
    expected = {name: plan.decision_function(DOCUMENTS).tolist() for name, plan in plans.items()}
    group = Group(plans)
    assert {node.array("weights").shape[1] for node in group.graph.nodes if node.op == "score"} == {3}
    found = group.run(DOCUMENTS, {name: ("decision_function",) for name in plans})
    assert {name: one.values["decision_function"].tolist() for name, one in found.items()} == expected
    assert PLAN.decision_function(DOCUMENTS).tolist() == MODEL.decision_function(DOCUMENTS).tolist()


def test_it_is_packed_as_any_plan(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    pack(PLAN, tmp_path / "before.plan", store)
    kept = set((tmp_path / "store").rglob("*.npy"))
    pack(learnt(load(tmp_path / "before.plan", store)), tmp_path / "after.plan", store, thin=True)
    assert len(set((tmp_path / "store").rglob("*.npy")) - kept) == sum(
        node.op in {"score", "intercept"} for node in PLAN.graph.nodes
    )
    again = load(tmp_path / "after.plan", store)
    assert again.decision_function(DOCUMENTS).tolist() == learnt().decision_function(DOCUMENTS).tolist()


@pytest.mark.parametrize(
    ("head", "labels"),
    [(LogisticRegression(), list("abcabcab")), (Ridge(), LABELS), (LinearSVC(), LABELS)],
    ids=["three classes", "no classes", "no logistic function"],
)
def test_other_heads_are_refused(head: Any, labels: Any) -> None:
    plan = laid_out(import_fitted(fitted(clone(VECTORISERS["word"]), head, labels)).graph)
    with pytest.raises(PlanError, match="only the head of a text classifier of two classes with a logistic function"):
        HeadLearner(plan, rate=1)


def test_a_narrow_head_and_unknown_labels_are_refused() -> None:
    with pytest.raises(PlanError, match="its head is float32"):
        HeadLearner(narrowed(PLAN)[0], rate=1)
    learner = HeadLearner(PLAN, rate=1)
    with pytest.raises(PlanError, match=r"row 1: 'maybe' is no class of this plan; its classes: \[0, 1\]"):
        learner.learn(DOCUMENTS[:2], [1, "maybe"])
    with pytest.raises(PlanError, match="row 1: a text is needed"):
        learner.learn([DOCUMENTS[0], None], [1, 1])  # type: ignore[list-item]
    assert learner.changed == 0
