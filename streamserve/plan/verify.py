"""Is a plan its original? Compared row by row, alone and in a batch; where it is not, the first operator to differ.

The contract: where every operator treats its rows one by one (text with linear heads, trees) all bits are equal. Dense
products go through BLAS, whose own results depend on the batch size: there at most 1e-12 of the larger of the value and
1. Labels are equal always. A row that the original refuses, the plan refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray, Flags
from streamserve.errors import PlanDiffers
from streamserve.plan.compile import Plan
from streamserve.plan.graph import Graph
from streamserve.plan.importers.frames import for_original, one_job, one_thread
from streamserve.plan.operators import RowsRefused, evaluate_nodes
from streamserve.plan.physical import taken
from streamserve.plan.sampling import sample_rows

TOLERANCE = 1e-12
#: Rows that are also asked for alone.
_ALONE = 40
#: Characters of the original's own words in a difference.
_MOST_WORDS = 120
#: Operators whose results BLAS or the order of a vector sum decides.
_DENSE = frozenset({"chained_heads", "distances", "gaussian", "layer", "linear", "neighbours", "opaque", "row_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference that was found."""

    row: int
    output: str
    operator: str
    original: str
    plan: str

    def words(self) -> str:
        """For an error message."""
        return (
            f"row {self.row}, {self.output}: the original says {self.original}, the plan {self.plan}; "
            f"first differing operator: {self.operator}"
        )


def is_exact(graph: Graph) -> bool:
    """Whether the contract is bits, not 1e-12."""
    return not any(node.op in _DENSE for node in graph.nodes)


def verify(plan: Plan, estimator: Any, rows: Sequence[Any] | AnyArray | None = None) -> int:
    """Compare on these rows, or on generated ones. -> how many. Raises `PlanDiffers`."""
    if rows is None:
        rows = sample_rows(plan.imported or plan.graph)
    found = compare(plan, estimator, rows)
    if found is not None:
        raise PlanDiffers(f"{found.words()}. The plan is refused; please report this estimator")
    return len(rows)


def compare(plan: Plan, estimator: Any, rows: Sequence[Any] | AnyArray) -> Difference | None:
    """The first difference between a plan and its original on these rows: all at once, then some alone."""
    with one_thread():
        found = _compare_batch(plan, estimator, rows, 0)
        for i in range(min(len(rows), _ALONE)):
            if found is not None:
                break
            found = _compare_batch(plan, estimator, rows[i : i + 1], i)
    return found


def _compare_batch(plan: Plan, estimator: Any, rows: Any, first: int) -> Difference | None:
    expected = _asked(estimator, rows, plan.outputs)
    if isinstance(expected, Exception):
        return _refusals(plan, estimator, rows, first, expected)
    answers = plan.run(rows, plan.outputs)
    for row, words in sorted(answers.refused.items()):
        return Difference(
            row=first + row, output="predict", operator="its input", original=_word(expected["predict"][row]),
            plan=f"refuses: {words}",
        )  # fmt: skip
    exact = is_exact(plan.graph)
    for output in plan.outputs:
        wrong = differing_rows(expected[output], answers.values[output], exact=exact)
        if wrong.any():
            row = int(wrong.argmax())
            return Difference(
                row=first + row,
                output=output,
                operator=first_differing(plan, rows, estimator),
                original=_word(expected[output][row]),
                plan=_word(answers.values[output][row]),
            )
    return None


def _refusals(plan: Plan, estimator: Any, rows: Any, first: int, whole: Exception) -> Difference | None:
    """The original failed on the batch: it must answer the rows that the plan answers, and refuse the others."""
    answers = plan.run(rows, plan.outputs)
    kept = [row for row in range(len(rows)) if row not in answers.refused]
    for row in sorted(answers.refused):
        if not isinstance(_asked(estimator, rows[row : row + 1], plan.outputs), Exception):
            said = f"refuses: {answers.refused[row]}"
            return Difference(row=first + row, output="predict", operator="its input", original="answers", plan=said)
    found = _refused_by_original(estimator, rows, kept, plan.outputs)
    if found is not None:
        row, why = found
        said = f"refuses: {' '.join(str(why or whole).split())[:_MOST_WORDS]}"
        return Difference(row=first + row, output="predict", operator="its input", original=said, plan="answers")
    if not kept or len(kept) == len(rows):
        return None
    part = _compare_batch(plan, estimator, taken(rows, kept), 0)
    return None if part is None else replace(part, row=first + kept[part.row])


def _refused_by_original(
    estimator: Any, rows: Any, kept: list[int], outputs: Sequence[str]
) -> tuple[int, Exception] | None:
    """A row that the original refuses alone, found by halving."""
    while kept:
        answer = _asked(estimator, taken(rows, kept), outputs)
        if not isinstance(answer, Exception):
            return None
        if len(kept) == 1:
            return kept[0], answer
        half = len(kept) // 2
        fails = isinstance(_asked(estimator, taken(rows, kept[:half]), outputs), Exception)
        kept = kept[:half] if fails else kept[half:]
    return None


def _asked(estimator: Any, rows: Any, outputs: Sequence[str]) -> Mapping[str, AnyArray] | Exception:
    """What the original answers; the exception that it raises for rows it cannot take."""
    with warnings.catch_warnings(), one_job(estimator):
        warnings.simplefilter("ignore")
        try:
            given = for_original(estimator, rows)
            return {output: np.asarray(getattr(estimator, output)(given)) for output in outputs}
        except (ValueError, TypeError, AttributeError) as refusal:
            return refusal


def differing_rows(expected: Any, found: Any, *, exact: bool) -> Flags:
    """`[n]`: rows in which two answers differ by more than the contract allows."""
    if expected.shape != found.shape:
        return np.ones(max(len(expected), 1), dtype=bool)
    same: Any = expected == found
    if expected.dtype.kind == "f":
        same = same | (np.isnan(expected) & np.isnan(found))
        if not exact:
            size = np.maximum(np.maximum(np.abs(expected), np.abs(found)), 1.0)
            with np.errstate(invalid="ignore"):
                same = same | (np.abs(expected - found) <= TOLERANCE * size)
    return np.asarray(~np.asarray(same, dtype=bool).reshape(len(expected), -1).all(axis=1), dtype=bool)


def first_differing(plan: Plan, rows: Any, estimator: Any) -> str:
    """Where a difference comes in: a step of the import, a rule, or a stage."""
    names = plan.outputs
    if plan.imported is None:
        return "unknown: compiled elsewhere"
    try:
        return _first_differing(plan, rows, estimator, names)
    except RowsRefused:
        return "its input"


def _first_differing(plan: Plan, rows: Any, estimator: Any, names: tuple[str, ...]) -> str:
    assert plan.imported is not None
    before = {name: evaluate_nodes(plan.imported, rows, names)[plan.imported.outputs[name]] for name in names}
    expected = _asked(estimator, rows, names)
    if isinstance(expected, Exception) or not _same(before, expected):
        return _differing_step(plan.imported, rows, estimator)
    for fired in plan.fired:
        values = evaluate_nodes(fired.graph, rows, names)
        if not _same({name: values[fired.graph.outputs[name]] for name in names}, before):
            return f"rule {fired.rule.name}"
    meant = evaluate_nodes(plan.graph, rows, names)
    done = plan.layout.values(rows, names)
    for i in plan.layout.steps(names):
        if isinstance(meant[i], np.ndarray) and differing_rows(np.asarray(done[i]), meant[i], exact=True).any():
            return f"{plan.graph.nodes[i].op} ({plan.graph.nodes[i].origin})"
    return "unknown"


def _same(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return not any(differing_rows(np.asarray(some[name]), np.asarray(others[name]), exact=True).any() for name in some)


def _differing_step(graph: Graph, rows: Any, estimator: Any) -> str:
    """The first step of a pipeline whose own output differs from the node that ends it."""
    values = evaluate_nodes(graph, rows, graph.outputs)
    part = for_original(estimator, rows)
    for name, step in getattr(estimator, "steps", ())[:-1]:
        if step in {None, "passthrough"}:
            continue
        part = step.transform(part)
        ends = [i for i, node in enumerate(graph.nodes) if node.origin == name and i in values]
        if ends and differing_rows(_dense(part), _dense(values[ends[-1]]), exact=True).any():
            return f"{graph.nodes[ends[-1]].op} ({name})"
    last = graph.nodes[graph.outputs["predict"]]
    return f"{last.op} ({last.origin or type(estimator).__name__})"


def _dense(matrix: Any) -> AnyArray:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def _word(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=17, threshold=12) if np.ndim(value) else repr(value)
