"""Runtime `callable`: any Python function (or object with `__call__`) that takes a batch and answers it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.ragged import why_no_array
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.conversion import as_outputs
from streamserve.runtimes.metrics import collect_metrics, with_metrics
from streamserve.runtimes.options import Options


class CallableRuntime:
    """Calls `predict(batch)` with the batch as a read-only array `[n, ...]`; see `as_outputs` for what it answers.

    Read-only, since the same array may go to other models. Has no options of its own.
    """

    def __init__(self, obj: Callable[[AnyArray], object], spec: ModelSpec) -> None:
        Options(spec).finish()
        _check_signature(obj, spec)
        self._predict = obj
        self._spec = spec

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """Anything that can be called, but a class: calling that makes an object, not a prediction."""
        return callable(obj) and not isinstance(obj, type)

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch. Raises what the callable raises, `ModelError` where its answer has no known form."""
        view = batch.view()
        view.flags.writeable = False
        with collect_metrics() as reported:
            outputs = as_outputs(self._predict(view), self._spec)
        return with_metrics(outputs, reported)

    def sample(self) -> AnyArray | None:
        """The callable's own `sample()`, or its owner's, where there is one; else None."""
        owner = getattr(self._predict, "__self__", None)
        sample = getattr(self._predict, "sample", None)
        if sample is None:
            sample = getattr(owner, "sample", None)
        row = sample() if callable(sample) else None
        if isinstance(row, list | tuple):
            return _row(row, self._spec)
        return None if row is None else np.asarray(row)

    def close(self) -> None:
        """Call the callable's own `close`, where it has one."""
        close = getattr(self._predict, "close", None)
        if callable(close):
            close()


def _row(row: Sequence[Any], spec: ModelSpec) -> AnyArray:
    try:
        return np.asarray(row)
    except ValueError:
        raise spec.error(f"its sample is no array: {why_no_array(row)}") from None


def _check_signature(obj: Callable[[AnyArray], object], spec: ModelSpec) -> None:
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):  # some callables of C extensions have none
        return
    try:
        signature.bind(object())
    except TypeError:
        hint = "" if signature.parameters else f'; to call it as a factory write source = "{spec.source}()"'
        raise spec.error(
            f"{spec.source} takes {signature}, but a model is called with one argument, the batch{hint}"
        ) from None
