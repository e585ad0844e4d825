"""`kill -9` of the learner at twenty random points: its final state is that of a learner that nobody killed."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from streamserve.core.selection.base import Policy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.watched import Watched
from streamserve.kafka.codecs.learning import decode_outcome
from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.learners import MODEL, MODELS, Learner, app
from tests.acceptance.running import TIMEOUT_S, project

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 20
SEED = 20_261_130
RATE_PER_S = 60
LONGEST_LIFE_S = 1.5
LONGEST_STEP_S = 0.5
POLICIES: dict[str, Policy] = {
    "hedge": Watched(policy=Hedge(), combine="vote"),
    "exp3": Watched(policy=Exp3(eta=0.1, gamma=0.1), combine="best"),
}
CONFIG = """
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["tens", "units"]

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[routes.hedge]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 20000
decide_early = false

[routes.exp3]
models = ["tens", "units"]
policy = { name = "exp3", eta = 0.1, gamma = 0.1 }
deadline_ms = 20000
"""


class Load:
    """Requests of both routes at a steady rate; each prediction's label is fed back as it comes."""

    def __init__(self, client: Foreign) -> None:
        self._client = client
        self._last_s = time.monotonic()
        self._due = 0.0
        self.requests: list[int] = []
        self.feedback: list[tuple[str, int]] = []
        self._taught: set[str] = set()

    def run_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            now_s = time.monotonic()
            self._due += RATE_PER_S * min(
                LONGEST_STEP_S, now_s - self._last_s
            )  # a machine that stood still owes nothing
            self._last_s = now_s
            while self._due >= 1.0:
                self._due -= 1.0
                self._ask(len(self.requests))
            self._teach(self._client.hear(0.01))

    def finish(self) -> None:
        """Until every request has its prediction, and each of those its feedback."""
        self._client.flush()
        until = time.monotonic() + TIMEOUT_S
        while len(self._taught) < len(self.requests):
            assert time.monotonic() < until
            self._teach(self._client.hear(0.05))
        self._client.flush()

    def _ask(self, number: int) -> None:
        route = "hedge" if number % 2 else "exp3"
        headers = [("ss-route", route.encode())]
        self._client.send(oip([float(number % 100), 0.0], [1, 2]), tag=number, headers=headers)
        self.requests.append(number)

    def _teach(self, predictions: list[Seen]) -> None:
        for prediction in predictions:
            if prediction.ref in self._taught:
                continue
            self._taught.add(prediction.ref)
            value = json.dumps({"id": prediction.ref, "label": len(self._taught) % 7 % 2}).encode()
            headers = [("ss-ref", prediction.headers["ss-ref"])]
            # Every fifth is sent to the other partition, and has to be forwarded.
            where = (prediction.partition + (len(self._taught) % 5 == 0)) % self._client.partitions
            tag = ("feedback", len(self.feedback))
            self._client.send(value, tag=tag, kind="feedback", headers=headers, partition=where)
            self.feedback.append(tag)


def uninterrupted(outcomes: list[Seen], route: str) -> Any:
    """What a learner that is never killed makes of these outcomes: each feedback's first, in the order of the log."""
    policy, seen = POLICIES[route], set[tuple[int, int]]()
    state = policy.initial(MODELS)
    for record in sorted(outcomes, key=lambda record: (record.partition, record.offset)):
        outcome = decode_outcome(
            record.value, partition=record.partition, offset=record.offset, append_ms=record.append_ms
        )
        if outcome.route == route and outcome.feedback not in seen:
            seen.add(outcome.feedback)
            state = policy.learn(state, outcome)
    return json.loads(json.dumps(policy.dump(state)))


def newest(client: Foreign, kind: str, route: str) -> Any:
    """The newest state of a route in the epochs topic, or the newest snapshot."""
    found = [value["data"] for record in client.read(kind) if (value := record.json) and value["route"] == route]
    return found[-1] if found else None


def test_twenty_kills_leave_the_state_of_a_learner_that_nobody_killed(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    moments = random.Random(SEED)
    with app(config) as ready, foreign_client(ready) as client:
        load, began_s = Load(client), time.monotonic()
        for number in range(KILLS):
            learner = Learner(config)
            if number % 4:  # every fourth is killed wherever it is in its start
                while not learner.serves:
                    load.run_for(0.05)
            load.run_for(moments.uniform(0.0, LONGEST_LIFE_S))
            learner.end(signal.SIGKILL)
        killed_s = time.monotonic() - began_s
        load.finish()
        learner = Learner(config)
        try:
            while not learner.serves:
                load.run_for(0.05)
            load.finish()
            outcomes = wait_for_feedback(client, load)
            states = {route: wait_for_state(client, route) for route in POLICIES}
        finally:
            learner.end(signal.SIGTERM)
        print(
            f"{KILLS} kills in {killed_s:.0f} s, {len(load.feedback)} feedback, {len(outcomes)} outcomes, "
            + ", ".join(f"{route}: {state['events']} learnt" for route, state in states.items())
        )


def wait_for_feedback(client: Foreign, load: Load) -> list[Seen]:
    """All outcomes, once each feedback has one; none has another's."""
    sent = {client.acknowledged[tag] for tag in load.feedback}
    until = time.monotonic() + TIMEOUT_S
    while True:
        outcomes = client.read("outcomes")
        joined = {tuple(record.json["feedback"]) for record in outcomes}
        assert joined <= sent
        if joined == sent:
            return outcomes
        assert time.monotonic() < until, f"{len(sent - joined)} of {len(sent)} feedback have no outcome"


def wait_for_state(client: Foreign, route: str) -> Any:
    """The final state and its snapshot: both equal to the uninterrupted one's, number by number."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        wanted = uninterrupted(client.read("outcomes"), route)
        found = newest(client, "epochs", route)
        if found == wanted == newest(client, "policy", route):
            return found
        assert time.monotonic() < until, f"{route}: learnt {found}, uninterrupted {wanted}"
