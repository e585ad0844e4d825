"""The declared bounds are those that are there: in the settings, in what the roles tell, and in the tests."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from streamserve.assembly import app_rules
from streamserve.cli.bounds import BOUNDS, METRIC, Bound, default_of
from streamserve.core.bounds import Bounds
from streamserve.core.epochs import EpochTable
from streamserve.core.stage import Stage
from streamserve.core.stages.aggregator import AggregatorStage
from streamserve.core.stages.fused import FusedStage
from streamserve.core.stages.worker import WorkerStage
from streamserve.insights.board import Board
from streamserve.insights.slices import InsightRules
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.loop import StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.settings import BoundsSettings, parse_settings
from tests.core.kit import CODECS, app, model_rules
from tests.core.stages.learning_case import join_of, update_of
from tests.settings.digits import DIGITS

TESTS = Path(__file__).parent


def stages() -> list[Stage]:
    rules = app()
    epochs = EpochTable(rules)
    models = model_rules(rules, cache_bytes=1_000)
    return [
        WorkerStage(rules, models, CODECS, epochs),
        AggregatorStage(rules, epochs, CODECS),
        FusedStage(rules, models, CODECS, epochs),
        join_of(),
        update_of(),
    ]


def test_what_the_roles_tell_is_declared_and_what_is_declared_is_told() -> None:
    told: set[str] = set()
    for stage in stages():
        wiring = Wiring(driving="t", events={})
        loop = StageLoop(stage=stage, wiring=wiring, clock=BrokerClock(), metrics=RoleMetrics("test", "a"))
        told |= loop.fills().keys()
    told |= Board(InsightRules(routes={}), 1, 1_000).fills().keys()
    assert told == {bound.fill for bound in BOUNDS if bound.fill}


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.what)
def test_a_declared_bound_has_a_limit_and_a_test(bound: Bound) -> None:
    assert bound.setting or bound.limit
    if bound.setting:
        assert isinstance(default_of(bound.setting), int)
    file, _, name = bound.test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text("utf-8")


def test_every_setting_of_the_section_bounds_something() -> None:
    assert {f"bounds.{name}" for name in BoundsSettings.model_fields} <= {bound.setting for bound in BOUNDS}


def test_the_settings_reach_the_rules() -> None:
    file = Path("digits.toml")
    assert app_rules(parse_settings(DIGITS, file)).bounds == Bounds()
    other = Bounds(**{name: 900_000 + n for n, name in enumerate(asdict(Bounds())) if not name.endswith("_bytes")})
    words = "\n".join(f"{name} = {value}" for name, value in asdict(other).items())
    assert app_rules(parse_settings(f"{DIGITS}\n[bounds]\n{words}\n", file)).bounds == other


def test_the_metric_has_the_name_that_the_page_says() -> None:
    assert METRIC in RoleMetrics("test", "a").page().decode()
