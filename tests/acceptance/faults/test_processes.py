"""Processes that are killed, stopped, scaled, down, or on a machine with a wrong clock."""

from __future__ import annotations

import pytest

from streamserve.chaos.app import Form
from tests.acceptance.faults.conftest import Check

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_killed_worker(check: Check) -> None:
    check("kill-worker", "fused")


def test_a_killed_aggregator(check: Check) -> None:
    check("kill-aggregator", "split")


def test_a_killed_learner_disturbs_nobody(check: Check) -> None:
    check("kill-learner", "fused")


def test_all_roles_killed_at_once(check: Check) -> None:
    check("kill-all", "split")


@pytest.mark.parametrize(("role", "form"), [("worker", "fused"), ("aggregator", "split")])
def test_a_zombie_that_was_stopped_beyond_its_session(check: Check, role: str, form: Form) -> None:
    check(f"pause-{role}", form)


@pytest.mark.parametrize(("fault", "form"), [("scale", "fused"), ("scale-6", "split")])
def test_scaling_out_and_in_under_load(check: Check, fault: str, form: Form) -> None:
    check(fault, form)


@pytest.mark.parametrize(("fault", "form"), [("rolling", "fused"), ("rolling", "split"), ("rolling-tight", "fused")])
def test_every_process_is_restarted_in_turn(check: Check, fault: str, form: Form) -> None:
    check(fault, form)


@pytest.mark.parametrize(("fault", "form"), [("clock-fast", "split"), ("clock-slow", "fused")])
def test_a_machine_whose_clock_is_ten_minutes_wrong(check: Check, fault: str, form: Form) -> None:
    found = check(fault, form).account
    assert found.default + found.expired <= found.acknowledged // 10


def test_after_an_outage_fresh_requests_come_first_and_the_old_ones_get_their_records(check: Check) -> None:
    found = check("outage", "split").account
    assert found.expired + found.late > 0
