"""What faults of a plan do to the world: a deploy reaches every process, deletion takes away what it says."""

from __future__ import annotations

from dataclasses import replace

from streamserve.kafka.ports import At
from streamserve.testing.simulator.draw import draw
from streamserve.testing.simulator.evidence import Evidence
from streamserve.testing.simulator.invariants import judge
from streamserve.testing.simulator.plan import Fault, Plan
from streamserve.testing.simulator.run import run
from streamserve.testing.simulator.simulation import Simulation
from streamserve.testing.simulator.story import story


def plan_of(*faults: Fault, deployed: bool = False, requests: int = 2_000) -> Plan:
    """The first drawn one that deploys, or does not, with these faults only."""
    plans = (draw(seed, requests) for seed in range(1_000))
    plan = next(plan for plan in plans if bool(plan.form.deployed) == deployed)
    return replace(plan, faults=faults)


def test_a_deploy_restarts_every_process_with_the_new_config() -> None:
    plan = plan_of(Fault(1_000.0, "deploy", for_ms=100.0), deployed=True)
    simulation = Simulation(plan)
    simulation.run()
    env = simulation.env
    lives = {process.life for process in simulation.processes.values()}
    assert {env.variant_of[life] for life in lives} == {1}
    assert [process.lives for process in simulation.processes.values()] == [2] * len(lives)
    assert env.deploy_ms < env.old_until_ms < simulation.seen.settled_ms
    evidence = Evidence(simulation)
    assert not judge(evidence).failures
    names = {f"{model.name}@{model.version}" for model in plan.form.deployed}
    newest = [terminals[0] for _, terminals in evidence.pairs if terminals and terminals[0].at_ms > env.old_until_ms]
    assert {model for terminal in newest for model in terminal.chosen} <= names
    assert any(words == "begins to deploy" for _, _, words in run(plan).story)
    assert "; after the deploy " in story(run(plan))


def test_deleted_requests_are_nobodys_and_the_others_are_answered() -> None:
    simulation = Simulation(plan_of(Fault(2_000.0, "delete", point="0", number=50)))
    simulation.run()
    part = simulation.log.partition(At(simulation.topics.requests, 0))
    assert 0 < part.start < part.next_offset
    assert simulation.seen.faults["requests deleted"] == 1
    assert not judge(Evidence(simulation)).failures


def test_retention_takes_what_no_commit_needs() -> None:
    simulation = Simulation(plan_of(Fault(3_500.0, "retain")))
    simulation.run()
    starts = [simulation.log.partition(at).start for at in simulation.log.partitions(simulation.topics.feedback)]
    assert any(starts)
    assert simulation.seen.faults["retention"] == 1
    assert not judge(Evidence(simulation)).failures


def test_a_pool_that_comes_after_a_deletion_need_not_have_read_what_is_gone() -> None:
    plan = draw(5_050, 2_000)
    assert {fault.kind for fault in plan.faults} >= {"delete", "leader"}
    assert not run(plan).failed
