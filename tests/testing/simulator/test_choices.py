"""What is played of choices: states that are read late, models that are frozen, second opinions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from streamserve.testing.simulator.draw import draw
from streamserve.testing.simulator.evidence import Evidence
from streamserve.testing.simulator.invariants import judge
from streamserve.testing.simulator.models import CLASSES
from streamserve.testing.simulator.plan import Fault, Plan
from streamserve.testing.simulator.simulation import Simulation
from streamserve.testing.simulator.workload import form_words


def played(plan: Plan) -> Evidence:
    simulation = Simulation(plan)
    simulation.run()
    evidence = Evidence(simulation)
    assert not judge(evidence).failures
    return evidence


def stale_in(evidence: Evidence) -> int:
    return sum(terminal.value.parameters.stale is True for _, terminals in evidence.pairs for terminal in terminals[:1])


def test_who_reads_states_late_says_so_and_goes_on() -> None:
    plan = next(plan for plan in map(draw, range(100)) if plan.form.policy == "hedge" and not plan.form.deployed)
    quiet = replace(plan, faults=())
    late = tuple(Fault(1_000.0, "follower", process.name, 3_000.0) for process in plan.form.processes)
    played_late = played(replace(plan, faults=late))
    assert stale_in(played(quiet)) < stale_in(played_late)
    assert played_late.simulation.seen.faults["learnt states read late"] == len(late)


def test_who_is_poor_is_frozen_and_asked_no_more() -> None:
    plan = next(
        plan
        for plan in map(draw, range(200))
        if plan.form.baseline and plan.form.policy == "hedge" and plan.form.deadline_ms >= 150
    )
    plan = replace(plan, faults=())
    evidence = played(plan)
    (poor,) = (f"{model.name}@{model.version}" for model in plan.form.models if model.poor)
    assert f"{poor.partition('@')[0]} is poor" in form_words(plan.form)
    asked = Counter(poor in terminals[0].chosen for _, terminals in evidence.pairs if terminals)
    frozen = {model for state in evidence.states for model in state.data["freeze"]["frozen"]}
    assert frozen == {poor}
    assert asked[True] and asked[False]


def test_a_second_opinion_is_asked_of_what_is_unsure() -> None:
    plan = next(plan for plan in map(draw, range(300)) if plan.form.second and plan.form.deadline_ms >= 150)
    plan = replace(plan, faults=())
    evidence = played(plan)
    seconds = [
        (request, terminals[0])
        for request, terminals in evidence.pairs
        if terminals and terminals[0].second is not None and request.ask.rows == 1
    ]
    assert seconds
    assert {request.ask.input % 3 for request, _ in seconds} == {0}
    came = [(request, terminal) for request, terminal in seconds if terminal.second not in terminal.absent]
    assert came
    for request, terminal in came:
        label = next(tensor.data for tensor in terminal.value.outputs if tensor.name == "label")
        assert [value % CLASSES for value in label] == [request.ask.input % CLASSES]
