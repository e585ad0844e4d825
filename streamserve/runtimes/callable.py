"""Runtime `callable`: any Python function, or object with `__call__` or `predict`, that takes a batch."""

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

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        Options(spec).finish()
        self._predict: Callable[[AnyArray], object] = obj if callable(obj) else obj.predict
        self._owner = getattr(self._predict, "__self__", None)
        self._spec = spec
        _check_signature(self._predict, spec)

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """What can be called or has a `predict`, but a class: calling that makes an object, not a prediction."""
        return not isinstance(obj, type) and (callable(obj) or callable(getattr(obj, "predict", None)))

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch. Raises what the callable raises, `ModelError` where its answer has no known form."""
        view = batch.view()
        view.flags.writeable = False
        with collect_metrics() as reported:
            outputs = as_outputs(self._predict(view), self._spec)
        return with_metrics(outputs, reported)

    def sample(self) -> AnyArray | None:
        """The callable's own `sample()`, or its owner's, where there is one; else None."""
        sample = self._own("sample")
        row = sample() if callable(sample) else None
        if isinstance(row, list | tuple):
            return _row(row, self._spec)
        return None if row is None else np.asarray(row)

    def close(self) -> None:
        """Call the callable's own `close`, or its owner's, where there is one."""
        close = self._own("close")
        if callable(close):
            close()

    def _own(self, name: str) -> object:
        found = getattr(self._predict, name, None)
        return getattr(self._owner, name, None) if found is None else found


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
