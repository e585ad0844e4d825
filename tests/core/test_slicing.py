from __future__ import annotations

import numpy as np

from streamserve.core.messages import DeadLetters, Failure
from streamserve.core.slicing import take_letters, unwritten


def test_what_is_unwritten_comes_behind_the_first_so_many_of_each_partition() -> None:
    partition = np.array([0, 1, 0, 2, 1, 0])
    assert unwritten(partition, {0: 2, 1: 2, 3: 5}).tolist() == [False, False, False, True, False, True]
    assert unwritten(partition, {}).all()


def test_dead_letters_keep_their_own_failures_where_some_are_taken() -> None:
    failures = {at: Failure(model="a@1", attempts=2, exception=f"Error{at}") for at in (0, 2)}
    letters = DeadLetters(
        source="requests",
        partition=0,
        offsets=np.arange(3),
        append_ms=np.zeros(3, np.int64),
        keys=[None] * 3,
        values=[b"a", b"b", b"c"],
        headers=[()] * 3,
        reasons=["r"] * 3,
        details=["d"] * 3,
        stage="terminal",
        failures=failures,
    )
    taken = take_letters(letters, np.array([1, 2]))
    assert taken.values == [b"b", b"c"]
    assert taken.failures == {1: failures[2]}
