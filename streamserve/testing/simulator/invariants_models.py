"""Invariants of which models are asked: nobody who is frozen, and a second one where the first is not sure enough."""

from __future__ import annotations

from streamserve.testing.simulator.app import GUARD_MS
from streamserve.testing.simulator.evidence import Evidence, Request, Terminal
from streamserve.testing.simulator.verdict import Verdict


def frozen_models_are_not_asked(evidence: Evidence) -> Verdict:
    """No choice, marked or not, is of a model that the state which it names has frozen. Which state is in force when
    is asked by *choices follow the epochs*; nobody lifts a freeze here."""
    verdict = Verdict()
    if not evidence.form.baseline:
        return verdict
    frozen = {state.epoch: frozenset(state.data["freeze"]["frozen"]) for state in evidence.states if not state.context}
    for request, terminals in evidence.pairs:
        for terminal in terminals:
            never = frozen.get(terminal.value.parameters.epoch)
            if not never:
                continue
            verdict.premise += 1
            asked = sorted(never & frozenset(terminal.chosen))
            if asked:
                verdict.fail(
                    f"{request.partition}-{request.offset} was given to {asked}, which state "
                    f"{terminal.value.parameters.epoch} has frozen"
                )
    return verdict


def a_second_opinion_counts_where_it_came(evidence: Evidence) -> Verdict:
    """It is what the prediction says, and where it did not come the first answer is; that is never lost for it, and
    no later: unless something was in the way, a guard after the deadline the record stands."""
    verdict = Verdict()
    if evidence.form.second is None:
        return verdict
    for request, terminals in evidence.pairs:
        for terminal in terminals[:1]:
            if terminal.second is not None:
                verdict.premise += 1
                _judge_second(evidence, request, terminal, terminal.second, verdict)
    return verdict


def _judge_second(evidence: Evidence, request: Request, terminal: Terminal, second: str, verdict: Verdict) -> None:
    name, said, absent = f"{request.partition}-{request.offset}", terminal.value.parameters, terminal.absent
    (first,) = terminal.chosen
    late_ms = terminal.append_ms - request.deadline_ms
    start, end = evidence.world_ms(request.append_ms), evidence.world_ms(request.deadline_ms)
    if late_ms > GUARD_MS and not evidence.disturbed(start - 200, end + 200):
        verdict.fail(f"{name} waited for the second opinion of {second} until {late_ms} ms after its deadline")
    if said.outcome not in ("ok", "partial"):
        verdict.fail(f"{name} got {said.outcome}, though {first} had said something of which {second} was asked")
        return
    speaks = first if second in absent else second
    label = next((tensor.data for tensor in terminal.value.outputs if tensor.name == "label"), None)
    if speaks not in absent and label != evidence.said_by(speaks, request.ask):
        verdict.fail(f"{name} got {label}, which is not what {speaks} says")
