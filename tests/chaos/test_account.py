"""What the account says of runs made up by hand."""

from __future__ import annotations

from typing import Any

from streamserve.chaos.account import Account, Acknowledged, Terminal, key_of_ref, ref_key, settle

DEADLINE_MS = 100
FAULT_MS = 10_000
END_MS = 20_000
EVERY_MS = 10


def run(*, but: Any = lambda at_ms: True, terminal: Any = lambda at_ms: [(at_ms + 5, "ok")]) -> Account:
    """A request every 10 ms in one partition. `terminal`: append time -> terminal records (time, outcome)."""
    acknowledged, found = Acknowledged(), []
    for offset, at_ms in enumerate(range(0, END_MS, EVERY_MS)):
        if but(at_ms):
            acknowledged.keys.append(ref_key(0, offset))
            acknowledged.append_ms.append(at_ms)
            found += [(when, ref_key(0, offset), outcome) for when, outcome in terminal(at_ms)]
    records = Terminal()
    for when, key, outcome in sorted(found):
        records.keys.append(key)
        records.append_ms.append(when)
        records.outcomes.append(outcome)
    return settle(
        acknowledged,
        records,
        deadline_ms=DEADLINE_MS,
        fault_ms=(FAULT_MS, FAULT_MS),
        end_ms=END_MS,
        partitions=1,
    )


def test_a_ref_is_read_as_it_is_written() -> None:
    assert key_of_ref(b"3-1234567") == ref_key(3, 1_234_567)


def test_undisturbed_service() -> None:
    found = run()
    assert (found.acknowledged, found.in_time, found.lost, found.twice, found.late) == (2_000, 2_000, 0, 0, 0)
    assert found.longest_gap_s == EVERY_MS / 1_000
    assert found.normal_after_s == 0
    assert (found.p50_ms, found.p99_ms) == (5, 5)


def test_what_is_lost_repeated_late_default_and_expired() -> None:
    outcomes = {
        10_000: [],
        10_010: [(10_015, "ok"), (10_016, "ok"), (10_017, "expired")],
        10_020: [(10_121, "ok")],
        10_030: [(10_120, "partial")],
        10_040: [(10_120, "default")],
        10_050: [(10_200, "expired")],
        10_060: [(10_200, "error")],
    }
    found = run(terminal=lambda at_ms: outcomes.get(at_ms, [(at_ms + 5, "ok")]))
    assert (found.lost, found.twice, found.late) == (1, 1, 1)
    assert (found.default, found.expired, found.error) == (1, 1, 1)
    assert found.in_time == 2_000 - 5


def test_a_stall_is_a_gap_and_service_is_normal_when_it_is_over() -> None:
    found = run(terminal=lambda at_ms: [(13_000 if 10_500 <= at_ms < 13_000 else at_ms + 5, "ok")])
    assert 2.4 <= found.longest_gap_s <= 2.6
    assert found.normal_after_s == 3.0
    assert found.late > 200


def test_service_that_never_comes_back() -> None:
    found = run(terminal=lambda at_ms: [(at_ms + 5, "ok")] if at_ms < 12_000 else [(at_ms + 200, "expired")])
    assert 7.9 <= found.longest_gap_s <= 8.1
    assert found.normal_after_s == 10.0


def test_a_time_in_which_nobody_could_send_is_not_normal() -> None:
    found = run(but=lambda at_ms: not 10_000 <= at_ms < 14_000)
    assert found.lost == 0
    assert found.normal_after_s == 4.0


def test_what_was_deleted_on_purpose_is_not_lost_and_strangers_are_counted() -> None:
    acknowledged = Acknowledged(keys=[ref_key(0, 0), ref_key(0, 1)], append_ms=[10, 20], failed=1)
    terminal = Terminal(keys=[ref_key(0, 1), ref_key(0, 2)], append_ms=[30, 40], outcomes=["ok", "ok"])
    found = settle(
        acknowledged,
        terminal,
        deadline_ms=100,
        fault_ms=(15, 15),
        end_ms=50,
        deleted=[ref_key(0, 0)],
        partitions=1,
    )
    assert (found.lost, found.deleted, found.unknown, found.failed_sends) == (0, 1, 1, 1)
