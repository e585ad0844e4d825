"""Operators that fit no family: the input, blocks side by side, a factor, and the black box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.errors import PlanError
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import RowsRefused, operator


@operator("source", shape="same")
def source(node: Node, inputs: Sequence[Any]) -> Any:
    """The rows themselves: a list of strings, or an array `[n, columns]`. Raises `RowsRefused` for rows of no text."""
    if node.param("kind") == "text":
        return documents(inputs[0])
    return _table(inputs[0], int(node.param("columns")))


def documents(rows: Any) -> list[str]:
    """Strings as a list. Raises `RowsRefused` for rows of anything else."""
    found = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
    if not set(map(type, found)) <= {str}:
        wrong = np.array([not isinstance(document, str) for document in found])
        if wrong.any():
            kind = type(found[int(wrong.argmax())]).__name__
            raise RowsRefused(wrong, f"a text is needed, this is {kind}")
    return found


def _table(rows: Any, columns: int) -> AnyArray:
    table: AnyArray = np.asarray(rows)
    if table.ndim != 2 or (columns and table.shape[1] != columns):
        raise PlanError(f"a batch of shape {table.shape}: [rows, {columns}] is needed")
    return table


@operator("concat", shape="same")
def concat(node: Node, inputs: Sequence[Any]) -> Any:
    """Blocks side by side. `keeps` says which matrix comes out: `any` (CSR where a block is), `sparse` or `dense`."""
    keeps = node.param("keeps")
    are_sparse = [sparse.issparse(block) for block in inputs]
    if keeps == "sparse" or (keeps == "any" and any(are_sparse)):
        return sparse.hstack(inputs).tocsr()
    if any(are_sparse):
        inputs = [block.toarray() if sparse.issparse(block) else block for block in inputs]
    return np.concatenate(inputs, axis=1)


@operator("factor", shape="same")
def factor(node: Node, inputs: Sequence[Any]) -> Any:
    """Times one number."""
    return inputs[0] * node.param("by")


@operator("opaque", shape="same", each_row_alone=False)
def opaque(node: Node, inputs: Sequence[Any]) -> Any:
    """A black box: the original object's own method."""
    return getattr(node.opaque, node.param("method"))(inputs[0])
