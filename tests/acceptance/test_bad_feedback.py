"""Bad feedback on a real broker: nothing is learnt from it, byte for byte; it is counted and kept as a dead letter."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Headers, Seen, foreign_client, oip
from tests.acceptance.running import TIMEOUT_S, Up, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.beside, pytest.mark.slow, pytest.mark.timeout(240)]

KEPT_BYTES = 65_536
WINDOW_MS = 30_000
MODEL = """
import time
import numpy as np

def tens(batch):
    return batch[:, 0].astype(np.int64) // 10

def units(batch):
    return batch[:, 0].astype(np.int64) % 10

def slow(batch):
    time.sleep(1.0)
    return batch[:, 0]
"""
CONFIG = f"""
[app]
name = "APP"
partitions = 2

[pools.main]
models = ["tens", "units", "slow"]

[models.tens]
source = "acceptance_models:tens"

[models.units]
source = "acceptance_models:units"

[models.slow]
source = "acceptance_models:slow"

[learn]
join_window_ms = {WINDOW_MS}

[routes.main]
models = ["tens", "units"]
policy = "hedge"
deadline_ms = 20000
decide_early = false

[routes.expires]
models = ["slow"]
policy = "hedge"
deadline_ms = 300
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One feedback that teaches nothing, and the reason in its dead letter."""

    value: bytes
    reason: str
    headers: Headers | None = None
    """None: the ref of the prediction."""


def about(**fields: Any) -> bytes:
    return json.dumps({"id": "known", **fields}).encode()


def bad_feedback() -> dict[str, Bad]:
    return {
        "a reward that is no number": Bad(value=b'{"id":"known","reward":NaN}', reason="not_json"),
        "an infinite reward": Bad(value=b'{"id":"known","reward":Infinity}', reason="not_json"),
        "a reward beyond every float": Bad(value=b'{"id":"known","reward":1e999}', reason="wrong_datatype"),
        "a reward above 1": Bad(value=about(reward=1.0001), reason="wrong_datatype"),
        "a reward below 0": Bad(value=about(reward=-1e-9), reason="wrong_datatype"),
        "a reward that is text": Bad(value=about(reward="1"), reason="wrong_datatype"),
        "a reward that is a truth value": Bad(value=about(reward=True), reason="wrong_datatype"),
        "neither label nor reward": Bad(value=about(), reason="wrong_form"),
        "a label of another kind": Bad(value=about(label="three"), reason="label_kind"),
        "a label that is an object": Bad(value=about(label={"class": 3}), reason="label_kind"),
        "a label for more rows": Bad(value=about(label=[3, 4]), reason="label_rows"),
        "a label beyond 64 bits": Bad(value=b'{"id":"known","label":%d}' % (1 << 70), reason="wrong_datatype"),
        "a model that was not asked": Bad(value=about(label=3, model="slow@1"), reason="unknown_model"),
        "a model that does not exist": Bad(value=about(label=3, model="tens@7"), reason="unknown_model"),
        "no object": Bad(value=b"[1, 2]", reason="wrong_form"),
        "cut off": Bad(value=b'{"id":"known","lab', reason="not_json"),
        "another encoding": Bad(value="{\"id\":\"bl\u00e4\",\"label\":3}".encode("latin-1"), reason="not_json"),
        "nothing": Bad(value=b"", reason="empty_value"),
        "7 MB": Bad(value=about(label=["x" * 1000] * 7_000), reason="too_large"),
        "a ref that is none": Bad(value=about(label=3), reason="bad_header", headers=[("ss-ref", b"one")]),
        "an unknown ref": Bad(value=about(label=3), reason="orphan", headers=[("ss-ref", b"0-99999")]),
        "an unknown id": Bad(
            value=json.dumps({"id": "never asked", "label": 3}).encode(), reason="orphan", headers=[]
        ),
    }  # fmt: skip


def ask(client: Foreign, tag: str, route: str) -> Seen:
    headers = [("ss-route", route.encode())]
    client.send(oip([float(31), 0.0], [1, 2], id="known"), tag=tag, headers=headers, partition=0)
    return client.answers([tag])[tag]


def feed(client: Foreign, about: Seen, value: bytes, tag: Any, headers: Headers | None = None) -> None:
    own = [("ss-ref", about.headers["ss-ref"])] if headers is None else headers
    client.send(value, tag=tag, kind="feedback", headers=own, partition=about.partition)


def letters(client: Foreign, wanted: int) -> dict[tuple[int, int], Seen]:
    """Dead letters of feedback by where it landed, as soon as there are so many."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        found = {
            (int(letter.headers["__connect.errors.partition"]), int(letter.headers["__connect.errors.offset"])): letter
            for letter in client.read("dlq")
        }
        if len(found) >= wanted:
            return found
        assert time.monotonic() < until, f"{len(found)} of {wanted} dead letters: {sorted(found)}"


