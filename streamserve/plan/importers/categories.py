"""OneHotEncoder and OrdinalEncoder: what each category gives is worked out here, once.

Traps (source: `preprocessing/_encoders.py`): infrequent categories are grouped before any is dropped; an unknown one is
an error, nothing, or the infrequent group; `drop="first"` makes unknown and dropped the same; NaN and None are
categories of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Param
from streamserve.plan.importers.context import Importing, NotWhite, TransformerImporter
from streamserve.plan.operators.categories import NOTHING, REFUSED
from streamserve.plan.shapes import shapes_of


def _categories(importing: Importing, estimator: Any, source: int) -> tuple[Param, ...]:
    if shapes_of(importing.builder.nodes)[source] not in {"rows", "dense"}:
        raise NotWhite("it reads a sparse matrix")
    return tuple(tuple(_plain(value) for value in values.tolist()) for values in estimator.categories_)


def _plain(value: Any) -> Param:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotWhite(f"a category is {type(value).__name__}")


def _tables(rows: list[list[int]]) -> dict[str, AnyArray]:
    """One table after the other, and where each begins; the last entry of each is for unknown categories."""
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    return {"tables": np.concatenate([np.array(row, dtype=np.int64) for row in rows]), "starts": starts}


def _grouped(estimator: Any, column: int, categories: int) -> tuple[list[int], int | None]:
    """The group of each category, infrequent ones together, and the infrequent group's number."""
    if not estimator._infrequent_enabled or estimator._infrequent_indices[column] is None:
        return list(range(categories)), None
    mapping = estimator._default_to_infrequent_mappings[column].tolist()
    return mapping, mapping[int(estimator._infrequent_indices[column][0])]


def _one_hot(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    if np.dtype(estimator.dtype) != np.float64:
        raise NotWhite(f"dtype = {np.dtype(estimator.dtype)}")
    categories = _categories(importing, estimator, source)
    dropped = estimator._drop_idx_after_grouping
    rows, first = [], 0
    for column, (values, width) in enumerate(zip(categories, estimator._n_features_outs, strict=True)):
        groups, infrequent = _grouped(estimator, column, len(values) if isinstance(values, tuple) else 0)
        drop = None if dropped is None else dropped[column]
        row = [_place(group, drop, first) for group in groups]
        if estimator.handle_unknown == "error":
            row.append(REFUSED)
        elif infrequent is not None and estimator.handle_unknown in {"infrequent_if_exist", "warn"}:
            row.append(_place(infrequent, drop, first))
        else:
            row.append(NOTHING)
        rows.append(row)
        first += int(width)
    op = "one_hot" if estimator.sparse_output else "dense_one_hot"
    return importing.add(op, source, origin=origin, constants=_tables(rows), categories=categories, features=first)


def _place(group: int, drop: int | None, first: int) -> int:
    if drop is None:
        return first + group
    return NOTHING if group == drop else first + group - (group > drop)


def ordinal_codes(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    """The node of a fitted OrdinalEncoder."""
    if np.dtype(estimator.dtype) != np.float64 or estimator._infrequent_enabled:
        raise NotWhite("it gives other things than float64, or groups infrequent categories")
    categories = _categories(importing, estimator, source)
    numbers: list[float] = []
    rows = []
    for column, values in enumerate(categories):
        own = [float(i) for i in range(len(values) if isinstance(values, tuple) else 0)]
        if column in estimator._missing_indices:
            own[estimator._missing_indices[column]] = float(estimator.encoded_missing_value)
        unknown = estimator.unknown_value if estimator.handle_unknown == "use_encoded_value" else None
        row = [len(numbers) + i for i in range(len(own))]
        row.append(REFUSED if unknown is None else len(numbers) + len(own))
        numbers += [*own, np.nan if unknown is None else float(unknown)]
        rows.append(row)
    constants = {**_tables(rows), "values": np.array(numbers, dtype=np.float64)}
    width = len(categories)
    return importing.add("ordinal", source, origin=origin, constants=constants, categories=categories, features=width)


TRANSFORMERS: dict[str, TransformerImporter] = {"OneHotEncoder": _one_hot, "OrdinalEncoder": ordinal_codes}
