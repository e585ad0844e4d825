"""Keyed contexts on a real broker: each user has a state of its own, in the partition of its requests. A killed learner
goes on from the contexts topic, a worker that starts decides by it, and what nobody needs any more leaves it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from streamserve.core.selection.hedge import Hedge
from streamserve.kafka.codecs.learning import decode_outcome
from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Seen, foreign_client, oip
from tests.acceptance.learners import MODEL, MODELS, Learner, app
from tests.acceptance.running import TIMEOUT_S, project

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
[app]
name = "APP"
partitions = 2
max_deadline_ms = 10000

[pools.main]
models = ["tens", "units"]

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[routes.users]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 10000
contexts = { source = "key", until = ":", keyed = true, pooling = 2.0 }

[routes.visitors]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 10000
contexts = { source = "key", keyed = true, forget_after_ms = 1000 }
"""
#: By user: partition of its requests, and which digit of the number is right for it.
USERS = {"eu:alice": (0, 0), "eu:bob": (1, 1), "us:carol": (0, 1), "dan": (1, 0)}
CONTEXT = {"eu:alice": "eu//alice", "eu:bob": "eu//bob", "us:carol": "us//carol", "dan": "//dan"}
NUMBER = 37.0


class Users:
    def __init__(self, client: Foreign) -> None:
        self._client = client
        self._n = 0
        self.feedback: list[Any] = []

    def ask(self, users: Iterable[str], route: str = "users", *, teach: bool = True) -> dict[str, Seen]:
        """One request each, and what was right for it fed back."""
        tags = {}
        for user in users:
            self._n += 1
            tags[user] = self._n
            self._client.send(
                oip([NUMBER, 0.0], [1, 2]),
                tag=self._n,
                headers=[("ss-route", route.encode())],
                key=user.encode(),
                partition=USERS[user][0],
            )
        answers = self._client.answers(tags.values())
        for user, tag in tags.items() if teach else ():
            label = [3, 7][USERS[user][1]]
            feedback = json.dumps({"id": answers[tag].ref, "label": label}).encode()
            self.feedback.append(("feedback", tag))
            headers = [("ss-ref", answers[tag].headers["ss-ref"])]
            self._client.send(
                feedback, tag=("feedback", tag), kind="feedback", headers=headers, partition=USERS[user][0]
            )
        self._client.flush()
        return {user: answers[tag] for user, tag in tags.items()}


def uninterrupted(outcomes: list[Seen]) -> dict[tuple[int, str], Any]:
    """By partition and context: what a learner that is never killed makes of these outcomes of keyed contexts."""
    policy, states, seen = Hedge(), dict[tuple[int, str], Any](), set[Any]()
    for record in sorted(outcomes, key=lambda record: (record.partition, record.offset)):
        outcome = decode_outcome(
            record.value, partition=record.partition, offset=record.offset, append_ms=record.append_ms
        )
        if outcome.route != "users" or "//" not in outcome.context or (outcome.feedback, outcome.context) in seen:
            continue
        seen.add((outcome.feedback, outcome.context))
        assert outcome.partition == outcome.ref[0]
        at = (outcome.partition, outcome.context)
        states[at] = policy.learn(states.get(at, policy.initial(MODELS)), outcome)
    return {at: json.loads(json.dumps(policy.dump(state))) for at, state in states.items()}


def snapshots(client: Foreign, route: str) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    for record in client.read("contexts"):
        name, _, context = (record.key or b"").decode().partition("/")
        if name == route:
            found[record.partition, context] = record.json
    return found


def settled(client: Foreign, n_feedback: int) -> dict[tuple[int, str], Any]:
    """The newest snapshots, when they hold all feedback and equal the uninterrupted states, number by number."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        wanted = uninterrupted(client.read("outcomes"))
        found = snapshots(client, "users")
        if sum(state["events"] for state in wanted.values()) == n_feedback and wanted == {
            at: record["data"] for at, record in found.items()
        }:
            return found
        assert time.monotonic() < until, f"learnt {found}, uninterrupted {wanted}"
        time.sleep(0.2)


def test_each_user_has_a_state_in_its_partition_whoever_dies(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with app(config) as ready, foreign_client(ready) as client:
        users = Users(client)
        for _ in range(2):
            learner = Learner(config)
            until = time.monotonic() + TIMEOUT_S
            while not learner.serves:
                assert time.monotonic() < until
                users.ask(USERS)
            for _ in range(3):
                users.ask(USERS)
            learner.end(signal.SIGKILL)
        learner = Learner(config)
        try:
            kept = settled(client, len(users.feedback))
            assert set(kept) == {(USERS[user][0], context) for user, context in CONTEXT.items()}
            users.ask(["dan"], "visitors")
            until = time.monotonic() + TIMEOUT_S
            while snapshots(client, "visitors").get((1, "//dan")) is None:
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            learner.end(signal.SIGTERM)
    # A worker that starts, and no learner: what it decides by was read from the contexts topic.
    with app(config) as ready, foreign_client(ready) as client:
        users = Users(client)
        until = time.monotonic() + TIMEOUT_S
        while any(answer.parameters.get("stale") for answer in users.ask(USERS, teach=False).values()):
            assert time.monotonic() < until, "keyed states are not loaded"
        for user, answer in users.ask(USERS, teach=False).items():
            partition, right = USERS[user]
            record = kept[partition, CONTEXT[user]]
            assert answer.label == [[3, 7][right]], user
            assert (answer.parameters["context"], answer.parameters["epoch"]) == (CONTEXT[user], record["epoch"])
        unknown = users.ask(["dan"], "visitors", teach=False)["dan"]
        assert unknown.parameters["epoch"] == -1  # forgotten a second after it was learnt
        learner = Learner(config)
        try:
            until = time.monotonic() + TIMEOUT_S
            while snapshots(client, "visitors")[1, "//dan"] is not None:
                assert time.monotonic() < until, "no tombstone"
                time.sleep(0.5)
            assert {at: each["data"] for at, each in snapshots(client, "users").items()} == {
                at: each["data"] for at, each in kept.items()
            }
        finally:
            learner.end(signal.SIGTERM)
