"""Laws of the aggregator stage: answers early, late, twice, under other choices; take-overs at any moment."""

from __future__ import annotations

import pytest

from streamserve.core.bounds import Bounds
from streamserve.core.effects import Effect
from streamserve.core.events import Event, RequestsFetched
from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.testing.laws import check_laws
from tests.core.stages.serving_case import CODECS, ServingLaws, rules
from tests.effort import examples

MOST_OPEN = 3


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


class TightLaws(AggregatorLaws):
    """No more requests are read than the stage takes: it stays near its bound, and never stands still."""

    app = rules(Bounds(open_requests=MOST_OPEN, early_answers=1))

    def fetch(self, number: int, n: int) -> Event | None:
        self.went_on = bool(self.stage._paused or self.stage._catching_up)
        return super().fetch(number, n) if self.stage.takes_more else None

    def check(self, event: Event, effects: list[Effect]) -> None:
        super().check(event, effects)
        if isinstance(event, RequestsFetched) and not self.went_on:
            before = MOST_OPEN - 1
            assert self.stage.fills()["open_requests"].used <= before + len(event.requests)

    def _read_all(self) -> None:
        """Nobody but the stage's own deadlines and acknowledgements makes room."""
        while any(not p.owned or p.read < len(p.offsets) for p in self.log.values()):
            self._run_dry()
            owned, read = [p.owned for p in self.log.values()], sum(p.read for p in self.log.values())
            super()._read_all()
            assert not all(owned) or sum(p.read for p in self.log.values()) > read, "it stands still"
        super()._read_all()


class TightBytesLaws(TightLaws):
    """The same where it may hold the bodies of one fetch only."""

    app = rules(Bounds(open_bytes=1, early_answers=1))

    def check(self, event: Event, effects: list[Effect]) -> None:
        AggregatorLaws.check(self, event, effects)
        held = self.stage._window.table
        assert held.held_bytes == int(held["n_bytes"].sum())


@pytest.mark.parametrize("case", [AggregatorLaws, TightLaws, TightBytesLaws])
def test_the_laws_hold(case: type[ServingLaws]) -> None:
    check_laws(case, examples=examples(50), steps=25)
