"""Laws of the aggregator stage: answers early, late, twice, under other choices; take-overs at any moment."""

from __future__ import annotations

from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.testing.laws import check_laws
from tests.core.stages.serving_case import CODECS, ServingLaws
from tests.effort import examples


class AggregatorLaws(ServingLaws):
    takes_answers = True

    def new_stage(self) -> Stage:
        return AggregatorStage(self.app, self.epochs(), CODECS)

    def check_end(self) -> None:
        super().check_end()
        stage = self.stage
        assert not len(stage._window.table)
        assert not stage._acks
        assert stage._early_rows == sum(len(block) for blocks in stage._early.values() for block in blocks)
        assert stage._early_rows == 0


def test_the_laws_hold() -> None:
    check_laws(AggregatorLaws, examples=examples(50), steps=25)
