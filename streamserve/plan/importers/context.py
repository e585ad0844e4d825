"""What every importer uses: the graph being made, the black box, the table of importers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pickle import PicklingError
from typing import Any

import joblib
import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.errors import ImportRefused
from streamserve.plan.graph import Builder, Constant, Param
from streamserve.plan.shapes import only_text

_FOREIGN = frozenset({"lightgbm", "xgboost"})
METHODS = ("predict", "predict_proba", "decision_function")
#: Makes nodes for one fitted transformer that reads a node; says the node that holds its output.
TransformerImporter = Callable[["Importing", Any, int, str], int]
#: The same for a predictor; says the node of each of its methods.
PredictorImporter = Callable[["Importing", Any, int, str], Mapping[str, int]]


class NotWhite(Exception):
    """This estimator, as it is set up, has no operators; the words say why."""


@dataclass(slots=True, kw_only=True)
class Importing:
    """One import: the builder, and the importers by class."""

    builder: Builder
    transformers: Mapping[str, TransformerImporter]
    predictors: Mapping[str, PredictorImporter]
    black_boxes: dict[str, str] = field(default_factory=dict)
    """Origin -> why it stayed a black box."""

    def add(
        self,
        op: str,
        *inputs: int,
        origin: str,
        constants: Mapping[str, AnyArray | Constant] | None = None,
        **params: Param,
    ) -> int:
        """Append a node."""
        return self.builder.add(op, inputs, params=params, constants=constants, origin=origin)

    def is_text(self, source: int) -> bool:
        """Whether a node's matrix is made of n-grams alone, which are finite."""
        return only_text(self.builder.nodes, source)

    def checked(self, source: int, origin: str) -> int:
        """The node of what a model makes sure of: finite floats."""
        return source if self.is_text(source) else self.add("floats", source, origin=origin, allow_nan=False)

    def transform(self, estimator: Any, source: int, origin: str) -> int:
        """The node that holds what a fitted transformer makes of `source`."""
        importer = self.transformers.get(class_name(estimator))
        words = f"no importer for {type(estimator).__name__}"
        if importer is not None:
            kept, boxes = len(self.builder.nodes), dict(self.black_boxes)
            try:
                refuse_frames(estimator)
                return importer(self, estimator, source, origin)
            except NotWhite as reason:
                words = str(reason)
                del self.builder.nodes[kept:]
                self.black_boxes = boxes
        return self._black_box(estimator, "transform", source, origin, words)

    def predict(self, estimator: Any, source: int, origin: str) -> Mapping[str, int]:
        """The node of each method of a fitted predictor."""
        importer = self.predictors.get(class_name(estimator))
        words = f"no importer for {type(estimator).__name__}"
        if importer is not None:
            kept, boxes = len(self.builder.nodes), dict(self.black_boxes)
            try:
                return importer(self, estimator, source, origin)
            except NotWhite as reason:
                words = str(reason)
                del self.builder.nodes[kept:]
                self.black_boxes = boxes
        methods = [method for method in METHODS if hasattr(estimator, method)]
        return {method: self._black_box(estimator, method, source, origin, words) for method in methods}

    def _black_box(self, estimator: Any, method: str, source: int, origin: str, why: str) -> int:
        self.black_boxes[origin] = why
        return self.builder.black_box(
            estimator, method, [source], origin=origin, why=why, identity=_identity(estimator)
        )


def _identity(estimator: Any) -> str:
    """Equal for equal objects where they can be pickled, else of this very object."""
    try:
        return str(joblib.hash(estimator))
    except (PicklingError, TypeError, AttributeError):
        return f"object {id(estimator)}"


def class_name(estimator: Any) -> str:
    """The class of scikit-learn that it is exactly, or `lightgbm.` or `xgboost.` and theirs; empty for others: a
    subclass may do something else."""
    cls = type(estimator)
    package = cls.__module__.partition(".")[0]
    if package == "sklearn":
        return cls.__name__
    return f"{package}.{cls.__name__}" if package in _FOREIGN else ""


def refuse_frames(estimator: Any) -> None:
    """Raise `NotWhite` for a transformer that was told to give frames."""
    config = getattr(estimator, "_sklearn_output_config", {})
    if config.get("transform", "default") != "default":
        raise NotWhite(f'set_output(transform="{config["transform"]}") gives frames')


def joined(origin: str, name: str) -> str:
    """`origin / name`."""
    return f"{origin} / {name}" if origin else name


def class_params(classes: AnyArray, origin: str) -> tuple[dict[str, Param], dict[str, AnyArray]]:
    """(params, constants) that hold a classifier's classes. Raises `ImportRefused` for mixed types."""
    if classes.dtype.kind in "biuf":
        return {}, {"classes": classes}
    words = [word for word in classes.tolist() if isinstance(word, str)]
    if len(words) != len(classes):
        kinds = ", ".join(sorted({type(value).__name__ for value in classes.tolist()}))
        raise ImportRefused(
            f"{origin}: its classes are of mixed types ({kinds}); a plan keeps numbers or strings: fit it on labels "
            "of one type"
        )
    return {"classes": tuple(words), "as_objects": bool(classes.dtype == np.object_)}, {}
