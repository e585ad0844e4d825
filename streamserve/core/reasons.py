"""Outcomes and reasons: closed enumerations, since each is one value of a metric label.

`str(member)` is the name that users see in `parameters.outcome`, `parameters.reason` and in the metrics.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


class _Named(IntEnum):
    def __str__(self) -> str:
        return self.name.lower()


_Enum = TypeVar("_Enum", bound=type[_Named])


def _plain(enum: _Enum) -> _Enum:
    """Members as plain attributes: before Python 3.12 each `Enum.MEMBER` costs two calls, 13 times a request."""
    for member in enum:
        type.__setattr__(enum, member.name, member)
    return enum


@_plain
class Outcome(_Named):
    """What became of a request."""

    OK = 0
    PARTIAL = 1
    DEFAULT = 2
    ERROR = 3
    EXPIRED = 4


@_plain
class Reason(_Named):
    """Why a terminal record has its outcome."""

    # ok
    ALL_ANSWERED = 0
    DECIDED_EARLY = 1  # the rest could not change the answer
    # partial
    MEMBERS_MISSING = 2
    # default
    NO_ANSWER_IN_TIME = 3
    LOW_CONFIDENCE = 4
    ABSTAINED = 8  # not sure enough, and the route gives nothing then
    # expired
    LATE_ON_ARRIVAL = 5
    DEADLINE_PASSED = 6
    SHED = 7
    # error: the request
    EMPTY_VALUE = 10
    NOT_JSON = 11
    WRONG_FORM = 12  # JSON or text, but not what the route's codec reads
    WRONG_DATATYPE = 13
    WRONG_SHAPE = 14
    TOO_LARGE = 15
    UNKNOWN_ROUTE = 16
    UNKNOWN_MODEL = 17
    BAD_DEADLINE = 18
    BAD_HEADER = 19
    NO_ROWS = 20
    REFUSED = 21  # every member refused this request, while others went well
    # error: the models
    ALL_MEMBERS_FAILED = 30
    OUTPUT_TOO_LARGE = 31


@_plain
class Missing(_Named):
    """Why a chosen member's answer is not in a prediction."""

    PRESENT = 0
    LATE = 1
    SHED = 2  # never run: it could not have made the deadline
    MODEL_ERROR = 3  # the model raised
    ROW_ERROR = 4  # the model refused a row of this request
    WRONG_ROW_COUNT = 5
    NOT_FINITE = 6
    OUTPUT_TOO_LARGE = 7
    BAD_INPUT = 9  # this member could not read the request (shape or type that it does not take)
    INCOMPATIBLE = 10  # it answered in a shape or with classes that cannot be combined with the others'
    NOT_AWAITED = 12  # the answer could no longer change without it
    CIRCUIT_OPEN = 13  # it keeps failing: it is not called for a while
    NOT_HOSTED = 14  # the process that was to ask it has not loaded it


#: As a plain number, for columns: numpy asks an enum's member for its array protocols at every comparison.
PRESENT = int(Missing.PRESENT)

#: Reasons that say: the value itself could not be used. Such a request also gets a dead letter.
UNUSABLE = frozenset(
    {
        Reason.EMPTY_VALUE,
        Reason.NOT_JSON,
        Reason.WRONG_FORM,
        Reason.WRONG_DATATYPE,
        Reason.WRONG_SHAPE,
        Reason.TOO_LARGE,
        Reason.NO_ROWS,
        Reason.BAD_HEADER,
        Reason.BAD_DEADLINE,
        Reason.UNKNOWN_ROUTE,
        Reason.UNKNOWN_MODEL,
        Reason.REFUSED,
    }
)
