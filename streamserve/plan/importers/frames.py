"""Data frames on the way to an estimator that chooses its columns by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from streamserve.plan.importers.context import class_name


def for_original(estimator: Any, rows: Any) -> Any:
    """Rows in the form that a fitted estimator itself takes: a frame where it chooses columns by name.

    Columns of an array of objects stay objects. Were their types inferred from the batch, a batch of one row would have
    other types: scikit-learn's encoders raise TypeError for a column of numbers where they know strings, and pandas
    makes NaN of None in a column of strings.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not isinstance(rows, np.ndarray):
        return rows
    if not any(class_name(part) == "ColumnTransformer" for part in (estimator, *estimator.get_params().values())):
        return rows
    import pandas  # noqa: PLC0415  (an estimator with names was fitted on a frame, so it is there)

    if rows.dtype != object:
        return pandas.DataFrame(rows, columns=names)
    return pandas.DataFrame({name: pandas.Series(rows[:, i], dtype=object) for i, name in enumerate(names)})


@cache
def _libraries() -> ThreadpoolController:
    """Of numeric libraries, those loaded when first asked: scikit-learn's are. Finding them takes milliseconds."""
    return ThreadpoolController()


def one_thread() -> contextlib.AbstractContextManager[object]:
    """Numeric libraries on one thread, as they serve. On a loaded machine OpenMP's threads wait for each other, busily:
    a call of histogram-based boosting for one row took 30 ms instead of 0.3 ms there."""
    found: contextlib.AbstractContextManager[object] = _libraries().limit(limits=1)
    return found


@contextlib.contextmanager
def one_job(estimator: Any) -> Iterator[None]:
    """Estimators with several jobs add the trees' answers in the order in which threads end; with one, in order."""
    params = estimator.get_params() if hasattr(estimator, "get_params") else {}
    several = {name: value for name, value in params.items() if name.split("__")[-1] == "n_jobs" and value is not None}
    if several:
        estimator.set_params(**dict.fromkeys(several))
    try:
        yield
    finally:
        if several:
            estimator.set_params(**several)
