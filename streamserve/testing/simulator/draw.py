"""Draws a plan from a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from streamserve.testing.simulator.app import NAMES
from streamserve.testing.simulator.leaders import BROKERS
from streamserve.testing.simulator.models import MODES
from streamserve.testing.simulator.plan import Ask, Burst, Fault, FeedbackAsk, Form, ModelForm, Plan, Process
from streamserve.testing.simulator.writer import COMMIT_FATES, CRASH_POINTS, SEND_FATES

REQUESTS = 2_000
LOAD_MS = 4_000.0
_SHORT_WINDOW_MS = 2_000
MALFORMED = ("empty", "not_json", "shape", "large", "route", "deadline", "header", "form")
_OUTAGES, _STATIC, _LEADERS = 0.25, 0.35, 0.4
_KEYED = 0.4
_FREEZES, _SECOND, _SLOW_FOLLOWERS = 0.5, 0.8, 0.42
_MORE_FEEDBACK = 0.06
_SHORT_MS = 1_000
_DEADLINES = (50, 150, 400, 1_000, 3_000)


def draw(seed: int, requests: int = REQUESTS) -> Plan:
    rng = random.Random(seed)
    form = _form(rng)
    plan = Plan(seed=seed, form=form, bursts=_bursts(rng, form, requests), faults=_faults(rng, form))
    plan = _with_static_members(random.Random(f"static {seed}"), plan)
    plan = _with_outage(random.Random(f"outage {seed}"), plan)
    plan = _with_lost_leaders(random.Random(f"cluster {seed}"), plan)
    plan = _with_keys(random.Random(f"keys {seed}"), plan)
    plan = _with_freezes(random.Random(f"freeze {seed}"), plan)
    plan = _with_second_opinions(random.Random(f"second {seed}"), plan)
    return _with_slow_followers(random.Random(f"follower {seed}"), plan)


def _with_freezes(rng: random.Random, plan: Plan) -> Plan:
    """In some plans with labels one model is always wrong, feedback comes more often, and who is worse is frozen."""
    form = plan.form
    if not _compares(form) or rng.random() > _FREEZES:
        return plan
    poor, baseline = rng.sample(range(len(form.models)), 2)
    models = tuple(model._replace(poor=i == poor) for i, model in enumerate(form.models))
    bursts = tuple(
        burst._replace(
            asks=tuple(
                ask._replace(feedback=FeedbackAsk("label", rng.random() * 200))
                if ask.kind == "good" and ask.feedback is None and rng.random() < _MORE_FEEDBACK
                else ask
                for ask in burst.asks
            )
        )
        for burst in plan.bursts
    )
    return replace(plan, form=replace(form, models=models, baseline=form.models[baseline].name), bursts=bursts)


def _with_second_opinions(rng: random.Random, plan: Plan) -> Plan:
    """In some plans of a policy that asks one model a further one is asked where that is not sure. All models are in
    one pool then."""
    form = plan.form
    if not _compares(form) or form.policy != "exp3" or form.baseline or rng.random() > _SECOND:
        return plan
    pool = form.models[0].pool
    models = tuple(model._replace(pool=pool) for model in form.models)
    second = ModelForm(
        name=NAMES[len(models)], version="1", pool=pool, a_ms=rng.choice((2.0, 8.0, 40.0)), b_ms=rng.choice((0.2, 0.8))
    )
    processes = tuple(process for process in form.processes if process.pool in ("", pool))
    kept = {"", *(process.name for process in processes)}
    faults = tuple(
        fault._replace(model=f"{second.name}@{second.version}")
        if fault.kind == "model" and rng.random() < 0.6
        else fault
        for fault in plan.faults
        if fault.process in kept
    )
    return replace(plan, form=replace(form, models=models, processes=processes, second=second), faults=faults)


def _compares(form: Form) -> bool:
    """Whether labels teach its policy of models that stay, in one state for all."""
    return form.policy != "static" and form.combine != "mean" and not form.deployed and not form.keyed


def _with_slow_followers(rng: random.Random, plan: Plan) -> Plan:
    """Where a policy learns: in some plans a process reads late what others have learnt."""
    if plan.form.policy == "static" or rng.random() > _SLOW_FOLLOWERS:
        return plan
    slow = [
        Fault(rng.random() * LOAD_MS, "follower", rng.choice(plan.form.processes).name, rng.choice((400, 1_500, 3_000)))
        for _ in range(rng.choice((1, 2, 3)))
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *slow))))


def _with_keys(rng: random.Random, plan: Plan) -> Plan:
    """Where a policy learns, and its models stay: in some plans each key has a state, and some forget in a moment."""
    if plan.form.policy == "static" or plan.form.deployed or rng.random() > _KEYED:
        return plan
    forget_after_ms = rng.choice((1_000, 1_500, 86_400_000))
    return replace(plan, form=replace(plan.form, keyed=True, forget_after_ms=forget_after_ms))


def _with_lost_leaders(rng: random.Random, plan: Plan) -> Plan:
    """In some plans one of three brokers dies, or one after the other."""
    if rng.random() > _LEADERS:
        return plan
    lost = [
        Fault(
            at_ms=rng.random() * LOAD_MS,
            kind="leader",
            for_ms=rng.choice((300, 800, 1_500)),
            point=rng.choice(("", "append")),
            number=rng.randrange(BROKERS),
        )
        for _ in range(rng.choice((1, 2, 3)))
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *lost))))


def _with_static_members(rng: random.Random, plan: Plan) -> Plan:
    """In some plans a process that comes again takes its own place, and some are restarted by way of their twins."""
    if rng.random() > _STATIC:
        return plan
    hands = [
        Fault(rng.random() * LOAD_MS, "hand", rng.choice(plan.form.processes).name)
        for _ in range(rng.choice((1, 2, 3)))
    ]
    return replace(plan, form=replace(plan.form, static=True), faults=tuple(sorted((*plan.faults, *hands))))


def _with_outage(rng: random.Random, plan: Plan) -> Plan:
    """In a quarter of the plans nobody may ask for more than a second, and all are gone for longer than that."""
    if rng.random() > _OUTAGES:
        return plan
    form = plan.form
    form = replace(form, max_deadline_ms=_SHORT_MS, deadline_ms=min(form.deadline_ms, _SHORT_MS))
    bursts = tuple(
        burst._replace(asks=tuple(ask._replace(deadline_ms=min(ask.deadline_ms, _SHORT_MS)) for ask in burst.asks))
        for burst in plan.bursts
    )
    outage = Fault(
        rng.random() * LOAD_MS / 3, "outage", for_ms=rng.choice((1_800, 2_500, 3_500)), point=rng.choice(("", "all"))
    )
    return replace(plan, form=form, bursts=bursts, faults=tuple(sorted((*plan.faults, outage))))


def _form(rng: random.Random) -> Form:
    fused = rng.random() < 0.65
    combine = rng.choice(("vote", "vote", "mean_probability", "mean", "best"))
    pools = ("main",) if fused else ("left", "right")
    names = NAMES[: rng.choice((2, 2, 2, 3))]
    versions = [str(rng.choice((1, 2))) for _ in names]
    models = tuple(
        ModelForm(
            name=name,
            version=version,
            pool=pools[i % len(pools)],
            a_ms=rng.choice((0.5, 2.0, 8.0)),
            b_ms=rng.choice((0.01, 0.05, 0.2, 0.8)),
            batching=rng.choice(("auto", "auto", "auto", "aimd", "quantile", "fixed")),
        )
        for i, (name, version) in enumerate(zip(names, versions, strict=True))
    )
    return Form(
        partitions=rng.choice((1, 2, 2, 3, 4)),
        fused=fused,
        models=models,
        processes=_processes(rng, fused, pools),
        policy=rng.choice(("static", "hedge", "exp3")),
        combine=combine,
        input=rng.choice(("rows", "oip", "raw")),
        deadline_ms=rng.choice(_DEADLINES),
        has_default=rng.random() < 0.5,
        decide_early=rng.random() < 0.7,
        epoch_delay_ms=rng.choice((750, 1_500)),
        session_ms=rng.choice((1_000, 1_500)),
        join_window_ms=_SHORT_WINDOW_MS if rng.random() < 0.15 else 8_000,
        publish_every_outcomes=rng.choice((5, 20, 100)),
        cache=rng.random() < 0.2,
        max_wait_ms=rng.choice((0, 0, 5)),
        exactly_once=rng.random() < 0.35,
        deployed=_deployed(rng, models) if rng.random() < (0.2 if fused else 0.5) else (),
    )


def _deployed(rng: random.Random, models: tuple[ModelForm, ...]) -> tuple[ModelForm, ...]:
    """A new version of a model, or of all; a model more; or, of three, one less."""
    i, luck = rng.randrange(len(models)), rng.random()
    if luck < 0.65:
        changed = range(len(models)) if luck < 0.3 else (i,)
        return tuple(
            model._replace(version="2" if model.version == "1" else "1") if at in changed else model
            for at, model in enumerate(models)
        )
    if luck > 0.8 and len(models) > 2:
        if sum(model.pool == models[i].pool for model in models) == 1:
            i = 0  # each pool keeps a model
        return (*models[:i], *models[i + 1 :])
    more = models[0]._replace(name=NAMES[len(models)], version="1", pool=models[i].pool)
    return (*models[:i], more, *models[i:])


def _processes(rng: random.Random, fused: bool, pools: tuple[str, ...]) -> tuple[Process, ...]:
    wanted = [("worker", pool) for pool in pools for _ in range(rng.choice((1, 2, 2, 3) if fused else (1, 1, 2)))]
    if not fused:
        wanted += [("aggregate", "")] * rng.choice((1, 2))
    wanted += [("learn", "")] * rng.choice((1, 1, 1, 2))
    counts: dict[str, int] = {}
    processes = []
    for role, pool in wanted:
        kind = pool or role
        counts[kind] = counts.get(kind, 0) + 1
        odd = rng.random() < 0.5
        processes.append(
            Process(
                name=f"{kind}-{counts[kind]}",
                role=role,
                pool=pool,
                skew_ms=rng.choice((-20_000.0, -300.0, 40.0, 5_000.0)) if odd else 0.0,
                rate=1.0 + rng.choice((-2e-4, 2e-4)) if odd else 1.0,
            )
        )
    return tuple(processes)


def _bursts(rng: random.Random, form: Form, requests: int) -> tuple[Burst, ...]:
    bursts: list[Burst] = []
    number = 0
    own_deadlines = rng.random() < 0.5
    malformed_share = rng.choice((0.0, 0.01, 0.03))
    size = rng.choice((60, 120, 200))
    hopeless = form.join_window_ms == _SHORT_WINDOW_MS  # some feedback that waits for ten seconds before it is given up
    while number < requests:
        n = min(requests - number, max(1, round(size * rng.choice((0.1, 1.0, 1.0, 2.0)))))
        deadline = rng.choice((0, 0, *_DEADLINES)) if own_deadlines else 0
        asks = tuple(_ask(rng, number + i, deadline, malformed_share, hopeless) for i in range(n))
        bursts.append(Burst(rng.random() * LOAD_MS, rng.randrange(form.partitions), asks))
        number += n
    if rng.random() < 0.4:  # some clients write in transactions
        for i, burst in enumerate(bursts):
            if rng.random() < 0.3:
                held_ms = rng.choice((1.0, 5.0, 20.0, 200.0))
                bursts[i] = burst._replace(held_ms=held_ms, aborted=rng.random() < 0.4)
    bursts.sort()
    return tuple(bursts)


def _ask(rng: random.Random, number: int, deadline: int, malformed_share: float, hopeless: bool) -> Ask:
    luck = rng.random()
    if luck > 0.2:  # most requests are plain
        return Ask(number, number, deadline_ms=deadline)
    kind = rng.choice(MALFORMED) if rng.random() < malformed_share * 5 else "good"
    feedback = _feedback(rng, hopeless) if luck < 0.05 else None
    return Ask(
        number=number,
        input=rng.randrange(number) if number and rng.random() < 0.2 else number,
        kind=kind,
        rows=rng.choice((1, 1, 1, 2, 3, 17)),
        deadline_ms=deadline,
        copies=2 if rng.random() < 0.03 else 1,
        feedback=feedback,
    )


def _feedback(rng: random.Random, hopeless: bool) -> FeedbackAsk:
    kind = rng.choices(
        ("label", "reward", "id", "elsewhere", "malformed", "orphan"), (70, 8, 6, 10, 4, 4 if hopeless else 0)
    )[0]
    when = rng.random()
    delay = (
        rng.random() * 400
        if when < 0.8
        else -rng.random() * 30
        if when < 0.9 or not hopeless
        else 1_500 + rng.random() * 2_000
    )
    return FeedbackAsk(kind, delay, 2 if rng.random() < 0.08 else 1)


def _faults(rng: random.Random, form: Form) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(rng.choice((3, 5, 7, 9, 11))):
        faults.append(_fault(rng, form))
    for process in form.processes:
        if rng.random() < 0.1:
            faults.append(Fault(rng.random() * LOAD_MS / 2, "start", process.name))
    if form.deployed:
        gap_ms = rng.choice((50.0, 300.0, 900.0))
        first = rng.randrange(len(form.processes))
        faults.append(Fault(rng.random() * LOAD_MS * 0.7, "deploy", for_ms=gap_ms, number=first))
    faults.sort()
    return tuple(faults)


def _fault(rng: random.Random, form: Form) -> Fault:  # noqa: PLR0911  (one a kind)
    at, process = rng.random() * LOAD_MS, rng.choice(form.processes)
    kind = rng.choices(
        ("crash", "pause", "stop", "away", "sends", "commits", "model", "compact", "retain", "delete"),
        (14, 5, 2, 2, 6, 4, 10, 2, 3, 2),
    )[0]
    if kind == "crash":
        point = rng.choice(("", *CRASH_POINTS))
        return Fault(at, kind, process.name, rng.choice((50, 500, 2_000)), point, rng.randrange(1, 4) if point else 0)
    if kind == "pause":
        return Fault(at, kind, process.name, rng.choice((30, 900, 2_000, 3_000)))
    if kind == "stop":
        return Fault(at, kind, process.name, rng.choice((50, 500, 2_000)))
    if kind == "away":
        return Fault(at, kind, for_ms=rng.choice((300, 1_000, 2_500)))
    if kind == "sends":
        # What a learner sends late is mostly a state, or a snapshot of one.
        fate = "late" if process.role == "learn" and rng.random() < 0.4 else rng.choice(SEND_FATES)
        return Fault(at, kind, process.name, point=fate, number=rng.choice((1, 2, 5)))
    if kind == "commits":
        return Fault(at, kind, process.name, point=rng.choice(COMMIT_FATES), number=rng.choice((1, 3)))
    if kind == "model":
        worker = rng.choice([process for process in form.processes if process.role == "worker"])
        model = rng.choice([model for model in form.models if model.pool == worker.pool])
        mode = rng.choices(MODES, (2, 5, 2, 3))[0]
        return Fault(at, kind, worker.name, rng.choice((400, 1_000)), mode, model=f"{model.name}@{model.version}")
    if kind == "delete":
        return Fault(at, kind, point=str(rng.randrange(form.partitions)), number=rng.choice((0, 30, 70, 100)))
    return Fault(at, kind)
