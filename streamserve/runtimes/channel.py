"""How a worker and the process of one of its models talk: small frames over a socket, arrays in shared memory.

A frame is a length, a kind and a few msgpack bytes that say where each array lies. The arrays themselves lie in a
segment that the writer made and the reader maps; its descriptor travels with the first frame that uses it, so no
segment has a name, and the last process to end frees it. Each side reuses its segment for its next frame: what a
reader is to keep it copies. A frame that is not of this form raises `BrokenChannel`: the other side may be damaged.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamserve.core.messages import AnyArray, Outputs

_HEADER = struct.Struct("<IB")
_READ_BYTES = 1 << 16
_ONE_FD = socket.CMSG_SPACE(struct.calcsize("i"))
_MOST_FRAME_BYTES = 1 << 26
_LEAST_SEGMENT_BYTES = 1 << 20
_ALIGN = 64
#: Fixed-width values without references, which any process reads alike.
_PLAIN_KINDS = frozenset("biufcSUmM")
_OBJECTS = "objects"
_NOTHING = np.zeros(0, np.uint8)
#: Both ends must keep what they have mapped: reading a page that was cut off ends the reader (SIGBUS).
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0)


class BrokenChannel(Exception):
    """The other side has ended, or what it sent is not a frame of ours."""


class Kind(IntEnum):
    """What a frame says."""

    START = 1  # to the child: load this model
    READY = 2  # from the child: loaded and warm
    REFUSED = 3  # from the child: the model cannot be loaded
    CALL = 4
    ANSWER = 5
    RAISED = 6


_KINDS = {kind.value: kind for kind in Kind}


class Placed(msgspec.Struct, array_like=True, frozen=True):
    """Where an array lies in its writer's segment."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


class Words(msgspec.Struct, array_like=True, frozen=True):
    """A frame's small values."""

    arrays: dict[str, Placed] = {}
    values: dict[str, Any] = {}


class Frame(NamedTuple):
    """What came over the channel. `arrays` are views of shared memory: they hold until the next frame is asked for."""

    kind: Kind
    arrays: Mapping[str, AnyArray]
    values: Mapping[str, Any]


_NONE: Mapping[str, Any] = {}
_EMPTY = Frame(Kind.START, _NONE, _NONE)


class _Segment:
    """Shared memory that one side writes."""

    def __init__(self, n_bytes: int) -> None:
        self.fd = _anonymous_file(n_bytes)
        self.memory = np.frombuffer(mmap.mmap(self.fd, n_bytes), np.uint8)

    def __len__(self) -> int:
        return len(self.memory)

    def close(self) -> None:
        """The mapping itself ends with the last array that looks at it."""
        os.close(self.fd)


