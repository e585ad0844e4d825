"""What must hold after every run. Each invariant says how often its premise occurred: none is to hold for nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from streamserve.kafka.ports import At
from streamserve.testing.simulator.app import GUARD_MS
from streamserve.testing.simulator.evidence import Evidence, Request, Terminal
from streamserve.testing.simulator.invariants_learning import (
    choices_follow_the_epochs,
    commits_of_the_learner,
    feedback_is_joined_once,
    the_state_is_that_of_no_crash,
)
from streamserve.testing.simulator.invariants_models import (
    a_second_opinion_counts_where_it_came,
    frozen_models_are_not_asked,
)
from streamserve.testing.simulator.invariants_split import (
    a_take_over_uses_the_log,
    commits_of_pools,
    the_first_answer_counts,
)
from streamserve.testing.simulator.verdict import Check, Verdict

#: A send that reaches the broker within its usual time, and the error of a clock.
_NETWORK_MS = 6
#: Between a new owner's assignment and the look at the log's end that follows it, acknowledgements still arrive.
_SCAN_MS = 5.0
#: A guard that has grown while records took long is its old self after so long.
_HEADROOM_MS = 10_000
_CLOCK_MS = 6.0


def it_settles(evidence: Evidence) -> Verdict:
    """When the trouble is over everything is settled, committed and forgotten."""
    verdict, simulation = Verdict(premise=1), evidence.simulation
    if not simulation.seen.settled:
        open_ = [name for name, process in simulation.processes.items() if not process.idle_at_the_end]
        verdict.fail(f"not settled {simulation.world.now:.0f} ms after the start; not idle: {open_}")
    return verdict


def nothing_dies_by_itself(evidence: Evidence) -> Verdict:
    """A process ends only when it is stopped or killed; one that cannot announce itself may give up."""
    verdict = Verdict()
    for name, process in evidence.simulation.processes.items():
        verdict.premise += process.lives
        for words in process.troubles:
            if "a record for sim.models" not in words:
                verdict.fail(f"{name} died: {words}")
        for machine in process.graves:
            for words in machine.loop.errors:
                verdict.fail(f"{name}: {words}")
    return verdict


def one_terminal_record(evidence: Evidence) -> Verdict:
    """Every request in the log has a terminal record, and every terminal record a request."""
    verdict, simulation = Verdict(premise=len(evidence.pairs)), evidence.simulation
    for request, terminals in evidence.pairs:
        if terminals or not simulation.seen.settled:
            continue
        if request.offset not in simulation.clients.written[request.partition].deleted:
            verdict.fail(f"request {request.partition}-{request.offset} has no terminal record")
    for number, terminals_of in enumerate(evidence.terminals):
        requests = evidence.requests[number]
        for offset in terminals_of:
            if not 0 <= offset < len(requests) or requests[offset] is None:
                verdict.fail(f"a terminal record names {number}-{offset}, which is no request that anybody may see")
    return verdict


def second_records_have_a_reason(evidence: Evidence) -> Verdict:
    """A second record only where its writer could not know of the first: its outcome was unknown, or it came after the
    writer had looked."""
    verdict, simulation = Verdict(), evidence.simulation
    if evidence.form.exactly_once:
        return verdict  # there are none: `a naive reader sees nothing twice`
    for request, terminals in evidence.pairs:
        for first, second in itertools.pairwise(terminals):
            verdict.premise += 1
            words = (
                f"{request.partition}-{request.offset} was answered by {first.writer} at {first.at_ms:.0f} ms and "
                f"again by {second.writer} at {second.at_ms:.0f} ms"
            )
            given = simulation.env.ownerships.get((simulation.terminal_group, request.partition), [])
            mine = [at for at, life in given if life == second.writer and at <= second.at_ms]
            if not mine:
                verdict.fail(f"{words}, which never owned the partition")
            elif simulation.lost_an_acknowledgement(
                second.writer, At(simulation.topics.predictions, request.partition)
            ):
                continue
            elif first.at_ms < mine[-1] - _SCAN_MS:
                if not simulation.wrote_as_zombie(second.writer, request.partition, second.at_ms):
                    verdict.fail(f"{words}, which had taken over at {mine[-1]:.0f} ms")
            elif first.writer == second.writer and first.sent_ms >= mine[-1]:  # else it was on its way by then
                verdict.fail(f"{words}, though no send of it failed")
    return verdict


def a_naive_reader_sees_nothing_twice(evidence: Evidence) -> Verdict:
    """With `exactly_once`, of who reads predictions, outcomes and dead letters and remembers nothing."""
    verdict = Verdict()
    if not evidence.form.exactly_once:
        return verdict
    for number, terminals_of in enumerate(evidence.terminals):
        for offset, terminals in terminals_of.items():
            verdict.premise += 1
            if len(terminals) > 1:
                said = ", ".join(f"{terminal.writer} at {terminal.at_ms:.0f} ms" for terminal in terminals)
                verdict.fail(f"{number}-{offset} has {len(terminals)} terminal records: {said}")
    for words, n in Counter(
        f"an outcome of feedback {outcome.feedback[0]}-{outcome.feedback[1]} for {outcome.route}/{outcome.context}"
        for outcome in evidence.outcomes
    ).items():
        verdict.premise += 1
        if n > 1:
            verdict.fail(f"{words} stands {n} times")
    for (topic, number, offset, stage), n in Counter(evidence.letters).items():
        verdict.premise += 1
        if n > 1 and all(kind not in topic for kind in ("epochs", "policy", "contexts")):
            verdict.fail(f"a dead letter of {stage} about {topic} {number}-{offset} stands {n} times")
    return verdict


def late_ones_say_why(evidence: Evidence) -> Verdict:
    """After deadline and guard only a record that says so; and only where something kept the app from serving."""
    verdict = Verdict()
    for request, terminals in evidence.pairs:
        if not terminals:
            continue
        first = terminals[0]
        said = first.value.parameters
        if said.outcome == "error" and request.ask.kind != "good":
            continue
        over_ms = first.append_ms - request.deadline_ms
        if -GUARD_MS - _NETWORK_MS <= over_ms <= GUARD_MS:
            continue
        name = f"{request.partition}-{request.offset}"
        if over_ms < -GUARD_MS - _NETWORK_MS and said.reason in ("deadline_passed", "late_on_arrival"):
            learnt_ms = max(rules.shortest_budget_ms for rules in evidence.rules) / 2 + _NETWORK_MS
            if over_ms < -learnt_ms or not evidence.delayed(first.at_ms - _HEADROOM_MS, first.at_ms):
                verdict.fail(f"{name} got {said.outcome} {-over_ms} ms before its deadline")
        if over_ms <= GUARD_MS:
            continue
        verdict.premise += 1
        unmarked = said.late is not True and said.outcome not in ("expired", "error")
        if unmarked and not evidence.delayed(first.at_ms - 3_000, first.at_ms):  # else sent in time, long on its way
            verdict.fail(f"{name} got {said.outcome} {over_ms} ms after its deadline and does not say so")
        start = evidence.world_ms(request.append_ms)
        if not evidence.disturbed(start - 200, evidence.world_ms(request.deadline_ms) + 200):
            verdict.fail(f"{name} got {said.outcome} {over_ms} ms after its deadline, and nothing was in the way")
    return verdict


def only_owners_send(evidence: Evidence) -> Verdict:
    """Nobody hands a terminal record to its client after the partition was given to another process: one that has not
    heard from its group for a session is silent. What is on its way by then still arrives."""
    verdict, simulation = Verdict(), evidence.simulation
    for number, batches in enumerate(simulation.clients.terminal):
        given = simulation.env.ownerships.get((simulation.terminal_group, number), [])
        for batch in batches:
            verdict.premise += 1
            owners = [life for at_ms, life in given if at_ms + _CLOCK_MS <= batch.sent_ms]
            if owners and owners[-1] != batch.writer and batch.writer in owners:
                verdict.fail(
                    f"{batch.writer} sent records of partition {number} at {batch.sent_ms:.0f} ms, which was "
                    f"{owners[-1]}'s by then"
                )
    return verdict


def commits_never_pass_open_requests(evidence: Evidence) -> Verdict:
    """Of the group that writes terminal records: below a commit every request has one in the log."""
    verdict, simulation = Verdict(), evidence.simulation
    for commit in simulation.seen.commits:
        if commit.group != simulation.terminal_group:
            continue
        verdict.premise += 1
        if commit.passes_open:
            verdict.fail(
                f"the commit of {commit.group} to {commit.partition}-{commit.offset} at {commit.at_ms:.0f} ms passes a "
                "request without a terminal record"
            )
    return verdict


def only_old_ones_are_passed_over(evidence: Evidence) -> Verdict:
    """What an owner leaves to the sweep is older than any deadline."""
    verdict = Verdict()
    reached: dict[int, int] = {}
    for commit in evidence.simulation.seen.commits:
        if commit.skipped is None:
            continue
        first = max(commit.skipped.start, reached.get(commit.partition, 0))
        deleted = evidence.simulation.clients.written[commit.partition].deleted
        for request in evidence.requests[commit.partition][first : commit.skipped.end]:
            if request is None or request.offset in deleted:  # nobody's: there is nothing to be swept
                continue
            verdict.premise += 1
            left_ms = evidence.world_ms(request.append_ms) + evidence.form.max_deadline_ms - commit.at_ms
            if left_ms > 0:
                verdict.fail(
                    f"{request.partition}-{request.offset} was passed over at {commit.at_ms:.0f} ms, {left_ms:.0f} ms "
                    "before it was older than any deadline"
                )
        reached[commit.partition] = max(reached.get(commit.partition, 0), commit.skipped.end)
    return verdict


def answers_are_their_models_own(evidence: Evidence) -> Verdict:
    """What stands under a model's name and version is what that version says of that input."""
    verdict, form = Verdict(), evidence.form
    said_by = evidence.said_by
    for asked, terminals in evidence.pairs:
        for terminal in terminals[:1]:
            if terminal.value.parameters.outcome in ("ok", "partial"):
                _judge_members(evidence, asked, terminal, verdict)
    if not form.fused:
        for number, answers_of in enumerate(evidence.answers):
            for offset, answers in answers_of.items():
                request = evidence.requests[number][offset]
                if request is None:
                    verdict.fail(f"{number}-{offset} was answered, which is no request that anybody may see")
                    continue
                ask = request.ask
                for answer in answers:
                    if answer.present:
                        verdict.premise += 1
                        if answer.labels != said_by(answer.model, ask):
                            verdict.fail(f"the answer of {answer.model} to {number}-{offset} is not its own")
    return verdict


