"""Classes opened since the first ones: the same bits where every row is taken alone, 1e-12 where BLAS decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from streamserve.plan import Plan
from streamserve.plan.operators import evaluate
from streamserve.plan.verify import compare
from tests.effort import examples
from tests.plan.opened import FEATURES, LOGISTIC, MISSING, MODELS, TEXTS, WORDS
from tests.plan.tables import COLUMNS, HOLED, NUMBERS, THREE
from tests.plan.test_columns_exactness import agrees, planned
from tests.plan.texts import DOCUMENTS

pytestmark = pytest.mark.filterwarnings("ignore")
#: Numbers a model may meet: those it was fitted on, around them, and none at all.
numbers = arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.just(COLUMNS)),
    elements=st.one_of(
        st.floats(-1e6, 1e6), st.sampled_from(np.ravel(NUMBERS).tolist()), st.sampled_from([np.nan, np.inf, 0.0, -0.0])
    ),
)
PLAIN = [document.replace("\ud800", "") for document in DOCUMENTS]
_made: dict[str, tuple[Plan, Any]] = {}


def made(kind: str, name: str) -> tuple[Plan, Any]:
    """Plan and original, fitted once a session."""
    key = f"{kind} {name}"
    if key not in _made:
        if kind == "features":
            model = make_pipeline(clone(FEATURES[name]), DecisionTreeClassifier(random_state=0)).fit(NUMBERS, THREE)
        elif kind == "features, linear":
            model = make_pipeline(clone(FEATURES[name]), clone(LOGISTIC)).fit(NUMBERS, THREE)
        elif kind == "missing":
            model = make_pipeline(clone(MISSING[name]), DecisionTreeClassifier(random_state=0)).fit(HOLED, THREE)
        elif kind == "models":
            part, rows, labels = MODELS[name]
            model = clone(part).fit(rows, labels)
        else:
            model = clone(TEXTS[name]).fit(PLAIN, WORDS)
        _made[key] = (planned(model), model)
    return _made[key]


ALL = [
    *(("features", name) for name in FEATURES),
    *(("features, linear", name) for name in FEATURES),
    *(("missing", name) for name in MISSING),
    *(("models", name) for name in MODELS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [*ALL, *(("texts", name) for name in TEXTS)])
def test_the_answers_are_the_originals(kind: str, name: str) -> None:
    plan, model = made(kind, name)
    agrees(plan, model)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ALL)
@given(rows=numbers)
@settings(max_examples=examples(15))
def test_any_numbers(kind: str, name: str, rows: Any) -> None:
    agrees(*made(kind, name), rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
@given(texts=st.lists(st.one_of(st.text(max_size=40), st.sampled_from(DOCUMENTS)), min_size=1, max_size=4))
@settings(max_examples=examples(20))
def test_any_texts(name: str, texts: list[str]) -> None:
    agrees(*made("texts", name), texts)


@pytest.mark.parametrize("name", ["histogram_two", "histogram_three", "histogram_categories"])
def test_both_ways_through_boosted_histograms_are_the_meaning(name: str) -> None:
    from streamserve.plan.physical import SIZES, Layout

    plan, _ = made("models", name)
    rows = np.where(np.random.default_rng(1).random((300, COLUMNS)) < 0.1, np.nan, np.tile(NUMBERS, (3, 1))[:300])
    stage = next(i for i, node in enumerate(plan.graph.nodes) if node.op == "boosted")
    meant = evaluate(plan.graph, rows, ("decision_function",))["decision_function"]
    for variant in ("row-by-row", "tree-by-tree"):
        layout = Layout(plan.graph, {stage: (variant,) * len(SIZES)})
        found = layout.run(rows, ("decision_function",)).values["decision_function"]
        assert found.tolist() == meant.tolist()


def test_hashes_are_fused_into_the_scores() -> None:
    plan, _ = made("texts", "hashed")
    assert [node.op for node in plan.graph.nodes].count("score") == 1
    assert not {"hashed", "features"} & {node.op for node in plan.graph.nodes}


def test_every_hash_of_any_length_is_the_originals() -> None:
    plan, model = made("texts", "hashed_characters")
    texts = ["".join(chr(97 + (i * j) % 26) for j in range(i)) for i in range(60)]
    assert compare(plan, model, texts) is None
