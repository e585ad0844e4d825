"""Topic names, built and parsed in one place: `<app>.<kind>.v<version>`.

Kafka allows letters, digits, `.`, `_` and `-`, at most 249 characters; `.` and `_` collide in its metric names, and
ours hold dots, so an app's name has no `_`. Upper case is left out since tools disagree on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: Kafka's own limit on a topic's name.
MAX_TOPIC_CHARACTERS = 249
#: Version of the contract that this code writes. A new one is a new topic, so that old readers never see it.
VERSION = 1

_APP = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_VERSION = re.compile(r"v([1-9][0-9]{0,5})")


class IllegalName(ValueError):
    """A name that cannot be an app's, or that is not a topic of ours; the message says why."""


class Kind(StrEnum):
    """What a topic carries."""

    REQUESTS = "requests"
    ANSWERS = "answers"
    PREDICTIONS = "predictions"
    FEEDBACK = "feedback"
    OUTCOMES = "outcomes"
    EPOCHS = "epochs"
    POLICY = "policy"
    CONTEXTS = "contexts"
    MODELS = "models"
    INSIGHTS = "insights"
    DLQ = "dlq"


#: 249 less the longest suffix (".predictions.v1"), with room for a version of six digits.
MAX_APP_CHARACTERS = MAX_TOPIC_CHARACTERS - len(".predictions.v999999")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A topic's name, taken apart. `str()` puts it together."""

    app: str
    kind: Kind
    version: int = VERSION

    def __str__(self) -> str:
        return f"{self.app}.{self.kind}.v{self.version}"


def check_app(app: str) -> str:
    """Return `app` if it can prefix topic names; raise `IllegalName` saying what is allowed otherwise."""
    if len(app) > MAX_APP_CHARACTERS:
        raise IllegalName(f"app name of {len(app)} characters: allowed are at most {MAX_APP_CHARACTERS}")
    if not _APP.fullmatch(app):
        raise IllegalName(
            f"app name {app!r}: allowed are words of a-z, 0-9 and '-' (not at a word's ends), joined by single dots"
        )
    return app


def topic_name(app: str, kind: Kind, version: int = VERSION) -> str:
    """The name of an app's topic. Raises `IllegalName` for an app or a version that cannot be in one."""
    if not _VERSION.fullmatch(f"v{version}"):
        raise IllegalName(f"version {version}: allowed are 1 to 999999")
    return str(TopicName(app=check_app(app), kind=kind, version=version))


def parse_topic_name(name: str) -> TopicName:
    """Take a topic's name apart; the inverse of `topic_name`. Raises `IllegalName` where it is not one of ours."""
    parts = name.rsplit(".", 2)
    if len(parts) != len(("app", "kind", "version")):
        raise IllegalName(f"topic {name!r}: expected <app>.<kind>.v<version>")
    app, kind, version = parts
    if kind not in set(Kind):
        raise IllegalName(f"topic {name!r}: {kind!r} is not one of {', '.join(Kind)}")
    number = _VERSION.fullmatch(version)
    if number is None:
        raise IllegalName(f"topic {name!r}: {version!r} is not a version such as v{VERSION}")
    return TopicName(app=check_app(app), kind=Kind(kind), version=int(number[1]))
