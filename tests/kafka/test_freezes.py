"""What a role tells of freezes: words once, a gauge until they are lifted."""

from __future__ import annotations

import pytest

from streamserve.cli.models import standing_words
from streamserve.client.standing import Standing, _standing
from streamserve.core.selection.freezing import Frozen
from streamserve.core.switches import SwitchRecord
from streamserve.kafka.codecs.switches import Switched
from streamserve.kafka.freezes import Freezes
from tests.core.kit import route

ROUTE = route(("a@1", "b@1"))


def frozen(since_ms: int) -> Frozen:
    return Frozen(since_ms=since_ms, loss_above=0.4, baseline_below=0.2)


def test_a_freeze_is_told_once_and_its_gauge_falls_when_it_is_lifted(caplog: pytest.LogCaptureFixture) -> None:
    gauges: dict[str, bool] = {}
    freezes = Freezes(lambda _, model, is_frozen: gauges.__setitem__(model, is_frozen))
    freezes.heard(ROUTE, {})
    assert gauges == {"a@1": False, "b@1": False}
    for _ in range(2):
        freezes.heard(ROUTE, {"b@1": frozen(100)})
    assert gauges == {"a@1": False, "b@1": True}
    assert caplog.text.count("is frozen") == 1
    freezes.switched([SwitchRecord(model="b", disabled=False, append_ms=99, offset=0)])
    assert gauges["b@1"]
    freezes.switched([SwitchRecord(model="b", disabled=False, append_ms=101, offset=1)])
    assert not gauges["b@1"]
    freezes.heard(ROUTE, {"b@1": frozen(500)})
    assert gauges["b@1"]
    assert caplog.text.count("is frozen") == 2


def switched(append_ms: int, *, disabled: bool, model: str = "b@1") -> Switched:
    return Switched(model=model, disabled=disabled, append_ms=append_ms, offset=append_ms, why="it leaks")


def words(switches: list[Switched], one: Frozen | None) -> str:
    found: Standing = _standing(ROUTE, "b@1", switches, one)
    return standing_words(found).removeprefix("r  b@1  ")


def test_a_model_stands_as_the_newest_records_say() -> None:
    assert words([], None) == "on"
    assert words([switched(1_000, disabled=True)], frozen(5)) == "off since 1970-01-01T00:00:01+00:00: it leaks"
    assert words([], frozen(2_000)).startswith("frozen since 1970-01-01T00:00:02+00:00: mean loss above 0.400, ")
    lifted = [switched(1_000, disabled=True), switched(3_000, disabled=False)]
    assert words(lifted, frozen(2_000)) == "on"
    assert words(lifted, frozen(4_000)).startswith("frozen")
    assert words([switched(9, disabled=True, model="b")], None).startswith("off")
