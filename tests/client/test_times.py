"""Times as a person types them."""

from __future__ import annotations

from datetime import datetime

import pytest

from streamserve.client import UnusableInput
from streamserve.client.times import age, local_time, parse_time_ms

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("0s", 0), ("250ms", 250), ("30s", 30_000), ("10m", 600_000), ("2h", 7_200_000), ("1 d", 86_400_000)],
)
def test_a_duration_is_so_long_ago(text: str, ago_ms: int) -> None:
    assert parse_time_ms(text, NOW_MS) == NOW_MS - ago_ms


def test_an_iso_time_is_local_unless_it_names_its_zone() -> None:
    assert parse_time_ms("2023-11-14T22:13:20Z", 0) == NOW_MS
    assert parse_time_ms("2023-11-15T00:13:20.5+02:00", 0) == NOW_MS + 500
    local = datetime.fromtimestamp(NOW_MS / 1000).astimezone().replace(tzinfo=None)
    assert parse_time_ms(local.isoformat(), 0) == NOW_MS
    assert parse_time_ms(local_time(NOW_MS), 0) == NOW_MS


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "10 weeks", "yesterday", "2023-13-01", "9999999999s", "1.5h"])
def test_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(UnusableInput, match=r"is no time: expected a duration such as 30s, 10m, 2h, 7d"):
        parse_time_ms(text, NOW_MS)


@pytest.mark.parametrize(
    ("ms", "words"), [(0, "0s"), (999, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (10**9, "11d")]
)
def test_an_age_is_told_in_its_largest_unit(ms: int, words: str) -> None:
    assert age(ms) == words
