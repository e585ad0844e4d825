"""The benchmark's own machinery on a real broker, with loads so small that only correctness shows."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import job
from benchmarks.driver import Step
from benchmarks.machine import choose_cores
from benchmarks.measure import Bench, MeasurementFailed, measure_drain, measure_live
from benchmarks.peers.catalogue import PEERS, Peer, Place, Plan

pytestmark = [pytest.mark.broker, pytest.mark.beside]

REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS = 0.02
_TROUBLE = ("missing", "duplicates", "wrong", "not_ok")


@pytest.fixture
def bench(broker: Any, tmp_path: Path) -> Bench:
    return Bench(
        folder=tmp_path,
        repository=REPOSITORY,
        bootstrap_servers=broker.bootstrap_servers,
        # Not pinned: `choose_cores` alone changes nothing, and the other tests need both cores.
        cores=dataclasses.replace(choose_cores(), ours=None, peer=None),
        model_files=tuple(job.train_models(tmp_path, 2)),
    )


def _peer(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


@pytest.mark.parametrize("name", ["echo", "hand", "hand-16x64", "bytewax", "bytewax-fmb"])
def test_a_drain_is_answered_once_and_right(bench: Bench, name: str) -> None:
    measured = measure_drain(bench, _peer(name), f"small-{name}", _SECONDS)
    assert measured["answers"] == measured["requests"] > 0
    assert [measured[trouble] for trouble in _TROUBLE] == [0, 0, 0, 0]
    assert measured["rss_mib"] > 5


@pytest.mark.parametrize("name", ["hand", "chain"])
def test_an_open_loop_measures_each_rate(bench: Bench, name: str) -> None:
    steps = (Step(rate_per_s=100, seconds=1.0, skip_s=0.2), Step(rate_per_s=400, seconds=1.0, skip_s=0.2))
    measured = measure_live(bench, _peer(name), f"live-{name}", steps)
    assert [step["offered_per_s"] for step in measured] == [100, 400]
    assert [step["requests"] for step in measured] == [80, 320]
    for step in measured:
        assert step["answers"] == step["requests"]
        assert 0 < step["p50_ms"] <= step["p99_ms"]
        assert [step[trouble] for trouble in _TROUBLE] == [0, 0, 0, 0]


def test_wrong_labels_are_noticed(bench: Bench) -> None:
    # The peer is given another model than the one that the check uses.
    hand = _peer("hand")

    def plan(place: Place) -> Plan:
        return hand.plan(dataclasses.replace(place, model_files=(bench.model_files[1],)))

    measured = measure_drain(bench, dataclasses.replace(hand, plan=plan), "other-model", _SECONDS)
    assert measured["wrong"] > 0


def test_a_peer_that_ends_is_named_with_its_last_words(bench: Bench) -> None:
    def plan(place: Place) -> Plan:
        command = (sys.executable, "-c", "raise SystemExit('no such model: x')")
        return Plan(serve=(command,), topics=(place.requests_topic, place.answers_topic))

    with pytest.raises(MeasurementFailed, match="no such model: x"):
        measure_drain(bench, dataclasses.replace(_peer("hand"), plan=plan), "ends", _SECONDS)


def test_a_setup_command_that_fails_is_named(bench: Bench) -> None:
    def plan(_place: Place) -> Plan:
        return Plan(serve=(), setup=((sys.executable, "-c", "raise SystemExit('topics differ')"),))

    with pytest.raises(MeasurementFailed, match="topics differ"):
        measure_drain(bench, dataclasses.replace(_peer("hand"), plan=plan), "setup", _SECONDS)
