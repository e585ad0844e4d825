"""Runtime `plan`: white-box plans (`streamserve.plan`), and fitted estimators compiled into one at loading.

A fitted estimator (import path, `.skops`, trusted `.joblib`) is compiled only where the config says `runtime = "plan"`;
else the runtime `sklearn` takes it. It is then compared with the plan on sample rows, and refused where they differ.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamserve.core.messages import NO_HEAD, AnyArray, Outputs
from streamserve.errors import PlanError
from streamserve.runtimes.base import Lane, ModelSpec
from streamserve.runtimes.conversion import plain_strings
from streamserve.runtimes.frameworks import is_instance_of, require
from streamserve.runtimes.options import Options

if TYPE_CHECKING:
    from streamserve.plan.compile import Plan
    from streamserve.plan.materialised import SubResults
    from streamserve.plan.physical import Answers
    from streamserve.plan.stage_times import StageTimes

_log = logging.getLogger(__name__)


class PlanRuntime:
    """Answers `predict` and, where the model has it, `predict_proba`, in one pass over the plan.

    Options: `store` (of a `.plan` file: the folder of its arrays; unset: the machine's own); `probabilities` (true):
    false asks for labels only. Of an estimator, not of a `.plan`: `allow_untested` (false): compile it although the
    importers were not tested with its version of scikit-learn; `disable` (none): names of rules to leave out. Where
    the spec says `precision = "f32"`, heads are narrowed once the plan is compared; what they are off by is logged.
    """

    precisions: ClassVar[tuple[str, ...]] = ("f64", "f32")
    """Of linear heads over text that it can be asked for."""

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        options = Options(spec)
        wanted = options.boolean("probabilities", default=True)
        compiler = require("streamserve.plan.compile", spec)
        is_plan = isinstance(obj, compiler.Plan)
        allow_untested = not is_plan and options.boolean("allow_untested", default=False)
        disabled = [] if is_plan else [str(name) for name in options.values("disable") or ()]
        options.finish()
        costs = require("streamserve.plan.costs", spec)
        require("streamserve.plan.kernels", spec).warm()
        try:
            plan: Plan = (
                obj if is_plan else compiler.compile_plan(obj, disabled=disabled, allow_untested=allow_untested)
            )
            if spec.precision == "f32" and plan.error is None:
                plan, _ = require("streamserve.plan.precision", spec).narrowed(plan)
            if not is_plan:
                plan = costs.chosen(plan)
        except PlanError as refusal:
            raise type(refusal)(f"model {spec.model_id}: {spec.source}: {refusal}") from refusal
        if plan.error is not None:
            _log.info("model %s: %s", spec.model_id, plan.error.words())
        self._served = plan, NO_HEAD if spec.head_rate is None else 0
        """The plan, and rows that its head has learnt from: one reference, so that a call has both of one head."""
        self.base = "" if spec.head_rate is None else plan.digest
        """Of a plan whose head learns while it serves: the one that was loaded."""
        self.store = spec.head_store
        """Where its heads are; None: the machine's own."""
        self._spec = spec
        self.times: StageTimes = require("streamserve.plan.stage_times", spec).StageTimes()
        """Of its stages; after `share`, of all plans of the process."""
        self.cache: SubResults | None = None
        """Of sub-results, where it shares some with others of the process."""
        plan.layout.times = self.times
        self.lane: Lane | None = None
        self._asked = ("predict", "predict_proba") if wanted and "predict_proba" in plan.outputs else ("predict",)
        self._classes = plain_strings(plan.classes) if len(self._asked) > 1 and plan.classes is not None else None

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """A plan, or an instance of `sklearn.base.BaseEstimator` that can predict (asked after the others)."""
        if is_instance_of(obj, "streamserve.plan.compile", "Plan"):
            return True
        return is_instance_of(obj, "sklearn.base", "BaseEstimator") and hasattr(obj, "predict")

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch `[n, features]` (or `[n]` texts); a row that the estimator raises for is refused alone."""
        plan, head = self._served
        return self.outputs_of(plan.run(batch, self._asked), head)

    def outputs_of(self, answers: Answers, head: int) -> Outputs:
        """The plan's answers as the model's outputs. `head`: rows that its head has learnt from."""
        labels = plain_strings(answers.values["predict"])
        if len(self._asked) == 1:
            return Outputs(labels=labels, row_errors=answers.refused, head=head)
        return Outputs(
            labels=labels,
            probabilities=np.asarray(answers.values["predict_proba"], dtype=np.float64),
            classes=self._classes,
            row_errors=answers.refused,
            head=head,
        )

    @property
    def plan(self) -> Plan:
        return self._served[0]

    @property
    def head(self) -> int:
        """Rows that its head has learnt from; `NO_HEAD`: it does not learn while it serves."""
        return self._served[1]

    def serve(self, plan: Plan, head: int) -> None:
        """Answer with this plan from the next call on."""
        plan.layout.times = self.times
        self._served = plan, head

    @property
    def held_bytes(self) -> Mapping[str, int]:
        """Bytes of each array of the plan, by content hash."""
        return {constant.digest: constant.nbytes for constant in self.plan.graph.constants()}

    @property
    def asked(self) -> tuple[str, ...]:
        """Outputs of the plan that an answer is made of."""
        return self._asked

    def sample(self) -> AnyArray | None:
        """A text, or zeros for as many columns as the plan reads."""
        form = self.plan.graph.form
        if form.kind == "text":
            return np.array(["a few words"], dtype=object)
        return np.zeros((1, form.columns)) if form.columns else None

    def close(self) -> None:
        """Nothing is held beyond memory."""