def _judge_members(evidence: Evidence, request: Request, terminal: Terminal, verdict: Verdict) -> None:
    given = {tensor.name: tensor.data for tensor in terminal.value.outputs}
    label, said_by = given.get("label"), evidence.said_by
    said: list[list[object]] = []
    lacking, second = terminal.lacking, terminal.second
    for model in terminal.chosen if second is None else (*terminal.chosen, second):
        if model in lacking:
            continue
        verdict.premise += 1
        own = said_by(model, request.ask)
        said.append(own)
        if given.get(f"member.{model}", label) != own:
            verdict.fail(f"{request.partition}-{request.offset}: what {model} is to have said is not what it says")
    if label is None or not said:
        return
    averaged = evidence.form.combine == "mean"
    if not averaged and label in said:
        return  # one of them said all of it
    for row, value in enumerate(label):
        column = [one[row] for one in said]
        lowest, highest = (min(column), max(column)) if averaged else (0, 0)  # type: ignore[type-var]
        if not (lowest - 1e-9 <= value <= highest + 1e-9 if averaged else value in column):  # type: ignore[operator]
            verdict.fail(f"{request.partition}-{request.offset}: {value} is nobody's answer; they said {column}")


def no_call_for_the_doomed(evidence: Evidence) -> Verdict:
    """No batch is cut for a row that by the predicted time cannot make it any more."""
    seen = evidence.simulation.seen
    verdict = Verdict(premise=seen.judged_cuts)
    for cut in seen.bad_cuts:
        verdict.fail(
            f"{cut.process} called {cut.model} at {cut.at_ms:.0f} ms with input {cut.input}, {cut.short_ms:.0f} ms too "
            "late for it"
        )
    return verdict


