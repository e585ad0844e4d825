from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.topics.names import (
    MAX_APP_CHARACTERS,
    MAX_TOPIC_CHARACTERS,
    IllegalName,
    Kind,
    TopicName,
    check_app,
    parse_topic_name,
    topic_name,
)

WORDS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
#: Also words that look like the rest of a name, since that is where builder and parser would disagree.
APPS = st.lists(WORDS | st.sampled_from([*Kind, "v1", "v2"]), min_size=1, max_size=5).map(".".join)


@given(app=APPS, kind=st.sampled_from(Kind), version=st.integers(1, 999_999))
def test_a_built_name_parses_to_what_it_was_built_from(app: str, kind: Kind, version: int) -> None:
    name = topic_name(app, kind, version)
    assert parse_topic_name(name) == TopicName(app=app, kind=kind, version=version)
    assert str(parse_topic_name(name)) == name


@given(st.text(max_size=40) | st.from_regex(r"[a-z._-]{1,20}\.(requests|answers)\.v[0-9]{1,3}", fullmatch=True))
def test_any_text_is_refused_or_survives_the_round_trip(text: str) -> None:
    try:
        parsed = parse_topic_name(text)
    except IllegalName:
        return
    assert topic_name(parsed.app, parsed.kind, parsed.version) == text


@given(app=APPS, kind=st.sampled_from(Kind))
def test_a_name_is_legal_for_kafka(app: str, kind: Kind) -> None:
    name = topic_name(app, kind)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    assert len(name) <= MAX_TOPIC_CHARACTERS
    assert "_" not in name
    assert name not in {".", ".."}


def test_the_longest_app_still_fits() -> None:
    longest = "a" * MAX_APP_CHARACTERS
    assert len(topic_name(longest, Kind.PREDICTIONS, 999_999)) == MAX_TOPIC_CHARACTERS
    with pytest.raises(IllegalName, match=f"at most {MAX_APP_CHARACTERS}"):
        check_app(longest + "a")


@pytest.mark.parametrize("app", ["", "Digits", "my_app", ".a", "a.", "a..b", "-a", "a-", "a b", "é", "a/b", "a\n"])
def test_an_app_name_that_kafka_or_tools_would_trip_over_is_refused(app: str) -> None:
    with pytest.raises(IllegalName, match="allowed are"):
        topic_name(app, Kind.REQUESTS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("requests", "expected <app>.<kind>.v<version>"),
        ("digits.orders.v1", "'orders' is not one of requests, answers"),
        ("digits.requests.v0", "'v0' is not a version"),
        ("digits.requests.v01", "'v01' is not a version"),
        ("digits.requests.1", "'1' is not a version"),
        ("Digits.requests.v1", "app name 'Digits'"),
        ("digits.requests.v1\n", "is not a version"),
    ],
)
def test_a_foreign_name_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(IllegalName, match=words):
        parse_topic_name(name)


@pytest.mark.parametrize("version", [0, -1, 1_000_000])
def test_a_version_that_would_not_parse_is_not_built(version: int) -> None:
    with pytest.raises(IllegalName, match="allowed are 1 to 999999"):
        topic_name("digits", Kind.REQUESTS, version)
