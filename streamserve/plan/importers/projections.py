"""PCA, TruncatedSVD and KMeans as transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import F64
from streamserve.plan.importers.context import Importing, NotWhite, TransformerImporter


def _float64(name: str, array: Any) -> F64:
    found: F64 = np.asarray(array)
    if found.dtype != np.float64:
        raise NotWhite(f"its {name} are {found.dtype}: they are multiplied in that precision")
    return found


def _projected(importing: Importing, source: int, origin: str, coef: F64, plus: F64) -> int:
    constants = {"coef": coef, "intercept": plus}
    source = importing.checked(source, origin)
    return importing.add("linear", source, origin=origin, constants=constants, ravel=False, features=len(coef))


def _pca(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    components = _float64("components", estimator.components_)
    centre = -(np.reshape(estimator.mean_, (1, -1)) @ components.T)[0]
    node = _projected(importing, source, origin, components, centre)
    if not estimator.whiten:
        return node
    scale = np.sqrt(estimator.explained_variance_)
    constants = {"by": np.maximum(scale, np.finfo(scale.dtype).eps)}
    return importing.add("divide", node, origin=origin, constants=constants, narrow=False)


def _svd(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    components = _float64("components", estimator.components_)
    return _projected(importing, source, origin, components, np.zeros(len(components)))


def _distances(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    centres = _float64("centres", estimator.cluster_centers_)
    constants = {"centres": centres, "squares": np.einsum("ij,ij->i", centres, centres)}
    source = importing.checked(source, origin)
    return importing.add("distances", source, origin=origin, constants=constants, features=len(centres))


TRANSFORMERS: dict[str, TransformerImporter] = {
    "KMeans": _distances,
    "MiniBatchKMeans": _distances,
    "PCA": _pca,
    "TruncatedSVD": _svd,
}
