"""The broker is killed, its disk is full, its log is cut, a topic grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamserve.chaos.run import started
from tests.acceptance.faults.conftest import Check, done

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_killed_broker_that_is_started_again(check: Check) -> None:
    check("kill-broker", "split")


def test_a_broker_that_is_away_for_longer_than_a_session(check: Check) -> None:
    check("broker-away", "fused")


def test_one_of_three_brokers_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "kafka", nodes=3) as cluster:
        done("kill-leader", "fused", cluster, tmp_path)


def test_a_full_disk(check: Check) -> None:
    check("disk-full", "fused")


def test_requests_that_are_deleted_under_their_readers(check: Check) -> None:
    assert check("truncate", "split").account.deleted > 0


def test_a_requests_topic_with_more_partitions_than_the_others_have(check: Check) -> None:
    check("grow", "split")
