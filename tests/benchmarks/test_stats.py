from __future__ import annotations

import math

import numpy as np
import orjson
import pytest

from benchmarks import job, stats
from benchmarks.stats import Arrival


def test_drained_rate_leaves_out_the_first_and_the_last_tenth() -> None:
    # Slow start and slow tail; 100 a second between.
    arrivals = [
        Arrival(at_s=0.0, count=1),
        Arrival(at_s=50.0, count=100),
        Arrival(at_s=54.0, count=500),
        Arrival(at_s=58.0, count=900),
        Arrival(at_s=99.0, count=1_000),
    ]
    assert stats.drained_rate_per_s(arrivals, 1_000) == pytest.approx(100.0)


def test_drained_rate_is_zero_where_the_peer_stopped_before_nine_tenths() -> None:
    arrivals = [Arrival(at_s=1.0, count=200), Arrival(at_s=2.0, count=899)]
    assert stats.drained_rate_per_s(arrivals, 1_000) == 0.0


def test_percentiles_of_nothing_are_not_numbers() -> None:
    assert all(math.isnan(value) for value in stats.percentiles_ms(np.array([])))
    assert stats.percentiles_ms(np.arange(1_001.0)) == pytest.approx((500.0, 990.0, 999.0))


def test_growth_is_one_for_a_steady_queue_and_large_for_a_growing_one() -> None:
    assert stats.growth(np.full(300, 5.0)) == pytest.approx(1.0)
    assert stats.growth(np.linspace(1.0, 900.0, 300)) > 4


def _answer(index: int, label: int, outcome: str = "ok") -> bytes:
    member = {"name": "member.other@1", "shape": [1], "datatype": "INT64", "data": [1 - label]}
    own = {"name": "label", "shape": [1], "datatype": "INT64", "data": [label]}
    return orjson.dumps({"id": f"{index:08d}", "outputs": [member, own], "parameters": {"outcome": outcome}})


def test_right_answers_are_clean() -> None:
    answers = [_answer(0, 1), _answer(1, 0)]
    assert stats.check_labels(answers, 2, {0: 1, 1: 0}).clean


@pytest.mark.parametrize(
    ("answers", "trouble"),
    [
        ([_answer(0, 1)], "missing"),
        ([_answer(0, 1), _answer(1, 0), _answer(1, 0)], "duplicates"),
        ([_answer(0, 1), _answer(1, 1)], "wrong"),
        ([_answer(0, 1), _answer(1, 0, "default")], "not_ok"),
        ([_answer(0, 1), _answer(1, 0), b"not json"], "wrong"),
    ],
)
def test_each_kind_of_trouble_is_counted(answers: list[bytes], trouble: str) -> None:
    verdict = stats.check_labels(answers, 2, {0: 1, 1: 0})
    assert getattr(verdict, trouble) == 1
    assert not verdict.clean


def test_an_answer_of_our_own_peers_reads_back() -> None:
    assert stats.read_answer(job.encode_answer("00000042", 1)) == (42, 1, True)


def test_copies_must_equal_their_requests() -> None:
    requests = [b"a", b"b", b"c"]
    assert stats.check_copies([b"c", b"a", b"b"], requests).clean
    spoilt = stats.check_copies([b"a", b"a", b"x"], requests)
    assert (spoilt.missing, spoilt.duplicates, spoilt.wrong) == (2, 1, 1)


def test_an_early_refusal_counts_as_the_deadline() -> None:
    sent_at_s = np.array([0.0, 0.0, 0.0, 0.0])
    # The second answer to request 0 comes too late to count; request 3 has none.
    answers = [(0, 0.010, True), (1, 0.002, False), (2, 2.0, False), (0, 5.0, True)]
    latencies = stats.counted_latencies_ms(sent_at_s, answers, deadline_ms=1_000)
    np.testing.assert_allclose(latencies, [10.0, 1_000.0, 2_000.0, np.nan])


def test_an_answer_without_label_is_not_ok_but_not_wrong() -> None:
    expired = orjson.dumps({"id": "00000001", "outputs": [], "parameters": {"outcome": "expired"}})
    verdict = stats.check_labels([_answer(0, 1), expired], 2, {0: 1, 1: 0})
    assert (verdict.not_ok, verdict.wrong, verdict.missing) == (1, 0, 0)
