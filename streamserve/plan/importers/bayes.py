"""Naive Bayes: multinomial, complement, Bernoulli, Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.importers.context import Importing, NotWhite, PredictorImporter, class_params
from streamserve.plan.shapes import shapes_of


def _answers(importing: Importing, estimator: Any, scores: int, origin: str) -> Mapping[str, int]:
    params, constants = class_params(np.asarray(estimator.classes_), origin)
    labels = importing.builder.add("choose", [scores], params=params, constants=constants, origin=origin)
    return {"predict": labels, "predict_proba": importing.add("exponentials", scores, origin=origin)}


def _linear(
    importing: Importing, estimator: Any, source: int, origin: str, constants: dict[str, AnyArray]
) -> Mapping[str, int]:
    """`constants`: `coef` and `intercept`."""
    if len(estimator.classes_) < 2:
        raise NotWhite("it has one class")
    scores = importing.add("linear", source, origin=origin, constants=constants, ravel=False)
    return _answers(importing, estimator, scores, origin)


def _multinomial(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    source = importing.checked(source, origin)
    constants = {"coef": estimator.feature_log_prob_, "intercept": estimator.class_log_prior_}
    return _linear(importing, estimator, source, origin, constants)


def _complement(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    nothing = np.zeros(len(estimator.classes_))
    source = importing.checked(source, origin)
    return _linear(importing, estimator, source, origin, {"coef": estimator.feature_log_prob_, "intercept": nothing})


def _bernoulli(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    source = importing.checked(source, origin)
    if estimator.binarize is not None:
        node = importing.builder.nodes[source]
        counts = node.op == "vectorise" and node.param("norm") is None and "idf" not in node.constants
        if counts and not node.param("sublinear") and estimator.binarize == 0 and "arena" in node.constants:
            source = source if node.param("binary") else importing.add("binary", source, origin=origin)
        elif shapes_of(importing.builder.nodes)[source] == "sparse" and estimator.binarize < 0:
            raise NotWhite("it reads a sparse matrix, whose zeros are above binarize")
        else:
            source = importing.add("threshold", source, origin=origin, above=float(estimator.binarize))
    absent = np.log(1 - np.exp(estimator.feature_log_prob_))
    plus = estimator.class_log_prior_ + absent.sum(axis=1)
    constants = {"coef": estimator.feature_log_prob_ - absent, "intercept": plus}
    return _linear(importing, estimator, source, origin, constants)


def _gaussian(importing: Importing, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
    if shapes_of(importing.builder.nodes)[source] in {"sparse", "unknown"}:
        raise NotWhite("it reads a sparse matrix")
    variances = estimator.var_
    heights = [-0.5 * np.sum(np.log(2.0 * np.pi * variances[i, :])) for i in range(len(variances))]
    constants: dict[str, AnyArray] = {
        "means": estimator.theta_,
        "variances": variances,
        "shares": np.log(np.asarray(estimator.class_prior_)),
        "heights": np.array(heights),
    }
    source = importing.checked(source, origin)
    scores = importing.add("gaussian", source, origin=origin, constants=constants)
    return _answers(importing, estimator, scores, origin)


PREDICTORS: dict[str, PredictorImporter] = {
    "BernoulliNB": _bernoulli,
    "ComplementNB": _complement,
    "GaussianNB": _gaussian,
    "MultinomialNB": _multinomial,
}