def states(client: Foreign) -> list[tuple[int, int, bytes | None]]:
    return [(record.partition, record.offset, record.value) for record in client.read("epochs")]


def wait_for_outcomes(client: Foreign, wanted: int) -> list[Any]:
    until = time.monotonic() + TIMEOUT_S
    while len(found := client.read("outcomes")) < wanted:
        assert time.monotonic() < until, f"{len(found)} of {wanted} outcomes"
    return [record.json for record in found]


def test_bad_feedback_changes_no_state(broker: BrokerForTests, tmp_path: Path) -> None:
    config = project(tmp_path, config=CONFIG, model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=tmp_path / "state") as up, foreign_client(up.ready) as client:
        client.producer = confluent_kafka.Producer(
            {"bootstrap.servers": client.servers, "message.max.bytes": 12_000_000, "log_level": 0}
        )
        answered = ask(client, "asked", "main")
        feed(client, answered, about(label=3), "good")
        client.flush()
        wait_for_outcomes(client, 1)
        until = time.monotonic() + TIMEOUT_S
        while not (before := states(client)):
            assert time.monotonic() < until

        cases = bad_feedback()
        for name, bad in cases.items():
            feed(client, answered, bad.value, name, bad.headers)
        client.flush()
        check_letters(client, cases)
        check_expired(client)
        check_larger_than_any_record(client)
        assert states(client) == before
        check_counts(up, cases)
        check_late(client, answered)
        assert states(client) == before
        assert up.restarts() == {"worker-main-0": 0, "learn-0": 0}
        up.stop()


def check_letters(client: Foreign, cases: dict[str, Bad]) -> None:
    found = letters(client, len(cases))
    by_origin = {
        (int(origin[0]), int(origin[1])): letter
        for letter in found.values()
        if (origin := letter.headers.get("ss-origin", b"").decode().split("-")) != [""]
    }
    for name, bad in cases.items():
        place = client.acknowledged[name]
        letter = found.get(place) or by_origin[place]  # without a ref it was looked for in the other partition too
        assert letter.headers["ss-reason"].decode() == bad.reason, name
        assert (letter.value or b"") == bad.value[:KEPT_BYTES], name
    assert len(found) == len(cases)


def check_expired(client: Foreign) -> None:
    """A label for a request that nobody answered judges nobody; it is kept, for whoever retrains."""
    expired = ask(client, "expires", "expires")
    assert expired.outcome == "expired"
    feed(client, expired, about(label=3), "of an expired one")
    client.flush()
    outcome = wait_for_outcomes(client, 2)[-1]
    assert (outcome["decision"]["outcome"], outcome["losses"], outcome["label"]) == ("expired", {}, 3)


def check_larger_than_any_record(client: Foreign) -> None:
    """10 MB never reach the topic: its limit is 8 MiB, and the sender is told."""
    refused: list[Any] = []
    client.producer.produce(
        client.topics["feedback"],
        about(label="x" * 10_000_000),
        partition=0,
        on_delivery=lambda error, _: refused.append(error),
    )
    client.flush()
    assert [error.code() for error in refused] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def check_counts(up: Up, cases: dict[str, Bad]) -> None:
    port = up.role("learn-0")["metrics_port"]
    wanted = Counter(bad.reason for bad in cases.values())
    counted = {
        reason: metric(port, "streamserve_dlq_records_total", source="feedback", reason=reason) for reason in wanted
    }
    assert counted == dict(wanted)


def check_late(client: Foreign, answered: Seen) -> None:
    """After the join window its prediction is too old to be judged."""
    time.sleep(max(0.0, (answered.append_ms + WINDOW_MS + 500) / 1000 - time.time()))
    before = len(letters(client, 1))
    feed(client, answered, about(label=3), "late")
    client.flush()
    assert letters(client, before + 1)[client.acknowledged["late"]].headers["ss-reason"] == b"late"
