"""What becomes of requests when there are more than the models can answer."""

from __future__ import annotations

import pytest

from tests.core.overload_case import DEADLINE_MS, Overload, Source, steady

CAPACITY_PER_S = 1_900


@pytest.mark.slow
def test_goodput_holds_far_above_the_capacity() -> None:
    best = max(
        Overload(sources=[Source(per_ms=steady(share * CAPACITY_PER_S))]).run().good for share in (0.9, 1.0, 1.1)
    )
    for times in (2, 5, 10):
        case = Overload(sources=[Source(per_ms=steady(times * CAPACITY_PER_S))]).run()
        assert case.good >= 0.9 * best, times
        assert sum(case.reasons.values()) == case.sent
        assert case.most_open <= 1.5 * times * CAPACITY_PER_S * DEADLINE_MS / 1000
        assert sum(case.shed.values()) >= 0.9 * (case.sent - case.good)


@pytest.mark.slow
def test_a_slow_way_to_the_log_is_learnt_and_allowed_for() -> None:
    """45 ms to an append, three times the configured guard: what is answered is still answered in time."""
    case = Overload(sources=[Source(per_ms=steady(5 * CAPACITY_PER_S))], seconds=3.0, way_ms=45).run()
    assert case.good >= 0.85 * CAPACITY_PER_S * case.seconds
    assert case.reasons["ok"] - case.good <= 0.05 * case.reasons["ok"]


def test_a_flood_from_the_first_request_on_is_met_too() -> None:
    """Nothing is known of the model yet: its first calls are believed, not taken for spikes."""
    case = Overload(sources=[Source(per_ms=steady(10 * CAPACITY_PER_S))], seconds=2.0).run()
    assert case.good >= 0.75 * 2 * CAPACITY_PER_S


@pytest.mark.slow
def test_the_load_falls_and_all_is_well_again() -> None:
    falls_ms = 3_000
    source = Source(per_ms=lambda t: CAPACITY_PER_S / 1000 * (5 if t < falls_ms else 0.5))
    case = Overload(sources=[source], seconds=6.0).run()
    for second in (4, 5):
        assert case.good_by_second[second] >= 0.95 * 0.5 * CAPACITY_PER_S


@pytest.mark.slow
def test_a_higher_priority_is_shed_last() -> None:
    urgent = Source(per_ms=steady(0.5 * CAPACITY_PER_S), headers=(("ss-priority", b"5"),))
    plain = Source(per_ms=steady(4 * CAPACITY_PER_S))
    batch = Source(per_ms=steady(4 * CAPACITY_PER_S), headers=(("ss-priority", b"-1"),))
    case = Overload(sources=[batch, plain, urgent], seconds=3.0).run()
    assert urgent.good >= 0.97 * urgent.sent
    assert plain.good >= 0.4 * CAPACITY_PER_S * case.seconds
    assert batch.good <= 0.1 * plain.good


@pytest.mark.slow
def test_a_flood_of_one_key_leaves_the_others_alone() -> None:
    quiet = [Source(per_ms=steady(0.1 * CAPACITY_PER_S), key=b"quiet-%d" % i) for i in range(4)]
    flood = Source(per_ms=steady(8 * CAPACITY_PER_S), key=b"flood")
    case = Overload(sources=[flood, *quiet], seconds=3.0).run()
    for source in quiet:
        assert source.good >= 0.97 * source.sent
    assert flood.good >= 0.4 * CAPACITY_PER_S * case.seconds


@pytest.mark.slow
def test_members_are_dropped_before_requests() -> None:
    """Four models share a core that one of them could keep busy."""
    one = Overload(sources=[Source(per_ms=steady(3_400))], models=4, row_ms=0.25, seconds=8.0).run()
    later = sum(one.good_by_second[second] for second in range(3, 8))
    assert later >= 0.9 * 5 * 3_400
    assert sum(n for (_, why), n in one.shed.items() if why == "thinned") > 0
    assert one.shed["m0@1", "thinned"] == 0  # of equal weights the first one stays


@pytest.mark.slow
def test_all_members_come_back_when_the_load_falls() -> None:
    falls_ms = 3_000
    source = Source(per_ms=lambda t: 3.4 if t < falls_ms else 0.5)
    case = Overload(sources=[source], models=4, row_ms=0.25, seconds=7.0).run()
    for second in (5, 6):
        assert case.good_by_second[second] >= 450
        assert case.members_by_second[second] >= 3.9 * case.good_by_second[second]


@pytest.mark.parametrize("text", [b"10", b"-10", b"high", b"", b"1.5", b"\xff", b"1_0"])
def test_a_bad_priority_is_refused_with_words(text: bytes) -> None:
    case = Overload(sources=[Source(per_ms=steady(50), headers=(("ss-priority", text),))], seconds=0.5).run()
    assert case.reasons["error"] == case.sent > 0
