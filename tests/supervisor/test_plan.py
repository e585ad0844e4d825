"""Which processes a config needs."""

from __future__ import annotations

from pathlib import Path

from streamserve.settings import Settings, parse_settings
from streamserve.supervisor.plan import processes, program

ROUTE = '[routes.main]\nmodels = ["a", "b"]\n'
MODELS = '[models.a]\nsource = "m:a"\n[models.b]\nsource = "m:b"\n'
ONE_POOL = '[pools.main]\nmodels = ["a", "b"]\n'
TWO_POOLS = '[pools.left]\nmodels = ["a"]\n[pools.right]\nmodels = ["b"]\n'


def settings(text: str) -> Settings:
    return parse_settings(f'[app]\nname = "tiny"\n{text}{MODELS}{ROUTE}', Path("tiny.toml"))


def names(text: str, route: str = "") -> list[str]:
    return [plan.name for plan in processes(settings(text + route))]


def test_a_fused_app_that_learns_nothing_is_its_workers() -> None:
    assert names(ONE_POOL) == ["worker-main-0"]
    assert names(f"{ONE_POOL}processes = 2\n") == ["worker-main-0", "worker-main-1"]


def test_several_pools_need_aggregators() -> None:
    assert names(f"{TWO_POOLS}[aggregator]\nprocesses = 2\n") == [
        "worker-left-0",
        "worker-right-0",
        "aggregate-0",
        "aggregate-1",
    ]


def test_one_pool_that_must_not_be_fused_needs_an_aggregator() -> None:
    never = parse_settings(f'[app]\nname = "tiny"\nfused = "never"\n{ONE_POOL}{MODELS}{ROUTE}', Path("tiny.toml"))
    assert [plan.name for plan in processes(never)] == ["worker-main-0", "aggregate-0"]


def test_a_route_that_learns_needs_learners() -> None:
    learns = parse_settings(
        f'[app]\nname = "tiny"\n[learn]\nprocesses = 2\n{ONE_POOL}{MODELS}{ROUTE}policy = "hedge"\n', Path("tiny.toml")
    )
    assert [plan.name for plan in processes(learns)] == ["worker-main-0", "learn-0", "learn-1"]


def test_fixed_ports_follow_each_other() -> None:
    plans = processes(settings(f"{TWO_POOLS}[metrics]\nport = 9000\n"))
    assert [plan.metrics_port for plan in plans] == [9000, 9001, 9002]
    assert {plan.metrics_port for plan in processes(settings(TWO_POOLS))} == {0}


def test_a_process_has_the_command_line_of_a_real_deployment() -> None:
    worker, _, aggregator = processes(settings(TWO_POOLS))
    tail = ["--instance", "0", "--metrics-port", "0"]
    assert worker.arguments(Path("x.toml")) == ["worker", "x.toml", "--pool", "left", *tail]
    assert aggregator.arguments(Path("x.toml")) == ["aggregate", "x.toml", *tail]


def test_the_program_is_the_installed_one() -> None:
    assert program()[-1].endswith("streamserve") or program()[1:] == ["-m", "streamserve.cli"]


def test_insights_run_where_the_config_asks_and_need_a_learner() -> None:
    assert names(f"{ONE_POOL}[insights]\n") == ["worker-main-0", "learn-0", "insights-0"]
