"""Models of other frameworks as black boxes of a plan: LightGBM, XGBoost and ONNX, each kept in its own format.

Text, UBJSON and protobuf are data: no pickle is read or written for them, so none has to be trusted. Each runs on one
thread, as everything in a batch does. The only module of `plan` that imports these frameworks, and only where used::

    model = onnx_model(Path("model.onnx"), classes=["bad", "good"])
    builder = Builder(InputForm(kind="columns", columns=4))
    box = builder.black_box(model, "predict_proba", [builder.source], origin="onnx")
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.errors import ImportRefused, PlanDamaged
from streamserve.plan.graph import DIGEST_BYTES

LIGHTGBM, XGBOOST, ONNX = "lightgbm", "xgboost", "onnx"
_MODULES = {LIGHTGBM: "lightgbm", XGBOOST: "xgboost", ONNX: "onnxruntime"}
#: Types of an ONNX graph's input -> what rows are converted to.
_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeignModel:
    """A model as bytes of its own format; loaded when first asked. Threads may share it."""

    form: str
    """`lightgbm`, `xgboost` or `onnx`."""
    data: bytes
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the format does not say, as JSON has it; `version`: of the framework that wrote it."""

    @cached_property
    def digest(self) -> str:
        """The content hash: equal models are one black box."""
        digest = hashlib.blake2b(
            json.dumps([self.form, dict(self.about)], sort_keys=True).encode(), digest_size=DIGEST_BYTES
        )
        digest.update(self.data)
        return digest.hexdigest()

    @property
    def kind(self) -> str:
        """What to call it: the class it was, or the format."""
        return str(self.about.get("class", self.form))

    @property
    def classes_(self) -> AnyArray | None:
        """What the columns of its probabilities stand for, where it was told."""
        classes = self.about.get("classes")
        return None if classes is None else np.array(classes)

    def predict(self, rows: Any) -> AnyArray:
        """Labels of an ONNX classifier, else values: `[n]`."""
        return self._run(rows, "predict")

    def predict_proba(self, rows: Any) -> AnyArray:
        """Probabilities, `[n, classes]`."""
        return self._run(rows, "predict_proba")

    def transform(self, rows: Any) -> AnyArray:
        """An ONNX graph's first output, `[n, columns]`."""
        return self._run(rows, "transform")

    def open(self) -> None:
        """Load it now. Raises `ImportRefused` without its framework or with an older one, `PlanDamaged` for bytes
        that are no model."""
        _ = self._run

    @cached_property
    def _run(self) -> Callable[[Any, str], AnyArray]:
        framework = _framework(self.form, str(self.about.get("version", "")), self.kind)
        try:
            return _OPENERS[self.form](self, framework)
        except ImportRefused:
            raise
        except Exception as broken:
            raise PlanDamaged(f"{self.kind}: its bytes are no {self.form} model: {_first_line(broken)}") from broken

    def __getstate__(self) -> dict[str, Any]:
        return {"form": self.form, "data": self.data, "about": dict(self.about)}  # what is loaded stays behind


def lightgbm_model(booster: Any, *, cls: str = "Booster", classes: int = 0) -> ForeignModel:
    """A fitted `lightgbm.Booster`; `classes`: 0 for a regressor, else how many it tells apart."""
    about = {"class": cls, "classes_count": classes, "best_iteration": int(booster.best_iteration)}
    return ForeignModel(
        form=LIGHTGBM,
        data=booster.model_to_string(num_iteration=-1).encode(),
        about={**about, "version": _version(LIGHTGBM)},
    )


def xgboost_model(
    booster: Any, *, cls: str = "Booster", classes: int = 0, missing: float = float("nan"), trees: bool = True
) -> ForeignModel:
    """A fitted `xgboost.Booster`; `classes` as above, `missing`: the number that means none, `trees`: false for
    `gblinear`."""
    best = booster.attr("best_iteration")
    about = {
        "class": cls,
        "classes_count": classes,
        "missing": None if np.isnan(missing) else float(missing),
        "trees": trees,
        "rounds": int(best) + 1 if best is not None and trees else 0,
    }
    return ForeignModel(
        form=XGBOOST, data=bytes(booster.save_raw("ubj")), about={**about, "version": _version(XGBOOST)}
    )


