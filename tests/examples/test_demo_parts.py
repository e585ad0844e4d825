"""The demo: what it reads, sends, breaks and configures."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from examples.demo.config import write_config
from examples.demo.faults import Switch, Trouble
from examples.demo.load import plan_load
from examples.demo.record import Terminal, header, read_ref, read_terminal
from streamserve.core.messages import PROBABILITY_ONE, Choice, Predictions
from streamserve.core.reasons import Missing, Outcome, Reason
from tests.examples.made_up import MODELS, START_MS


@pytest.mark.parametrize("text", [None, b"", b"3", b"a-1", b"1-", b"-1", b"\xff-1", b"1-2-3"])
def test_what_is_no_ref(text: bytes | None) -> None:
    assert read_ref(text) is None


def test_ref_from_headers() -> None:
    assert read_ref(header([("ss-ref", b"0-1"), ("x", None), ("ss-ref", b"3-17")], "ss-ref")) == (3, 17)
    assert header(None, "ss-ref") is None


def test_reads_what_streamserve_writes() -> None:
    """Both kinds of record as the product's own encoder makes them."""
    from streamserve.kafka.codecs.predictions import encode_predictions

    n = 2
    missing = np.zeros((n, 4), np.uint8)
    missing[0, 2] = Missing.LATE
    predictions = Predictions(
        partition=np.ones(n, np.int64),
        route="digits",
        models=MODELS,
        offsets=np.arange(n, dtype=np.int64),
        append_ms=np.full(n, START_MS, np.int64),
        row_starts=np.array([0, 1, 1], np.int64),
        labels=np.array([7], np.int64),
        probabilities=None,
        classes=None,
        members=(),
        outcome=np.array([Outcome.PARTIAL, Outcome.EXPIRED], np.uint8),
        reason=np.array([Reason.MEMBERS_MISSING, Reason.DEADLINE_PASSED], np.uint8),
        confidence=np.array([0.9, np.nan]),
        choice=Choice(
            chosen=np.full(n, 15, np.uint64),
            probability=np.full(n, PROBABILITY_ONE, np.int64),
            epoch=np.full(n, 3, np.int64),
            stale=np.zeros(n, bool),
        ),
        answered=np.array([11, 0], np.uint64),
        missing=missing,
        off_epoch=np.zeros(n, bool),
        late=np.zeros(n, bool),
        ids=[None, None],
        keys=[None, None],
        traces=[None, None],
        details={},
        queue_ms=np.full(n, 3, np.int32),
        inference_ms=np.full(n, 4, np.int32),
        total_ms=np.full(n, 9, np.int32),
    )
    partial, expired = (read_terminal(value or b"", 5) for value in encode_predictions(predictions).values)
    assert partial == Terminal(
        append_ms=5,
        outcome="partial",
        reason="members_missing",
        label=7,
        answered=3,
        missing={"slow@1": "late"},
    )
    assert (expired.outcome, expired.label, expired.answered) == ("expired", None, 0)


def test_load_is_poisson_and_uses_every_image() -> None:
    images, labels = np.arange(40, dtype=np.uint8).reshape(20, 2), np.arange(20, dtype=np.int64)
    plan = plan_load(images, labels, seconds=50.0, per_second=100.0)
    gaps = np.diff([0.0, *plan.at_s])
    assert len(plan.at_s) == pytest.approx(5000, abs=350)
    assert gaps.mean() == pytest.approx(0.01, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert len(set(plan.bodies[:20])) == 20
    body = json.loads(plan.bodies[0])["inputs"][0]
    assert (body["shape"], body["data"]) == ([1, 2], images[plan.truths[0]].tolist())


def test_faults_are_in_force_in_the_middle_third_only(tmp_path: Path) -> None:
    switch = Switch(control=tmp_path / "faults.json", trouble=Trouble(broken="a", slow="b", delay_ms=300))
    seen = []
    for third in range(3):
        switch.turn(third)
        seen.append(json.loads(switch.control.read_text()))
    assert seen == [{}, {"a": {"shuffle": True}, "b": {"delay_ms": 300.0}}, {}]


def test_the_slow_model_misses_the_deadline_and_both_are_served(tmp_path: Path) -> None:
    served, trouble = write_config(tmp_path, with_cnn=False), Trouble()
    assert trouble.delay_ms > 2 * served.route.deadline_ms
    assert {f"{trouble.broken}@1", f"{trouble.slow}@1"} <= set(served.route.models)
    assert (len(served.route.models), served.pools) == (5, 3)


def test_the_network_is_added_where_torch_is(tmp_path: Path) -> None:
    served = write_config(tmp_path, with_cnn=True)
    assert served.route.models[-1] == "cnn@1"
    parsed = tomllib.loads(served.config.read_text())
    assert parsed["pools"]["networks"]["models"] == ["linear", "mlp", "cnn"]
    assert parsed["models"]["cnn"]["options"]["options"] == {"output": "logits"}
