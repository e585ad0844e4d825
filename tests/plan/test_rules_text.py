"""Every rule about text keeps the meaning, fires where it should, and can be switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import FunctionTransformer

from streamserve.errors import PlanError
from streamserve.plan.compile import laid_out
from streamserve.plan.graph import Graph
from streamserve.plan.importers import import_fitted
from streamserve.plan.operators import evaluate
from streamserve.plan.physical import Layout
from streamserve.plan.rules import RULES, rewrite
from tests.plan.texts import DOCUMENTS, LABELS, VECTORISERS, fitted, union

pytestmark = pytest.mark.filterwarnings("ignore")


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def imported(vectoriser: Any, model: Any = None) -> Graph:
    return import_fitted(fitted(vectoriser, model)).graph


def same_answers(one: Graph, other: Graph) -> None:
    expected, found = evaluate(one, DOCUMENTS), evaluate(other, DOCUMENTS)
    for output in expected:
        assert np.asarray(found[output]).tolist() == np.asarray(expected[output]).tolist(), output


def nested() -> FeatureUnion:
    return FeatureUnion([("inner", union(char=0.3)), ("more", CountVectorizer())])


def twins() -> FeatureUnion:
    return FeatureUnion([("a", TfidfVectorizer()), ("b", TfidfVectorizer()), ("c", CountVectorizer())])


def sparse_weights() -> SGDClassifier:
    return SGDClassifier(penalty="l1", alpha=0.1, random_state=0)


CASES: dict[str, Callable[[], Graph]] = {
    "flatten": lambda: imported(nested()),
    "split-vectorisers": lambda: imported(union()),
    "share-equal": lambda: imported(twins()),
    "push-linear": lambda: imported(nested()),
    "drop-unread": lambda: imported(CountVectorizer(ngram_range=(1, 2)), sparse_weights()),
    "fuse-score": lambda: imported(union(char=0.3)),
    "fuse-features": lambda: imported(
        FeatureUnion([("a", TfidfVectorizer()), ("b", FunctionTransformer(lambda rows: np.ones((len(rows), 1))))])
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_keeps_the_meaning_and_can_be_switched_off(name: str) -> None:
    graph = CASES[name]()
    before = graph
    fired = rewrite(graph)
    assert name in {one.rule.name for one in fired}
    for one in fired:
        same_answers(before, one.graph)
        before = one.graph
    without = rewrite(graph, [name])
    assert name not in {one.rule.name for one in without}
    same_answers(graph, without[-1].graph)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
@pytest.mark.parametrize("vectoriser", ["union", "two_steps", "pattern", "char_wb"])
def test_a_plan_without_a_rule_says_the_same(name: str, vectoriser: str) -> None:
    model = fitted(clone(VECTORISERS[vectoriser]))
    plan = laid_out(import_fitted(model).graph, disabled=[name])
    assert plan.predict_proba(DOCUMENTS).tolist() == model.predict_proba(DOCUMENTS).tolist()


def test_sentiment_is_two_kernel_calls_and_no_matrix() -> None:
    graph = rewrite(imported(FeatureUnion(union().transformer_list[:2])))[-1].graph
    assert ops(graph) == ["source", "normalise", "normalise", "score", "score", "intercept", "choose", "logistic"]
    alike = FeatureUnion([("w", TfidfVectorizer()), ("c", TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3)))])
    assert ops(rewrite(imported(alike))[-1].graph)[:4] == ["source", "normalise", "score", "score"]


def test_what_vectorisers_share_keeps_none_of_them_from_the_kernel() -> None:
    """Equal parts become one node first; each dot product still has its own call."""
    graph = imported(twins())
    final = rewrite(graph)[-1].graph
    assert ops(final)[:5] == ["source", "normalise", "score", "score", "score"]
    same_answers(graph, final)


def test_counts_that_something_else_reads_come_from_the_kernel_as_whole_numbers() -> None:
    counts = CountVectorizer()
    model = fitted(counts, RandomForestClassifier(3, random_state=0))
    plan = laid_out(import_fitted(model).graph)
    assert ops(plan.graph)[:3] == ["source", "normalise", "features"]
    matrix = plan.layout.values(DOCUMENTS, ("predict",))[2]
    expected = counts.transform(DOCUMENTS)
    assert matrix.dtype == expected.dtype == np.int64
    assert (matrix != expected).nnz == 0
    assert plan.predict(DOCUMENTS).tolist() == model.predict(DOCUMENTS).tolist()


def test_entries_without_weight_go_unless_a_norm_counts_them() -> None:
    free = imported(CountVectorizer(ngram_range=(1, 2)), sparse_weights())
    normed = imported(TfidfVectorizer(ngram_range=(1, 2)), sparse_weights())

    def features(graph: Graph) -> Any:
        return next(node.param("features") for node in rewrite(graph)[-1].graph.nodes if node.op == "score")

    coef = next(node.array("coef") for node in free.nodes if node.op == "linear")
    assert features(free) == np.count_nonzero(coef) < coef.size
    assert features(normed) == next(node.array("coef") for node in normed.nodes if node.op == "linear").size


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(PlanError, match=r"no rule push-liner; the rules are flatten, .*push-linear"):
        rewrite(imported(CountVectorizer()), ["push-liner"])


def test_labels_play_no_part() -> None:
    """Two models over the same features differ in their heads only."""
    one = rewrite(imported(union(), LogisticRegression(C=1.0)))[-1].graph
    other = rewrite(imported(union(), LogisticRegression(C=2.0)))[-1].graph
    shared = {constant.digest for constant in one.constants()} & {constant.digest for constant in other.constants()}
    arenas = {node.constants["arena"].digest for node in one.nodes if node.op == "score"}
    assert len(arenas) == 3
    assert arenas <= shared
    assert LABELS


def test_scores_that_two_heads_go_on_from_are_not_changed_under_either() -> None:
    """A stage adds in place; what another stage or the caller reads as well, it copies."""
    graph = rewrite(imported(union()))[-1].graph
    first, second, third = (i for i, node in enumerate(graph.nodes) if node.op == "score")
    other = replace(graph.nodes[third], inputs=(graph.nodes[third].inputs[0], first))
    nodes = (*graph.nodes, other)
    outputs = {"one": first, "two": second, "three": third, "other": len(nodes) - 1}
    forked = Graph(nodes=nodes, outputs=outputs, form=graph.form)
    expected = evaluate(forked, DOCUMENTS)
    found = Layout(forked).run(DOCUMENTS, tuple(outputs)).values
    for name in outputs:
        assert found[name].tolist() == expected[name].tolist(), name