def onnx_model(source: Path | bytes, *, classes: Sequence[str | int] | None = None) -> ForeignModel:
    """An ONNX graph with one input, of a file or its bytes; `classes`: what the columns of its probabilities stand for.

    Raises `ImportRefused` for a graph with several inputs or one of an unknown type, `PlanDamaged` for no graph.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    about: dict[str, Any] = {"class": ONNX, "version": _version(ONNX)}
    if classes is not None:
        about["classes"] = list(classes)
    model = ForeignModel(form=ONNX, data=data, about=about)
    model.open()
    return model


def restored(form: str, data: bytes, about: Mapping[str, Any], where: str) -> ForeignModel:
    """The model that a packed plan holds, loaded. Raises as `ForeignModel.open`, naming `where`."""
    model = ForeignModel(form=form, data=data, about=dict(about))
    try:
        model.open()
    except (ImportRefused, PlanDamaged) as trouble:
        raise type(trouble)(f"{where}: {trouble}") from trouble
    return model


def is_foreign(form: str) -> bool:
    """Whether a packed black box is of this module."""
    return form in _MODULES


def _framework(form: str, packed: str, name: str) -> Any:
    module = _MODULES[form]
    try:
        found = importlib.import_module(module)
    except ImportError as missing:
        raise ImportRefused(f"{name} needs {module}, which is not installed: pip install {module}") from missing
    if _numbers(found.__version__) < _numbers(packed):
        raise ImportRefused(
            f"{name} was made with {module} {packed}, here is {found.__version__}; install that one or a newer one, "
            "or pack the plan again"
        )
    return found


def _version(form: str) -> str:
    return str(_framework(form, "", form).__version__)


def _numbers(version: str) -> tuple[int, ...]:
    """Of 4.7.0: (4, 7); bug fixes write what others read."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _first_line(broken: Exception) -> str:
    return f"{type(broken).__name__}: {' '.join(str(broken).split())[:200]}"


def _numeric(rows: Any) -> Any:
    """Rows as the frameworks take them: CSR stays, objects become floats."""
    if sparse.issparse(rows):
        return rows
    table = np.asarray(rows)
    return table.astype(np.float64) if table.dtype == object else table


def _open_lightgbm(model: ForeignModel, lightgbm: Any) -> Callable[[Any, str], AnyArray]:
    booster = lightgbm.Booster(model_str=model.data.decode(), params={"verbosity": -1})
    best, classes = int(model.about["best_iteration"]), int(model.about["classes_count"])

    def run(rows: Any, method: str) -> AnyArray:
        if not rows.shape[0]:
            return np.empty((0, classes) if classes else 0)
        found = np.asarray(booster.predict(_numeric(rows), num_iteration=best if best > 0 else -1, num_threads=1))
        if method == "predict_proba" and found.ndim == 1:
            return np.vstack((1.0 - found, found)).transpose()
        return found

    return run


def _open_xgboost(model: ForeignModel, xgboost: Any) -> Callable[[Any, str], AnyArray]:
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(model.data))
    booster.set_param({"nthread": 1})
    classes, rounds = int(model.about["classes_count"]), (0, int(model.about["rounds"]))
    missing = float("nan") if model.about["missing"] is None else float(model.about["missing"])

    def run(rows: Any, method: str) -> AnyArray:
        if not rows.shape[0]:
            return np.empty((0, classes) if classes else 0, dtype=np.float32)
        table = _numeric(rows)
        if model.about["trees"]:
            found = booster.inplace_predict(table, iteration_range=rounds, missing=missing, validate_features=False)
        else:
            matrix = xgboost.DMatrix(table, missing=missing, nthread=1)
            found = booster.predict(matrix, iteration_range=rounds, validate_features=False)
        if method == "predict_proba" and found.ndim == 1:
            return np.vstack((1.0 - found, found)).transpose()
        return np.asarray(found)

    return run


def _open_onnx(model: ForeignModel, onnxruntime: Any) -> Callable[[Any, str], AnyArray]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.data, settings, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _DTYPES:
        had = ", ".join(f"{one.name} ({one.type})" for one in inputs)
        raise ImportRefused(f"an ONNX graph of a plan has one input of numbers or texts; this one has {had}")
    name, dtype, wide = inputs[0].name, _DTYPES[inputs[0].type], len(inputs[0].shape) == 2

    def run(rows: Any, method: str) -> AnyArray:
        table = np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=dtype)
        if dtype is np.object_ and wide and table.ndim == 1:
            table = table[:, None]
        results = session.run(None, {name: table})
        if method == "predict_proba":
            return _probabilities(results[-1])
        found = np.asarray(results[0])
        if method == "transform" or found.ndim != 2 or found.shape[1] != 1:
            return found
        return found[:, 0]

    return run


def _probabilities(scores: Any) -> AnyArray:
    """`[n, classes]` of a tensor, or of a dictionary a row (ZipMap), in the order of its keys."""
    if isinstance(scores, list):
        keys = list(scores[0]) if scores else []
        return np.array([[row[key] for key in keys] for row in scores], dtype=np.float64).reshape(
            len(scores), len(keys)
        )
    return np.asarray(scores)


_OPENERS: dict[str, Callable[[ForeignModel, Any], Callable[[Any, str], AnyArray]]] = {
    LIGHTGBM: _open_lightgbm,
    XGBOOST: _open_xgboost,
    ONNX: _open_onnx,
}
