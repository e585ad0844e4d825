"""From a fitted scikit-learn estimator to a graph of operators. The only room of `plan` that imports scikit-learn.

    graph = import_fitted(pipeline).graph

What has no importer, or is set up in a way that none knows, stays a black box inside the graph, and the report says
which and why. Importers look up the exact class: a subclass may do something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from streamserve.errors import ImportRefused
from streamserve.plan.graph import Builder, Graph, InputForm
from streamserve.plan.importers import (
    bayes,
    categories,
    columns,
    compose,
    ensembles,
    features,
    foreign,
    histograms,
    linear,
    networks,
    projections,
    text,
    trees,
    versions,
)
from streamserve.plan.importers.context import Importing, PredictorImporter, TransformerImporter

__all__ = ["TESTED", "Imported", "form_of", "import_fitted", "importable"]

TESTED = versions.TESTED
_TRANSFORMERS: dict[str, TransformerImporter] = {
    **categories.TRANSFORMERS,
    **columns.TRANSFORMERS,
    **compose.TRANSFORMERS,
    **features.TRANSFORMERS,
    **projections.TRANSFORMERS,
    **text.TRANSFORMERS,
}
_PREDICTORS: dict[str, PredictorImporter] = {
    **bayes.PREDICTORS,
    **compose.PREDICTORS,
    **ensembles.PREDICTORS,
    **foreign.PREDICTORS,
    **histograms.PREDICTORS,
    **linear.PREDICTORS,
    **networks.PREDICTORS,
    **trees.PREDICTORS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A graph and what the import has to say of it."""

    graph: Graph
    black_boxes: Mapping[str, str]
    """Origin -> why it was not opened."""
    versions: Mapping[str, str]
    """Of the libraries whose formulas it repeats."""


def importable() -> tuple[str, ...]:
    """Names of the classes that have an importer."""
    return tuple(sorted({*_TRANSFORMERS, *_PREDICTORS}))


def import_fitted(estimator: Any, *, allow_untested: bool = False) -> Imported:
    """The graph of a fitted estimator or pipeline that can predict.

    Raises `ImportRefused` for one that is not fitted, cannot predict or has classes of mixed types, and for a version
    of scikit-learn that was not tested (unless allowed).
    """
    versions.check(allow_untested=allow_untested)
    name = type(estimator).__name__
    if isinstance(estimator, type):
        raise ImportRefused(f"{estimator.__name__} is a class; a plan is made of a fitted object of it")
    if not hasattr(estimator, "get_params"):
        raise ImportRefused(f"{name} is no estimator of scikit-learn; a plan is made of a fitted one")
    _refuse_unfitted(estimator, name)
    if not hasattr(estimator, "predict"):
        raise ImportRefused(f"{name} cannot predict; a plan is made of a model, not of a transformer alone")
    builder = Builder(form_of(estimator))
    importing = Importing(builder=builder, transformers=_TRANSFORMERS, predictors=_PREDICTORS)
    outputs = importing.predict(estimator, builder.source, "")
    return Imported(
        graph=builder.graph(outputs),
        black_boxes=importing.black_boxes,
        versions={"scikit-learn": sklearn.__version__, "numpy": np.__version__, "scipy": scipy.__version__},
    )


def _refuse_unfitted(estimator: Any, name: str) -> None:
    for path, part in [("", estimator), *_parts(estimator)]:
        try:
            check_is_fitted(part)
        except NotFittedError as unfitted:
            where = f"{name}, step {path}: this {type(part).__name__}" if path else f"this {name}"
            raise ImportRefused(f"{where} is not fitted; fit it first") from unfitted


def _parts(estimator: Any) -> list[tuple[str, Any]]:
    """Steps of pipelines, by path: `check_is_fitted` of a pipeline asks the last one only."""
    found = []
    for name, step in getattr(estimator, "steps", ()):
        if hasattr(step, "get_params"):
            found.append((name, step))
            found += [(f"{name} / {inner}", part) for inner, part in _parts(step)]
    return found


def form_of(estimator: Any) -> InputForm:
    """What a row of a fitted estimator's input is."""
    if compose.takes_text(estimator):
        return InputForm(kind="text")
    names = getattr(estimator, "feature_names_in_", None)
    return InputForm(
        kind="columns",
        columns=int(getattr(estimator, "n_features_in_", 0)),
        names=() if names is None else tuple(str(name) for name in names),
    )
