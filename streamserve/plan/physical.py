"""A graph laid out to run: one physical stage a node, chosen among its variants by batch size.

A stage is a function from values to a value. The physical form of an operator is its meaning
(`operators.OPERATORS`) or, for those with kernels, one of several ways to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Graph, Node
from streamserve.plan.kernels import dense, forest, heads, histograms
from streamserve.plan.kernels.memory import addresses
from streamserve.plan.kernels.scratch import empty_row
from streamserve.plan.materialised import SubResults, materialising
from streamserve.plan.operators import OPERATORS, RowsRefused
from streamserve.plan.operators.chains import chain, codes_of, members_of
from streamserve.plan.operators.columns import singles, words_of_refusal
from streamserve.plan.operators.fused import stage_of
from streamserve.plan.operators.heads import chained_heads
from streamserve.plan.operators.linear import add_dot, zero_scores
from streamserve.plan.stage_times import StageTimes

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run an operator."""

    name: str
    make: Callable[[Node], Run]


def _as_defined(node: Node) -> Run:
    evaluate = OPERATORS[node.op].evaluate
    return lambda *inputs: evaluate(node, inputs)


def _fused_score(node: Node) -> Run:
    stage, weights = stage_of(node), node.array("weights")

    def run(texts: Any, so_far: Any = None) -> Any:
        # Nobody else reads it (`_on_a_copy`); it is a column among others where heads were merged before but not here.
        scores = zero_scores(len(texts), weights) if so_far is None else np.ascontiguousarray(so_far)
        stage.add_scores(texts, scores)
        return scores

    return run


def _matrix_then_dot(node: Node) -> Run:
    """The sparse matrix first, then scipy's product."""
    stage, weights = stage_of(node), node.array("weights")

    def run(texts: Any, so_far: Any = None) -> Any:
        matrix = stage.matrix(texts)
        if so_far is None:
            return (matrix.astype(np.float32) if weights.dtype == np.float32 else matrix) @ weights
        add_dot(matrix, weights, so_far)
        return so_far

    return run


class _Forest:
    """The forest kernel over a node's arrays, which it keeps, since the kernel knows their addresses only."""

    def __init__(self, node: Node, *, by_tree: bool) -> None:
        self._arrays = [node.array(name) for name in ("nodes", "leaves", "roots", "heads")]
        self._kept, self._width = addresses(*self._arrays), node.array("leaves").shape[1]
        self._start, self._divide_by = node.array("start"), node.param("divide_by")
        self._by_tree = by_tree

    def __call__(self, table: Any) -> Any:
        sums = np.empty((table.shape[0], len(self._start)))
        sums[:] = self._start
        if sparse.issparse(table):
            ends, indices = (part.astype(np.int32, copy=False) for part in (table.indptr, table.indices))
            forest.add_sparse(
                self._kept, self._width, ends, indices, table.data, empty_row(table.shape[1])[None, :], sums
            )
        else:
            forest.add_dense(self._kept, self._width, table, self._by_tree, sums)
        if self._divide_by != 1:
            sums /= self._divide_by
        return sums


def _row_by_row(node: Node) -> Run:
    return _Forest(node, by_tree=False)


def _tree_by_tree(node: Node) -> Run:
    return _Forest(node, by_tree=True)


class _Boosted:
    """The kernel of histogram-based boosting over a node's arrays, which it keeps."""

    def __init__(self, node: Node, *, by_tree: bool) -> None:
        self._arrays = [node.array(name) for name in ("nodes", "leaves", "roots", "sets", "known")]
        self._kept, self._start, self._by_tree = addresses(*self._arrays), node.array("start"), by_tree

    def __call__(self, table: Any) -> Any:
        sums = np.empty((len(table), len(self._start)))
        sums[:] = self._start
        histograms.add_boosted(self._kept, np.ascontiguousarray(table), self._by_tree, sums)
        return np.asfortranarray(sums)


def _boosted_rows(node: Node) -> Run:
    return _Boosted(node, by_tree=False)


def _boosted_trees(node: Node) -> Run:
    return _Boosted(node, by_tree=True)


