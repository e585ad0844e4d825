"""Frames and shared memory, both ends in one process."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from streamserve.core.messages import Outputs
from streamserve.runtimes.channel import BrokenChannel, Channel, Kind, outputs_received, outputs_to_send

Ends = tuple[Channel, Channel, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two channels, and the raw socket of the second."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    theirs.settimeout(5)
    one, other = Channel(ours), Channel(theirs)
    yield one, other, theirs
    one.close()
    other.close()


def test_equal_frames_one_after_the_other_bring_the_new_values(ends: Ends) -> None:
    one, other, _ = ends
    for value in (1.0, 2.0, 3.0):
        one.send(Kind.CALL, {"batch": np.full((4, 3), value)})
        assert (other.receive().arrays["batch"] == value).all()


def test_what_was_heard_is_a_view_that_cannot_be_written(ends: Ends) -> None:
    one, other, _ = ends
    for _ in range(2):
        one.send(Kind.CALL, {"batch": np.ones((4, 3))})
        heard = other.receive().arrays["batch"]
        assert not heard.flags.writeable
        assert not heard.flags.owndata


def test_a_view_of_memory_that_was_replaced_still_holds(ends: Ends) -> None:
    one, other, _ = ends
    one.send(Kind.CALL, {"batch": np.ones(4)})
    first = other.receive().arrays["batch"]
    one.send(Kind.CALL, {"batch": np.full(1 << 20, 2.0)})
    assert (other.receive().arrays["batch"] == 2).all()
    assert first.tolist() == [1.0] * 4


def test_outputs_come_with_all_that_they_hold(ends: Ends) -> None:
    one, other, _ = ends
    sent = Outputs(
        labels=np.array(["a", "b"], dtype=object),
        probabilities=np.array([[0.5, 0.5], [1.0, 0.0]]),
        classes=np.array(["a", "b"], dtype=object),
        row_errors={1: "no"},
        metrics={"m": 2.0},
    )
    one.send(Kind.ANSWER, *outputs_to_send(sent))
    got = outputs_received(other.receive())
    assert got.labels.tolist() == ["a", "b"]
    assert got.probabilities is not None
    assert got.probabilities.flags.owndata
    assert got.classes is not None
    assert (got.classes.tolist(), got.row_errors, got.metrics) == (["a", "b"], {1: "no"}, {"m": 2.0})


def test_a_long_frame_comes_in_parts(ends: Ends) -> None:
    one, other, _ = ends
    one.send(Kind.RAISED, values={"words": "x" * 150_000})
    assert len(other.receive().values["words"]) == 150_000


def _frame(kind: int, words: object) -> bytes:
    body = msgspec.msgpack.encode(words)
    return struct.pack("<IB", len(body), kind) + body


NONSENSE: dict[str, bytes] = {
    "no frame": b"what is this, a print to the wrong place?" * 3,
    "another kind": _frame(77, [{}, {}]),
    "other words": _frame(5, ["x", 1]),
    "outside of the memory": _frame(5, [{"labels": ["<f8", [4], 0, 1 << 30]}, {}]),
    "before the memory": _frame(5, [{"labels": ["<f8", [4], -64, 32]}, {}]),
    "no such length": _frame(5, [{"labels": ["<f8", [4], 0, -8]}, {}]),
    "larger than its bytes": _frame(5, [{"labels": ["<f8", [1 << 20], 0, 32]}, {}]),
    "a shape below nothing": _frame(5, [{"labels": ["<f8", [-4], 0, 32]}, {}]),
    "a pointer": _frame(5, [{"labels": ["O", [4], 0, 32]}, {}]),
    "fields": _frame(5, [{"labels": ["f8,i4", [1], 0, 12]}, {}]),
    "no dtype": _frame(5, [{"labels": ["<zz", [1], 0, 8]}, {}]),
    "objects that are none": _frame(5, [{"labels": ["objects", [1], 0, 8]}, {}]),
    "too long": struct.pack("<IB", 1 << 31, 5) + b"x",
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_refused(ends: Ends, nonsense: str) -> None:
    one, other, raw = ends
    other.send(Kind.ANSWER, {"labels": np.ones(4)})
    one.receive()
    raw.sendall(NONSENSE[nonsense])
    with pytest.raises(BrokenChannel):
        one.receive()


@pytest.mark.parametrize(
    "words",
    [[{}, {}], [{"labels": ["<f8", [0], 0, 0]}, {"row_errors": 3}], [{"labels": ["<f8", [0], 0, 0]}, {"metrics": [1]}]],
)
def test_an_answer_that_is_none_is_refused(ends: Ends, words: list[object]) -> None:
    one, _, raw = ends
    raw.sendall(_frame(5, words))
    frame = one.receive()
    with pytest.raises(BrokenChannel):
        outputs_received(frame)


@pytest.mark.parametrize("part", [b"", b"\x05\x00", struct.pack("<IB", 50, 5) + b"abc"])
def test_an_end_is_told(ends: Ends, part: bytes) -> None:
    one, other, raw = ends
    raw.sendall(part)
    other.close()
    with pytest.raises(BrokenChannel):
        one.receive()
    with pytest.raises(BrokenChannel):
        one.send(Kind.CALL, {"batch": np.ones(3)})


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no sealed memory here")
def test_memory_that_its_writer_can_cut_off_is_refused(ends: Ends) -> None:
    one, _, raw = ends
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)
    socket.send_fds(raw, [_frame(5, [{"labels": ["<f8", [4], 0, 32]}, {}])], [fd])
    os.close(fd)
    with pytest.raises(BrokenChannel, match="cut off"):
        one.receive()


@pytest.fixture
def without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)


def test_it_works_where_there_is_no_memfd(without_memfd: None, ends: Ends) -> None:
    one, other, _ = ends
    for n in (3, 1 << 20):
        one.send(Kind.CALL, {"batch": np.full(n, 3.0)})
        assert (other.receive().arrays["batch"] == 3).all()


def test_no_descriptor_is_left(ends: Ends) -> None:
    one, other, _ = ends

    def held(call: Callable[[], None]) -> int:
        call()
        return len(os.listdir("/dev/fd"))

    def grow(n: int) -> None:
        one.send(Kind.CALL, {"batch": np.zeros(n)})
        other.receive()

    assert len({held(lambda n=n: grow(1 << n)) for n in (10, 18, 20, 21)}) == 1
