"""Invariants of the split form: what pools owe to the owner of a request, and what it makes of their answers."""

from __future__ import annotations

from streamserve.testing.simulator.evidence import Evidence, Terminal
from streamserve.testing.simulator.verdict import Verdict

#: A send that reaches the broker within its usual time, and the error of a clock.
_NETWORK_MS = 6


def commits_of_pools(evidence: Evidence) -> Verdict:
    """Below a pool's commit each request has that pool's answers in the log, or its deadline was over, or it could not
    be used."""
    verdict = Verdict()
    if evidence.form.fused:
        return verdict
    hosted = {f"sim.pool.{pool}": frozenset(models) for pool, models in evidence.simulation.env.models[0].items()}
    if evidence.form.deployed:
        hosted = {
            group: models | frozenset(evidence.simulation.env.models[1].get(group.rpartition(".")[2], ()))
            for group, models in hosted.items()
        }
    deploys = evidence.simulation.env.deploy_ms < float("inf")
    reached: dict[tuple[str, int], int] = {}
    for commit in evidence.simulation.seen.commits:
        if commit.group not in hosted:
            continue
        key = commit.group, commit.partition
        requests, answers = evidence.requests[commit.partition], evidence.answers[commit.partition]
        terminals = evidence.terminals[commit.partition]
        gone = evidence.simulation.clients.written[commit.partition].gone
        unread_below = max((below for at_ms, below in gone if at_ms <= commit.at_ms), default=0)
        for request in requests[reached.get(key, 0) : commit.offset]:
            if request is None or request.ask.kind != "good" or request.offset < unread_below:
                continue
            if deploys and evidence.in_deploy(evidence.world_ms(request.append_ms), commit.at_ms):
                continue  # the pool's process may have been asked for other versions than the owner waits for
            verdict.premise += 1
            if evidence.world_ms(request.deadline_ms) <= commit.at_ms + _NETWORK_MS:
                continue
            known = terminals.get(request.offset)
            if known and deploys and evidence.in_deploy(evidence.world_ms(request.append_ms), known[0].at_ms):
                continue
            if not known:
                continue
            there = {
                answer.model
                for answer in answers.get(request.offset, ())
                if evidence.world_ms(answer.append_ms) <= commit.at_ms
            }
            lacking = hosted[commit.group].intersection(known[0].chosen) - there
            if lacking and not _unsure(known[0]):
                verdict.fail(
                    f"{commit.group} committed {commit.partition}-{commit.offset} at {commit.at_ms:.0f} ms, but "
                    f"{sorted(lacking)} had not answered {request.offset}"
                )
        reached[key] = max(reached.get(key, 0), commit.offset)
    return verdict


def _unsure(terminal: Terminal) -> bool:
    """Another process may have chosen others for this request."""
    said = terminal.value.parameters
    return said.stale is True or said.off_epoch is True


def a_take_over_uses_the_log(evidence: Evidence) -> Verdict:
    """Answers that were in the log when an aggregator took over are in the terminal records that it writes."""
    verdict, simulation = Verdict(), evidence.simulation
    if evidence.form.fused:
        return verdict
    for request, terminals in evidence.pairs:
        if not terminals or request.ask.kind != "good":
            continue
        first = terminals[0]
        given = simulation.env.ownerships.get((simulation.terminal_group, request.partition), [])
        # What it had handed over before, as an earlier owner, may have been on its way for long.
        times = [at for at, life in given if life == first.writer and at <= first.sent_ms]
        if not times or len(given) < 2:
            continue
        absent, chosen = first.lacking, first.chosen
        for answer in evidence.answers[request.partition].get(request.offset, ()):
            if not answer.present or evidence.world_ms(answer.append_ms) > times[-1] or answer.model not in chosen:
                continue
            verdict.premise += 1
            said = first.value.parameters
            if said.reason in ("low_confidence", "decided_early"):
                continue
            if answer.model in absent or said.outcome in ("expired", "default"):
                verdict.fail(
                    f"{request.partition}-{request.offset}: {first.writer} took over at {times[-1]:.0f} ms and said "
                    f"{first.value.parameters.outcome} without {answer.model}, whose answer was in the log"
                )
    return verdict


def the_first_answer_counts(evidence: Evidence) -> Verdict:
    """Of several answers of a model to a request the first in the log is in the terminal record, good or not."""
    verdict = Verdict()
    if evidence.form.fused:
        return verdict
    for request, terminals in evidence.pairs:
        answers = evidence.answers[request.partition].get(request.offset, ())
        if len(answers) < 2 or not terminals or request.ask.kind != "good":
            continue
        first: dict[str, bool] = {}
        for answer in answers:
            if answer.model in first:
                verdict.premise += 1
            first.setdefault(answer.model, answer.present)
        said = terminals[0].value.parameters
        if said.reason == "low_confidence" or said.outcome not in ("ok", "partial"):
            continue
        lacking = terminals[0].lacking
        for model in terminals[0].chosen:
            if model not in first or lacking.get(model) in ("late", "not_awaited"):
                continue
            if first[model] != (model not in lacking):
                verdict.fail(
                    f"{request.partition}-{request.offset}: the first answer of {model} was "
                    f"{'good' if first[model] else 'none'}, its record says {lacking.get(model, 'answered')}"
                )
    return verdict