class _Chain:
    """The chain kernel over a node's operands, which it keeps."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._codes, self._operands = codes_of(node)
        self._kept = addresses(self._operands)

    def __call__(self, values: Any) -> Any:
        if values.dtype != np.float64:
            return chain(self._node, [values])
        table = np.ascontiguousarray(values)
        out, refused = np.empty_like(table), np.empty(len(table), dtype=bool)
        if dense.run_chain(self._codes, self._kept, table, out, refused):
            raise RowsRefused(refused, "a value is infinite, or NaN where none is allowed")
        return out


class _Singles:
    """The kernel that makes numbers narrow."""

    def __init__(self, node: Node) -> None:
        self._node, self._allow_nan = node, bool(node.param("allow_nan"))

    def __call__(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray) or values.dtype != np.float64:
            return singles(self._node, [values])
        out, refused = np.empty(values.shape, dtype=np.float32), np.empty(len(values), dtype=bool)
        if dense.narrow(self._allow_nan, np.ascontiguousarray(values), out, refused):
            raise RowsRefused(refused, words_of_refusal(allow_nan=self._allow_nan))
        return out


class _Heads:
    """The kernel of many linear heads over a node's operands, which it keeps."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._codes = codes_of(members_of(node)[0])[0]
        self._arrays = [np.ascontiguousarray(node.array(name)) for name in ("operands", "weights")]
        self._kept, self._intercept = addresses(*self._arrays), node.array("intercept")

    def __call__(self, values: Any) -> Any:
        if values.dtype != np.float64:
            return chained_heads(self._node, [values])
        scores, refused = np.empty((len(values), len(self._intercept))), np.empty(len(values), dtype=bool)
        if heads.run_heads(self._codes, self._kept, np.ascontiguousarray(values), scores, refused):
            raise RowsRefused(refused, "a value is infinite, or NaN where none is allowed")
        scores += self._intercept
        return scores


#: Operators with more than one way; the first is taken until costs are measured.
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "score": (
        Variant(name="fused", make=_fused_score),
        Variant(name="matrix-then-dot", make=_matrix_then_dot),
    ),
    "forest": (
        Variant(name="row-by-row", make=_row_by_row),
        Variant(name="tree-by-tree", make=_tree_by_tree),
    ),
    "boosted": (
        Variant(name="row-by-row", make=_boosted_rows),
        Variant(name="tree-by-tree", make=_boosted_trees),
    ),
    "chained_heads": (Variant(name="one-pass", make=_Heads), Variant(name="as-defined", make=_as_defined)),
    "chain": (Variant(name="one-pass", make=_Chain), Variant(name="as-defined", make=_as_defined)),
    "singles": (Variant(name="one-pass", make=_Singles), Variant(name="as-defined", make=_as_defined)),
}
_ONLY = (Variant(name="as-defined", make=_as_defined),)
#: A variant is chosen for batches up to each of these many rows, and for larger ones.
SIZES = (1, 10, 1000)


def variants_of(node: Node) -> tuple[Variant, ...]:
    """The ways to run a node."""
    return VARIANTS.get(node.op, _ONLY)


@dataclass(slots=True, kw_only=True)
class Answers:
    """What a plan says of a batch of n rows."""

    values: Mapping[str, AnyArray]
    """Output -> `[n, ...]`; rows that were refused hold another row's value, or zeros where there is none."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Row -> why it cannot be answered."""


