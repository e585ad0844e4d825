"""Runtime `onnx`: an ONNX Runtime session.

Converted classifiers answer a label and their probabilities, as a tensor or as one dictionary a row (`ZipMap`); other
graphs answer one tensor, whose meaning `options.output` gives where its type and shape leave it open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.conversion import plain_strings
from streamserve.runtimes.frameworks import is_instance_of
from streamserve.runtimes.options import Options
from streamserve.runtimes.scores import MEANINGS, class_array, outputs_from_scores

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


class OnnxRuntime:
    """Runs a session with one input.

    Options: `threads` (1; read when a file is loaded), `output` ("logits", "probabilities", "value"), `classes` (what
    the columns of probabilities stand for, where the graph does not say).
    """

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        options = Options(spec)
        self._meaning = options.text("output", allowed=MEANINGS)
        self._classes = class_array(options.values("classes"))
        options.finish()
        self._session = obj
        self._spec = spec
        inputs = obj.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs)
            raise spec.error(f"{spec.source} has {len(inputs)} inputs ({names}); a model here has one")
        if inputs[0].type not in _DTYPES:
            raise spec.error(f"{spec.source} takes {inputs[0].type}; known are {', '.join(_DTYPES)}")
        self._input_name: str = inputs[0].name
        self._input_dtype = _DTYPES[inputs[0].type]
        self._text_column = self._input_dtype is np.object_ and len(inputs[0].shape) == 2

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """An `onnxruntime.InferenceSession`."""
        return is_instance_of(obj, "onnxruntime", "InferenceSession")

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch `[n, ...]`, converted to the input's type. Raises what ONNX Runtime raises."""
        rows = batch.astype(self._input_dtype, copy=False)
        if self._text_column and rows.ndim == 1:
            rows = rows[:, None]
        results = self._session.run(None, {self._input_name: rows})
        first = results[0]
        if len(results) > 1 and isinstance(first, np.ndarray) and first.dtype.kind in "iuOUS":
            return self._classified(plain_strings(first.reshape(len(first))), results[1])
        if not isinstance(first, np.ndarray):
            raise self._spec.error(f"its first output is a {type(first).__name__}, not a tensor")
        return self._single(first)

    def sample(self) -> AnyArray | None:
        """One row of zeros (of empty texts) where the graph states all sizes but the first, else None."""
        sizes = self._session.get_inputs()[0].shape[1:]
        if not all(isinstance(size, int) for size in sizes):
            return None
        if self._input_dtype is np.object_:
            return np.array(["a few words"], dtype=object)
        return np.zeros((1, *sizes), self._input_dtype)

    def close(self) -> None:
        """Forget the session."""
        self._session = None

    def _classified(self, labels: AnyArray, scores: Any) -> Outputs:
        if isinstance(scores, list):  # ZipMap
            keys = list(scores[0])
            matrix = np.array([[row[key] for key in keys] for row in scores], dtype=np.float64)
            return Outputs(labels=labels, probabilities=matrix, classes=plain_strings(np.asarray(keys)))
        matrix = np.asarray(scores, dtype=np.float64)
        if matrix.ndim != 2:
            return Outputs(labels=labels)
        if self._classes is None and not _are_columns(labels, matrix.shape[1]):
            raise self._spec.error(
                f"the graph does not say what the {matrix.shape[1]} columns of its probabilities stand for, and its "
                "labels are not 0, 1, 2, ...; name them: options.classes = [...]"
            )
        if self._classes is not None and len(self._classes) != matrix.shape[1]:
            raise self._spec.error(f"options.classes names {len(self._classes)} classes, its output {matrix.shape[1]}")
        return Outputs(labels=labels, probabilities=matrix, classes=self._classes)

    def _single(self, scores: AnyArray) -> Outputs:
        if scores.dtype.kind != "f":
            one_column = scores.ndim == 2 and scores.shape[1] == 1
            return Outputs(labels=plain_strings(scores[:, 0] if one_column else scores))
        if self._meaning is None and scores.ndim == 2 and scores.shape[1] > 1:
            raise self._spec.error(
                f"its output has {scores.shape[1]} columns; options.output must say what they are: "
                f"{' | '.join(MEANINGS)}"
            )
        return outputs_from_scores(scores, self._meaning or "value", self._classes, self._spec)


def _are_columns(labels: AnyArray, n_columns: int) -> bool:
    """Whether labels can be numbers of columns."""
    if labels.dtype.kind not in "iu":
        return False
    numbers = labels.astype(np.int64)
    return bool(((numbers >= 0) & (numbers < n_columns)).all())
