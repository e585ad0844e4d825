"""Heads changed in a group of plans: as if the group were made anew, and nothing changes for who runs the old one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from streamserve.plan import Plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.learning import HeadLearner
from streamserve.plan.regrouping import same_but_head, with_head
from streamserve.plan.sharing import Group
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = ("a", "b", "c")
OUTPUTS = ("predict", "predict_proba", "decision_function")


@lru_cache
def made(vectoriser: str, penalty: float) -> Plan:
    return laid_out(import_fitted(fitted(clone(VECTORISERS[vectoriser]), LogisticRegression(C=penalty), LABELS)).graph)


@lru_cache
def learnt(vectoriser: str, penalty: float, rows: int) -> Plan:
    learner = HeadLearner(made(vectoriser, penalty), rate=0.7)
    learner.learn(DOCUMENTS[:rows], [1 - label for label in LABELS[:rows]])
    return learner.plan()


def said(answers: Any) -> Any:
    return {
        model: {output: one.values[output].tolist() for output in OUTPUTS} for model, one in sorted(answers.items())
    }


def says(group: Group) -> Any:
    return said(group.run(DOCUMENTS, dict.fromkeys(group.plans, OUTPUTS)))


#: Equal penalties are equal heads, which then have one column.
PENALTIES = st.tuples(*[st.sampled_from([0.1, 1.0])] * len(MODELS))


@settings(max_examples=25)
@given(
    vectoriser=st.sampled_from(["word", "union"]),
    penalties=PENALTIES,
    changes=st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, len(DOCUMENTS))), min_size=1, max_size=4),
)
def test_a_head_changed_is_a_group_made_anew(
    vectoriser: str, penalties: tuple[float, ...], changes: list[tuple[str, int]]
) -> None:
    penalty = dict(zip(MODELS, penalties, strict=True))
    plans = {model: made(vectoriser, penalty[model]) for model in MODELS}
    group = Group(plans)
    for model, rows in changes:
        before, old = says(group), group
        plans |= {model: learnt(vectoriser, penalty[model], rows)}
        group = with_head(group, model, plans[model])
        assert says(group) == said({name: plan.run(DOCUMENTS, OUTPUTS) for name, plan in plans.items()})
        assert says(old) == before


def test_a_column_of_its_own_is_written_without_uniting_all_anew() -> None:
    group = Group({"a": made("union", 0.1), "b": made("union", 1.0)})
    changed = with_head(group, "a", learnt("union", 0.1, 3))
    assert [node.op for node in changed.graph.nodes] == [node.op for node in group.graph.nodes]
    kept = [
        (old, new)
        for old, new in zip(group.graph.nodes, changed.graph.nodes, strict=True)
        if old.op not in {"score", "intercept"}
    ]
    assert all(old is new for old, new in kept)
    parts = [
        (old, new)
        for old, new in zip(group.graph.nodes, changed.graph.nodes, strict=True)
        if old.op in {"score", "intercept"}
    ]
    assert all(old is not new for old, new in parts)


def test_only_another_head_is_another_head() -> None:
    assert same_but_head(made("union", 0.1), made("union", 1.0))
    assert same_but_head(learnt("word", 0.1, 2), made("word", 0.1))
    assert not same_but_head(made("union", 0.1), made("word", 0.1))
