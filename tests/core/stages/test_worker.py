"""Laws of the worker stage."""

from __future__ import annotations

from streamserve.core.stage import Stage
from streamserve.core.stages.worker import WorkerStage
from streamserve.testing.laws import check_laws
from tests.core.stages.serving_case import CODECS, Partition, ServingLaws, model_rules


class WorkerLaws(ServingLaws):
    def new_stage(self) -> Stage:
        return WorkerStage(self.app, model_rules(), CODECS, self.epochs())

    def check_answered(self, number: int, p: Partition) -> None:
        """It writes no terminal records."""

    def check_end(self) -> None:
        assert not self.stage._sent
        assert not len(self.stage._table)


def test_the_laws_hold() -> None:
    check_laws(WorkerLaws, examples=40, steps=25)
