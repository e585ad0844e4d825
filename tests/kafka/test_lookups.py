"""What a coordinator says of commits."""

from __future__ import annotations

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from streamserve.errors import BrokerError
from streamserve.kafka.lookups import commits_of, persistently
from streamserve.kafka.ports import At, Committed


def answer(*partitions: tuple[int, int, str, int], error_code: int = 0) -> OffsetFetchResponse_v3:
    """As it comes off the wire."""
    topics = [("requests", list(partitions))] if partitions else []
    return OffsetFetchResponse_v3.decode(OffsetFetchResponse_v3(0, topics, error_code).encode())


def test_commits_and_partitions_without_one() -> None:
    assert commits_of(answer((0, 17, '{"v":1}', 0), (3, -1, "", 0))) == {
        At("requests", 0): Committed(offset=17, metadata='{"v":1}'),
        At("requests", 3): Committed(offset=-1, metadata=""),
    }


@pytest.mark.parametrize(
    "error", [GroupLoadInProgressError, NotCoordinatorForGroupError, GroupAuthorizationFailedError]
)
def test_a_coordinator_that_does_not_know_yet_is_no_group_without_commits(error: type[Exception]) -> None:
    with pytest.raises(error):
        commits_of(answer(error_code=error.errno))  # type: ignore[attr-defined]


def test_the_error_of_one_partition_is_the_answers() -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        commits_of(answer((0, 17, "", 0), (1, -1, "", UnknownTopicOrPartitionError.errno)))


@pytest.mark.parametrize("error", [GroupLoadInProgressError, NotCoordinatorForGroupError])
async def test_who_loads_or_has_moved_is_asked_again(error: type[Exception]) -> None:
    answers = [answer(error_code=error.errno), answer((0, 17, "", 0))]  # type: ignore[attr-defined]

    async def ask() -> dict[At, Committed]:
        return commits_of(answers.pop(0))

    assert await persistently(ask, "asking") == {At("requests", 0): Committed(offset=17, metadata="")}


async def test_what_the_coordinator_refuses_is_told_at_once() -> None:
    answers = [answer(error_code=GroupAuthorizationFailedError.errno)]

    async def ask() -> dict[At, Committed]:
        return commits_of(answers.pop(0))

    with pytest.raises(BrokerError, match="asking failed: GroupAuthorizationFailedError"):
        await persistently(ask, "asking")
