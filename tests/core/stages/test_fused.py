"""Laws of the fused stage on a tiny simulated log, with take-overs at any moment."""

from __future__ import annotations

import pytest

from streamserve.core.stage import Stage
from streamserve.core.stages.fused import FusedStage
from streamserve.testing.laws import check_laws
from tests.core.stages.serving_case import CODECS, ServingLaws, model_rules


class FusedLaws(ServingLaws):
    def new_stage(self) -> Stage:
        return FusedStage(self.app, model_rules(), CODECS, self.epochs())

    def check_end(self) -> None:
        super().check_end()
        stage = self.stage
        assert not len(stage._worker._table)
        assert not len(stage._aggregator._window.table)
        assert not stage._aggregator._acks
        assert not stage._aggregator._window.words
        for desk in stage._worker._desks.values():
            assert not len(desk)
            if desk.running is None:
                assert not desk.parts
                assert not desk.rows_taken
                assert not desk.suspects


class WaitingLaws(FusedLaws):
    def new_stage(self) -> Stage:
        return FusedStage(self.app, model_rules(max_wait_ms=6, cache_bytes=4_000), CODECS, self.epochs())


@pytest.mark.parametrize("case", [FusedLaws, WaitingLaws])
def test_the_laws_hold(case: type[ServingLaws]) -> None:
    check_laws(case, examples=40, steps=25)