class Layout:
    """The stages of a graph, ready to run. Any number of threads may run it at once."""

    def __init__(self, graph: Graph, choice: Mapping[int, Sequence[str]] | None = None) -> None:
        """`choice`: node -> a variant's name for each of `SIZES`; what is left out takes its first variant."""
        self.graph = graph
        self.choice: dict[int, tuple[str, ...]] = {}
        made: dict[tuple[int, str], Run] = {}
        self._runs: list[tuple[Run, ...]] = []
        self._plain: list[tuple[Run, ...]] = []
        """Before anything was materialised, and without the copies."""
        self._shared = shared = _adds_to_what_others_read(graph)
        for i, node in enumerate(graph.nodes):
            variants = {variant.name: variant for variant in variants_of(node)}
            names = tuple((choice or {}).get(i, ())) or (next(iter(variants)),) * len(SIZES)
            self.choice[i] = names
            for name in names:
                if (i, name) not in made:
                    made[i, name] = variants[name].make(node)
            self._plain.append(tuple(made[i, name] for name in names))
            self._runs.append(tuple(_on_a_copy(run) if i in shared else run for run in self._plain[-1]))
        self._needed: dict[tuple[str, ...], list[int]] = {}
        self.times: StageTimes | None = None
        """Where the times of some calls are counted."""

    def materialise(self, cache: SubResults, shared: frozenset[str]) -> None:
        """From now on the features of those text stages go through a cache: `materialised.shared_keys`."""

        for i, runs in materialising(self.graph, cache, shared, self._plain).items():
            self._runs[i] = tuple(_on_a_copy(run) if i in self._shared else run for run in runs)

    def steps(self, outputs: tuple[str, ...]) -> list[int]:
        """The nodes that these outputs need, in order."""
        if outputs not in self._needed:
            self._needed[outputs] = self.graph.needed(outputs)
        return self._needed[outputs]

    def run(self, rows: Any, outputs: tuple[str, ...]) -> Answers:
        """Answer a batch. Rows that an operator refuses are left out and reported."""
        nodes = self.graph.outputs
        try:
            values = self.values(rows, outputs)
        except RowsRefused as refusal:
            return self._without_refused(rows, outputs, refusal)
        return Answers(values={name: values[nodes[name]] for name in outputs})

    def _without_refused(self, rows: Any, outputs: tuple[str, ...], refusal: RowsRefused) -> Answers:
        refused: dict[int, str] = {}
        places = np.arange(len(rows))
        while True:
            refused |= {int(places[i]): refusal.words for i in np.flatnonzero(refusal.rows)}
            places = places[~refusal.rows]
            try:
                values = self.values(taken(rows, places.tolist()), outputs)
            except RowsRefused as another:
                refusal = another
                continue
            nodes = self.graph.outputs
            found = {name: _spread(values[nodes[name]], places, len(rows)) for name in outputs}
            return Answers(values=found, refused=refused)

    def values(self, rows: Any, outputs: tuple[str, ...]) -> list[Any]:
        """The value of every node that the outputs need; None for the others. Raises `RowsRefused`."""
        if self.times is not None and self.times.due():
            return self._timed(rows, outputs, self.times)
        values: list[Any] = [None] * len(self.graph.nodes)
        size = _size_of(len(rows))
        nodes = self.graph.nodes
        for i in self.steps(outputs):
            inputs = nodes[i].inputs
            run = self._runs[i][size]
            if len(inputs) == 1:
                values[i] = run(values[inputs[0]])
            elif inputs:
                values[i] = run(*[values[source] for source in inputs])
            else:
                values[i] = run(rows)
        return values

    def _timed(self, rows: Any, outputs: tuple[str, ...], times: StageTimes) -> list[Any]:
        values: list[Any] = [None] * len(self.graph.nodes)
        size, spent = _size_of(len(rows)), []
        for i in self.steps(outputs):
            node = self.graph.nodes[i]
            inputs = [values[source] for source in node.inputs] or [rows]
            started_s = time.perf_counter()
            values[i] = self._runs[i][size](*inputs)
            spent.append((node.op, time.perf_counter() - started_s))
        times.add(spent)
        return values

    def seconds(self, rows: Any, outputs: tuple[str, ...]) -> dict[int, float]:
        """Time of each stage on a batch that is refused nowhere."""
        values: list[Any] = [None] * len(self.graph.nodes)
        size, spent = _size_of(len(rows)), {}
        for i in self.steps(outputs):
            inputs = [values[source] for source in self.graph.nodes[i].inputs] or [rows]
            if self.graph.nodes[i].op == "score":
                inputs = [inputs[0], *(np.array(scores) for scores in inputs[1:])]  # it adds in place
            started_s = time.perf_counter()
            values[i] = self._runs[i][size](*inputs)
            spent[i] = time.perf_counter() - started_s
        return spent


def _adds_to_what_others_read(graph: Graph) -> set[int]:
    """Stages that add in place to scores which another stage, or the caller, reads too."""
    readers, answers = graph.readers(), set(graph.outputs.values())
    return {
        i
        for i, node in enumerate(graph.nodes)
        if node.op == "score"
        and len(node.inputs) > 1
        and (len(readers[node.inputs[1]]) > 1 or node.inputs[1] in answers)
    }


def _on_a_copy(run: Run) -> Run:
    return lambda texts, so_far: run(texts, np.array(so_far))


def _size_of(rows: int) -> int:
    return 0 if rows <= SIZES[0] else 1 if rows <= SIZES[1] else 2


def taken(rows: Any, places: Sequence[int]) -> Any:
    """Some rows of a batch."""
    return rows[np.asarray(places, dtype=np.intp)] if isinstance(rows, np.ndarray) else [rows[i] for i in places]


def _spread(value: AnyArray, places: AnyArray, rows: int) -> AnyArray:
    """Accepted rows' values at their places; the first of them everywhere else."""
    whole = np.zeros((rows, *value.shape[1:]), dtype=value.dtype)
    if len(value):
        whole[:] = value[0]
        whole[places] = value
    return whole