class Channel:
    """One end. Frames of one side are answered before it sends the next, so one segment a side is enough."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._mine: _Segment | None = None
        self._theirs: AnyArray | None = None
        # Batches are mostly alike, and so are their answers: the frame that was sent or heard last is kept, with the
        # arrays that it tells of (measured: 35 us less a call).
        self._sent_form: object = None
        self._sent_frame = b""
        self._sent_views: list[AnyArray] = []
        self._heard_frame = b""
        self._heard = _EMPTY

    def send(self, kind: Kind, arrays: Mapping[str, AnyArray] = _NONE, values: Mapping[str, Any] = _NONE) -> None:
        """Raises `BrokenChannel` where nobody reads any more; TypeError for an array that cannot be sent."""
        form = None if values else [kind, *((name, array.dtype, array.shape) for name, array in arrays.items())]
        if form is not None and form == self._sent_form:
            for view, array in zip(self._sent_views, arrays.values(), strict=True):
                view[...] = array
            self._send_bytes(self._sent_frame, None)
            return
        views, placed, new = self._place(arrays)
        words = _encode(Words(arrays=placed, values=dict(values)))
        frame = _HEADER.pack(len(words), kind) + words
        plain = bool(views) and all(place.dtype != _OBJECTS for place in placed.values())
        self._sent_form, self._sent_frame, self._sent_views = (form if plain else None), frame, views
        self._send_bytes(frame, new)

    def _send_bytes(self, frame: bytes, new: _Segment | None) -> None:
        try:
            if new is None:
                self._socket.sendall(frame)
            else:
                sent = socket.send_fds(self._socket, [frame], [new.fd])
                self._socket.sendall(frame[sent:])
        except OSError as error:
            raise BrokenChannel(f"nobody reads ({error.strerror})") from error

    def receive(self) -> Frame:
        """Wait for a frame. Raises `BrokenChannel`."""
        try:
            data, attached, _, _ = self._socket.recvmsg(_READ_BYTES, _ONE_FD)
            if attached:
                self._map(struct.unpack("i", attached[0][2])[0])
            elif data and data == self._heard_frame:
                kind, arrays, values = self._heard
                return Frame(kind, {name: array.view() for name, array in arrays.items()}, values)
            while len(data) < _HEADER.size:
                data += self._more(data)
            size, kind = _HEADER.unpack_from(data)
            if size > _MOST_FRAME_BYTES:
                raise BrokenChannel(f"a frame of {size} bytes")
            if len(data) < _HEADER.size + size:
                data = self._rest(data, _HEADER.size + size)
        except OSError as error:
            raise BrokenChannel(f"nobody writes ({error.strerror})") from error
        try:
            words = _WORDS.decode(memoryview(data)[_HEADER.size :])
            arrays = {name: self._array(placed) for name, placed in words.arrays.items()}
            frame = Frame(_KINDS[kind], arrays, words.values)
        except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
            raise BrokenChannel(f"no frame of ours ({error})") from error
        plain = arrays and not words.values and all(placed.dtype != _OBJECTS for placed in words.arrays.values())
        self._heard_frame, self._heard = (data if plain else b""), frame
        return frame

    def close(self) -> None:
        self._socket.close()
        if self._mine is not None:
            self._mine.close()
        self._mine = self._theirs = None
        self._sent_form, self._sent_views = None, []
        self._heard_frame, self._heard = b"", _EMPTY

    def hang_up(self) -> None:
        """End a `receive` that waits in another thread, even where somebody else still holds the other end."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    # writing

    def _place(self, arrays: Mapping[str, AnyArray]) -> tuple[list[AnyArray], dict[str, Placed], _Segment | None]:
        """Copy them into the segment, a new one where they do not fit."""
        placed: dict[str, Placed] = {}
        parts: list[tuple[int, AnyArray]] = []
        end = 0
        for name, array in arrays.items():
            dtype, flat = _as_bytes(array)
            n_bytes = flat.nbytes
            placed[name] = Placed(dtype, array.shape, end, n_bytes)
            parts.append((end, flat))
            end += -(-n_bytes // _ALIGN) * _ALIGN
        new = None
        if self._mine is None or len(self._mine) < end:
            if not end:
                return [], placed, None
            if self._mine is not None:
                self._mine.close()
            # Twice as large each time, so that a growing batch size makes few segments.
            self._mine = new = _Segment(max(_LEAST_SEGMENT_BYTES, 1 << (end - 1).bit_length()))
        memory = self._mine.memory
        views = [np.ndarray(flat.shape, flat.dtype, memory, offset) for offset, flat in parts]
        for view, (_, flat) in zip(views, parts, strict=True):
            view[...] = flat
        return views, placed, new

    # reading

    def _more(self, data: bytes) -> bytes:
        more = self._socket.recv(_READ_BYTES)
        if not more:
            raise BrokenChannel("nobody writes" if not data else "it ended within a frame")
        return more

    def _rest(self, data: bytes, size: int) -> bytes:
        whole = bytearray(data)
        while len(whole) < size:
            whole += self._more(data)
        return bytes(whole)

    def _map(self, fd: int) -> None:
        try:
            size = os.fstat(fd).st_size
            if hasattr(os, "memfd_create") and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS:
                raise BrokenChannel("shared memory that its writer can cut off")
            self._heard_frame = b""
            self._theirs = np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
        finally:
            os.close(fd)

    def _array(self, placed: Placed) -> AnyArray:
        memory, offset, end = self._theirs, placed.offset, placed.offset + placed.n_bytes
        if memory is None or not 0 <= offset <= end <= len(memory):
            if placed.n_bytes:
                raise ValueError("an array outside of its memory")
            memory, offset, end = _NOTHING, 0, 0
        raw = memory[offset:end]
        if placed.dtype == _OBJECTS:
            return _objects(raw, placed.shape)
        dtype = np.dtype(placed.dtype)
        if dtype.kind not in _PLAIN_KINDS or dtype.fields is not None:
            raise ValueError(f"an array of {dtype}")
        return np.ndarray(placed.shape, dtype, raw)


def outputs_to_send(outputs: Outputs) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Arrays and values of a frame that holds a model's answer."""
    arrays = {"labels": outputs.labels}
    if outputs.probabilities is not None:
        arrays["probabilities"] = outputs.probabilities
    if outputs.classes is not None:
        arrays["classes"] = outputs.classes
    values: dict[str, Any] = {}
    if outputs.row_errors:
        values["row_errors"] = [(int(row), str(words)) for row, words in outputs.row_errors.items()]
    if outputs.metrics:
        values["metrics"] = {str(name): float(value) for name, value in outputs.metrics.items()}
    return arrays, values


def outputs_received(frame: Frame) -> Outputs:
    """The same as `Outputs` of its own memory. Raises `BrokenChannel`."""
    try:
        kept = {name: array if array.dtype == object else array.copy() for name, array in frame.arrays.items()}
        probabilities: Any = kept.pop("probabilities", None)
        return Outputs(
            labels=kept.pop("labels"),
            probabilities=probabilities,
            classes=kept.pop("classes", None),
            row_errors={int(row): str(words) for row, words in frame.values.get("row_errors", ())},
            metrics={str(name): float(value) for name, value in frame.values.get("metrics", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenChannel(f"no answer of ours ({error!r})") from error


def _as_bytes(array: AnyArray) -> tuple[str, AnyArray]:
    """How an array is called in a frame, and what is copied for it."""
    if array.dtype.kind in _PLAIN_KINDS and array.dtype.fields is None:
        return array.dtype.str, array
    if array.dtype != object:
        raise TypeError(f"an array of {array.dtype} cannot be sent to another process")
    flat: Sequence[object] = array.ravel().tolist()
    return _OBJECTS, np.frombuffer(_encode(flat), np.uint8)


def _objects(raw: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    values = msgspec.msgpack.decode(raw.tobytes(), type=list[Any])
    return np.fromiter(values, dtype=object, count=len(values)).reshape(shape)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to another process")


_WORDS = msgspec.msgpack.Decoder(Words)
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


def _encode(value: object) -> bytes:
    return _ENCODER.encode(value)


def _anonymous_file(n_bytes: int) -> int:
    """A file without a name: it is gone with the last descriptor and mapping, whoever crashes."""
    if not hasattr(os, "memfd_create"):  # macOS
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, n_bytes)
        return fd
    fd = os.memfd_create("streamserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, n_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd
