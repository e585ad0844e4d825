"""From a fitted estimator to a plan that answers as it does, or to a refusal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.errors import PlanError
from streamserve.plan.graph import Graph
from streamserve.plan.operators.linear import classes_of
from streamserve.plan.physical import Answers, Layout
from streamserve.plan.rules import Fired, rewrite

if TYPE_CHECKING:
    from streamserve.plan.precision import Error


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A compiled model. Threads may share it."""

    graph: Graph
    layout: Layout
    fired: tuple[Fired, ...] = ()
    """What the rules did, where it was compiled in this process."""
    imported: Graph | None = None
    """The graph before the rules, where it was compiled in this process."""
    black_boxes: Mapping[str, str] = field(default_factory=dict)
    """Origin -> why it was not opened."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the libraries it was made with."""
    rules: tuple[str, ...] = ()
    """Names of the rules that fired, where it was packed."""
    error: Error | None = None
    """What its heads in float32 are off by; None where they are float64."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What it can be asked for, of `predict`, `predict_proba` and `decision_function`."""
        return tuple(sorted(self.graph.outputs))

    @property
    def classes(self) -> AnyArray | None:
        """What the columns of `predict_proba` stand for, `[classes]`; None for a regressor or a black box."""
        node = self.graph.nodes[self.graph.outputs["predict"]]
        if node.op == "opaque":
            return getattr(node.opaque, "classes_", None)
        return classes_of(node) if "classes" in node.params or "classes" in node.constants else None

    @property
    def digest(self) -> str:
        """The content hash: equal plans have equal ones."""
        return self.graph.digest

    def run(self, rows: Any, outputs: Sequence[str] = ("predict",)) -> Answers:
        """Answer a batch, several outputs in one pass. Raises `PlanError` for an output that it has not."""
        missing = [name for name in outputs if name not in self.graph.outputs]
        if missing:
            raise PlanError(f"this plan has no {', '.join(missing)}; it has {', '.join(self.outputs)}")
        return self.layout.run(_in_order(rows, self.graph), tuple(outputs))

    def predict(self, rows: Any) -> AnyArray:
        """Labels or values, `[n]`. Raises `PlanError` where a row is refused."""
        return self._one(rows, "predict")

    def predict_proba(self, rows: Any) -> AnyArray:
        """Probabilities, `[n, classes]`. Raises `PlanError` where a row is refused."""
        return self._one(rows, "predict_proba")

    def decision_function(self, rows: Any) -> AnyArray:
        """Scores, `[n]` or `[n, classes]`. Raises `PlanError` where a row is refused."""
        return self._one(rows, "decision_function")

    def _one(self, rows: Any, output: str) -> AnyArray:
        answers = self.run(rows, (output,))
        if answers.refused:
            row, words = next(iter(sorted(answers.refused.items())))
            raise PlanError(f"row {row}: {words}")
        return answers.values[output]


def _in_order(rows: Any, graph: Graph) -> Any:
    """A frame's columns by name, as an array; anything else as it is. A column that nothing reads may be missing."""
    form = graph.form
    if sparse.issparse(rows):
        raise PlanError("a dense array is needed, this is a sparse matrix; give its toarray()")
    if form.kind == "text" or not hasattr(rows, "columns") or not hasattr(rows, "to_numpy"):
        return rows
    if not form.names:
        raise PlanError("this model was fitted on columns without names; give an array, not a frame")
    missing = [name for name in form.names if name not in rows.columns]
    needed = [name for name in missing if form.names.index(name) in _columns_read(graph)]
    if needed:
        raise PlanError(f"no column {', '.join(needed)} in the frame; it has {', '.join(map(str, rows.columns))}")
    if missing:
        rows = rows.assign(**dict.fromkeys(missing, np.nan))
    return rows[list(form.names)].to_numpy()


def _columns_read(graph: Graph) -> set[int]:
    """Places of the columns that some operator reads."""
    read: set[int] = set()
    for node in graph.nodes:
        if node.inputs and graph.nodes[node.inputs[0]].op == "source":
            read |= set(node.array("places").tolist()) if node.op == "columns" else set(range(graph.form.columns))
    return read


def laid_out(imported: Graph, *, disabled: Collection[str] = (), **about: Any) -> Plan:
    """The plan of a graph: rewritten by the rules, laid out as stages. `about`: further fields of `Plan`."""
    fired = rewrite(imported, disabled)
    graph = fired[-1].graph if fired else imported
    about.setdefault("black_boxes", {node.origin: node.param("why") for node in graph.nodes if node.op == "opaque"})
    return Plan(graph=graph, layout=Layout(graph), fired=fired, imported=imported, **about)


def compile_plan(
    estimator: Any,
    *,
    rows: Sequence[Any] | AnyArray | None = None,
    disabled: Collection[str] = (),
    allow_untested: bool = False,
) -> Plan:
    """Compile a fitted estimator, and compare the plan with it on sample rows (None: generated ones).

    Raises `ImportRefused` where no plan can be made, `PlanDiffers` where it would answer otherwise.
    """
    from streamserve.plan.importers import import_fitted  # noqa: PLC0415  (scikit-learn is needed here only)
    from streamserve.plan.verify import verify  # noqa: PLC0415  (as above)

    imported = import_fitted(estimator, allow_untested=allow_untested)
    plan = laid_out(
        imported.graph,
        disabled=disabled,
        black_boxes=imported.black_boxes,
        versions=imported.versions,
    )
    verify(plan, estimator, rows)
    return plan
