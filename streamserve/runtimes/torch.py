"""Runtime `torch`: a PyTorch module, from an import path or from a state dict and `options.module`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.frameworks import is_instance_of, require
from streamserve.runtimes.metrics import collect_metrics, with_metrics
from streamserve.runtimes.options import Options
from streamserve.runtimes.scores import MEANINGS, class_array, outputs_from_scores


class TorchRuntime:
    """Calls a module in `inference_mode` and evaluation mode.

    Options: `output` (needed: "logits", "probabilities" or "value"), `classes` (what the columns stand for), `device`
    ("cpu", "cuda", "cuda:1", "mps"), `dtype` (of the input, e.g. "float32", "int64"; unset: that of the module's
    weights; a floating one also converts the weights), `threads` (1).
    """

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        self._torch = torch = require("torch", spec)
        options = Options(spec)
        meaning = options.text("output", allowed=MEANINGS)
        self._classes = class_array(options.values("classes"))
        self._threads = options.integer("threads", default=1)
        device, dtype_name = options.text("device"), options.text("dtype")
        options.finish()
        if meaning is None:
            raise spec.error(f"options.output must say what the module answers: {' | '.join(MEANINGS)}")
        self._meaning = meaning
        self._spec = spec
        self._thread = threading.local()
        dtype = _dtype(torch, dtype_name, spec)
        module = obj.to(dtype=dtype) if dtype is not None and dtype.is_floating_point else obj
        try:
            self._device = torch.device(device or "cpu")
            self._module = module.to(device=self._device).eval()
        except (AssertionError, RuntimeError) as unusable:  # torch without CUDA asserts
            raise spec.error(f"options.device = {device!r} cannot be used here: {unusable}") from unusable
        weights = next(iter(self._module.parameters()), None)
        self._dtype = dtype or (weights.dtype if weights is not None else torch.float32)

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """An instance of `torch.nn.Module`."""
        return is_instance_of(obj, "torch.nn", "Module")

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch `[n, ...]` of numbers. Raises what the module raises; `ModelError` for texts."""
        if batch.dtype.kind not in "biuf":
            raise self._spec.error(f"a torch module takes numbers, not {batch.dtype}")
        torch = self._torch
        if not getattr(self._thread, "limited", False):
            torch.set_num_threads(self._threads)  # holds for the calling thread
            self._thread.limited = True
        # torch would warn at a read-only array, and shares memory with a writable one
        rows = batch if batch.flags.writeable else batch.copy()
        with collect_metrics() as reported, torch.inference_mode():
            answer = self._module(torch.as_tensor(rows).to(device=self._device, dtype=self._dtype))
            scores: AnyArray = _tensor(answer, self._spec).to(device="cpu", dtype=_numpy_dtype(torch, answer)).numpy()
        return with_metrics(outputs_from_scores(np.asarray(scores), self._meaning, self._classes, self._spec), reported)

    def close(self) -> None:
        """Forget the module, so that a device's memory is free again."""
        self._module = None


def _dtype(torch: Any, name: str | None, spec: ModelSpec) -> Any:
    dtype = None if name is None else getattr(torch, name, None)
    if name is not None and not isinstance(dtype, torch.dtype):
        raise spec.error(f'options.dtype = {name!r}: not a type of torch; for example "float32", "int64"')
    return dtype


def _tensor(answer: Any, spec: ModelSpec) -> Any:
    if not is_instance_of(answer, "torch", "Tensor"):
        raise spec.error(f"its module answers {type(answer).__name__}, not one tensor")
    return answer


def _numpy_dtype(torch: Any, answer: Any) -> Any:
    """Numpy has no bfloat16."""
    return torch.float32 if answer.dtype == torch.bfloat16 else answer.dtype
