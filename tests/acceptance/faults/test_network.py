"""The network between roles and broker is cut, slow, or forgets connections."""

from __future__ import annotations

import pytest

from tests.acceptance.faults.conftest import Check

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_cut_shorter_than_a_session(check: Check) -> None:
    check("cut", "split")


def test_one_machine_is_cut_off_for_longer_than_its_session(check: Check) -> None:
    check("cut-one", "split")


def test_connections_that_lead_nowhere(check: Check) -> None:
    check("half-open", "fused")


def test_a_slow_link(check: Check) -> None:
    found = check("slow-link", "split").account
    assert found.in_time == found.acknowledged


def test_connections_that_are_reset(check: Check) -> None:
    check("resets", "fused")