def memory_is_bounded(evidence: Evidence) -> Verdict:
    """What a process holds open is what can be open: rate times the longest deadline, and a backlog."""
    seen = evidence.simulation.seen
    return Verdict(premise=seen.memory_looks, failures=list(seen.over_memory))


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    check: Check


INVARIANTS = tuple(
    Invariant(check.__name__.replace("_", " "), check)
    for check in (
        it_settles,
        nothing_dies_by_itself,
        one_terminal_record,
        second_records_have_a_reason,
        a_naive_reader_sees_nothing_twice,
        late_ones_say_why,
        only_owners_send,
        commits_never_pass_open_requests,
        only_old_ones_are_passed_over,
        commits_of_pools,
        commits_of_the_learner,
        answers_are_their_models_own,
        no_call_for_the_doomed,
        memory_is_bounded,
        a_take_over_uses_the_log,
        the_first_answer_counts,
        choices_follow_the_epochs,
        frozen_models_are_not_asked,
        a_second_opinion_counts_where_it_came,
        feedback_is_joined_once,
        the_state_is_that_of_no_crash,
    )
)


@dataclass(slots=True)
class Judgement:
    """Of one run, by invariant."""

    premises: dict[str, int] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)


def judge(evidence: Evidence, invariants: tuple[Invariant, ...] = INVARIANTS) -> Judgement:
    judgement = Judgement()
    for invariant in invariants:
        verdict = invariant.check(evidence)
        judgement.premises[invariant.name] = verdict.premise
        if verdict.failures:
            judgement.failures[invariant.name] = verdict.failures
    return judgement
