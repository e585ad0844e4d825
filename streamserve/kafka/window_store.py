"""The join's window on disk: predictions in RocksDB instead of in memory (`[learn] window_store = "rocksdb"`).

What is stored is a cache. An owner of a partition reads its window from the log again, so every partition it takes
gets a new, empty database, nothing is synced, and the files are removed when the store is closed or dropped. What a
killed process left is removed by the next one of the same app.

Keys are a letter and a big-endian number or an id, so that neighbours in the log are neighbours on disk:

* `r` + request offset -> append time, id, raw record
* `a` + order of arrival -> request offset, append time, counted bytes, id: what expiry reads, without the raw records
* `i` + id -> request offset of the newest prediction with this id
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamserve.core.bounds import Fill
from streamserve.core.records import PredictionRecord
from streamserve.errors import ConfigError
from streamserve.places import state_folder

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    from streamserve.settings import Settings

#: Answers stay in memory also where predictions do not: at most so many, of all partitions together.
ANSWERS_BYTES = 128 << 20
#: Keys and the entries beside the raw record, without ids.
OVERHEAD_BYTES = 64
#: What a partition writes to disk at once.
_WRITE_BUFFER_BYTES = 8 << 20
#: Memory of one process, shared by its partitions: for what is not written yet, and for what was read back.
_WRITE_BUFFERS_BYTES = 64 << 20
_BLOCK_CACHE_BYTES = 32 << 20
_BLOOM_BITS_PER_KEY = 10
_OPEN_FILES = 64
#: Records forgotten in one write.
_SLICE = 4096
#: From this many neighbours on one tombstone for the range is cheaper than one for each key.
_MANY_NEIGHBOURS = 32
_ID_COPIES = 3
_NO_ID = (1 << 32) - 1

_NUMBER = struct.Struct(">Q")
_RECORD = struct.Struct(">qI")  # append time, bytes of the id; the id and the raw record follow
_ARRIVAL = struct.Struct(">QqQI")  # request offset, append time, counted bytes, bytes of the id; the id follows


def window_folder(settings: Settings) -> Path:
    """Where an app's windows are kept: in its state folder, beside the data of its Kafka."""
    return (settings.app.state_dir or state_folder(settings.app.name).parent).absolute() / "window"


class RocksPredictions:
    """Predictions of one partition in a new RocksDB at `folder`; a `PredictionStore`, and a context manager.

    `max_bytes` bounds what is remembered (raw records, ids thrice, `OVERHEAD_BYTES` each); files of what was forgotten
    stay until RocksDB compacts them. The folder is removed on `close`, when the store is dropped, or at exit.
    """

    def __init__(self, folder: Path, max_bytes: int, options: Options, home: Home) -> None:
        """`options` may be shared with other stores. `home` is kept as long as this store is used.

        Raises ConfigError where the folder cannot be used.
        """
        self._db = _open(folder, options)
        self._home = home
        self._closing = weakref.finalize(self, _remove, self._db, folder)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._first = 0  # order of arrival of the oldest one
        self._next = 0
        self._oldest_ms = 0  # of the oldest one, where there is one
        self._highest_offset = -1
        self._forgotten_below = 0

    def put(self, record: PredictionRecord) -> None:
        db, offset = self._db, record.request_offset
        number = _NUMBER.pack(offset)
        if offset > self._highest_offset:  # nearly always: saves a look-up
            self._highest_offset = offset
        elif b"r" + number in db:
            return
        id_, length = b"", _NO_ID
        if record.id is not None:
            id_ = _id_bytes(record.id)
            length = len(id_)
            db.put(b"i" + id_, number)
        n_bytes = len(record.raw) + _ID_COPIES * len(id_) + OVERHEAD_BYTES
        db.put(b"r" + number, _RECORD.pack(record.append_ms, length) + id_ + record.raw)
        db.put(b"a" + _NUMBER.pack(self._next), _ARRIVAL.pack(offset, record.append_ms, n_bytes, length) + id_)
        if self._first == self._next:
            self._oldest_ms = record.append_ms
        self._next += 1
        self._bytes += n_bytes

    def by_offset(self, request_offset: int) -> PredictionRecord | None:
        return self._read(_NUMBER.pack(request_offset))

    def by_id(self, id_: str) -> PredictionRecord | None:
        number = self._db.get(b"i" + _id_bytes(id_))
        return None if number is None else self._read(number)

    def expire(self, before_ms: int) -> None:
        while self._first < self._next and (self._oldest_ms < before_ms or self._bytes > self._max_bytes):
            self._forget_some(before_ms)

    @property
    def fill(self) -> Fill:
        return Fill(self._bytes, self._max_bytes)

    @property
    def forgotten_below(self) -> int:
        return self._forgotten_below

    def __len__(self) -> int:
        return self._next - self._first

    def close(self) -> None:
        """Remove it from disk; may be called again. Nothing else works afterwards."""
        self._closing()

    def __enter__(self) -> RocksPredictions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, number: bytes) -> PredictionRecord | None:
        value = self._db.get(b"r" + number)
        if value is None:
            return None
        append_ms, length = _RECORD.unpack_from(value)
        start = _RECORD.size
        id_ = None if length == _NO_ID else value[start : start + length].decode("utf-8", "surrogatepass")
        return PredictionRecord(
            request_offset=_NUMBER.unpack(number)[0],
            append_ms=append_ms,
            id=id_,
            raw=value[start if id_ is None else start + length :],
        )

    def _forget_some(self, before_ms: int) -> None:
        """One slice of what is to be forgotten, in one write."""
        from rocksdict import WriteBatch  # noqa: PLC0415  (an extra)

        batch = WriteBatch(raw_mode=True)
        offsets: list[int] = []
        started = self._first
        entries = self._db.items(from_key=b"a" + _NUMBER.pack(started))
        for arrival, (_, value) in zip(range(started, self._next), entries, strict=False):
            offset, append_ms, n_bytes, length = _ARRIVAL.unpack_from(value)
            self._first, self._oldest_ms = arrival, append_ms
            if len(offsets) == _SLICE or (append_ms >= before_ms and self._bytes <= self._max_bytes):
                break
            self._first += 1
            self._bytes -= n_bytes
            offsets.append(offset)
            if length != _NO_ID:
                id_key = b"i" + value[_ARRIVAL.size :]
                if self._db.get(id_key) == _NUMBER.pack(offset):
                    batch.delete(id_key)
        _delete(batch, b"a", range(started, self._first))
        _delete(batch, b"r", sorted(offsets))
        self._db.write(batch, _unlogged())
        self._forgotten_below = max(self._forgotten_below, *(offset + 1 for offset in offsets))


class RocksWindow:
    """Makes the stores of a process, one folder each below a folder of its own in `folder`; a `StoreFactory`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """`max_bytes`: of one partition.

        Raises ConfigError where rocksdict is missing or `folder` cannot be written.
        """
        try:
            self._options = _options()
        except ImportError as missing:
            raise ConfigError(
                '[learn] window_store = "rocksdb" needs the package rocksdict, which cannot be imported '
                f'({missing}); install it with: pip install "streamserve[learn]", or set window_store = "memory"'
            ) from missing
        self._max_bytes = max_bytes
        self._home = Home(folder)
        self._made = 0

    def __call__(self, partition: int) -> RocksPredictions:
        """A new, empty store. A partition that comes back gets another folder: its last store may still be open."""
        self._made += 1
        folder = self._home.folder / f"{partition}-{self._made}"
        return RocksPredictions(folder, self._max_bytes, self._options, self._home)


class Home:
    """The folder of this process inside `parent`, locked while the process lives, removed with the last of its users.

    Raises ConfigError where it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with _alone(parent):
                _sweep(parent)
                self.folder = Path(tempfile.mkdtemp(prefix="process-", dir=parent))
                lock = _try_lock(self.folder)
        except OSError as error:
            raise ConfigError(
                f"the join's window cannot be kept in {parent} ({error.strerror}); set [app] state_dir to a folder "
                'that can be written, or [learn] window_store = "memory"'
            ) from error
        if lock is None:
            raise ConfigError(f"{self.folder} cannot be locked; set [app] state_dir to a folder of a local disk")
        self._closing = weakref.finalize(self, _leave, self.folder, lock)


def _open(folder: Path, options: Options) -> Rdict:
    from rocksdict import Rdict  # noqa: PLC0415  (an extra)

    try:
        db = Rdict(str(folder), options)
    except Exception as error:  # rocksdict raises nothing narrower
        raise ConfigError(
            f"the join's window cannot be kept in {folder} ({error}); set [app] state_dir to a folder that can be "
            'written, or [learn] window_store = "memory"'
        ) from error
    db.set_write_options(_unlogged())
    return db


def _options() -> Options:
    from rocksdict import (  # noqa: PLC0415  (an extra)
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        Options,
        WriteBufferManager,
    )

    table = BlockBasedOptions()
    table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_error_if_exists(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_write_buffer_manager(WriteBufferManager(_WRITE_BUFFERS_BYTES, False))
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(1)
    return options


def _unlogged() -> WriteOptions:
    """Without a write-ahead log: Kafka is the log."""
    from rocksdict import WriteOptions  # noqa: PLC0415  (an extra)

    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign,assignment]  # its stub says a method; it is a property
    return options


def _delete(batch: WriteBatch, letter: bytes, numbers: range | list[int]) -> None:
    """`numbers` are ascending and every one of them is to go, so a run without a gap is one range."""
    for first, end in _runs(numbers):
        if end - first >= _MANY_NEIGHBOURS:
            batch.delete_range(letter + _NUMBER.pack(first), letter + _NUMBER.pack(end))
        else:
            for number in range(first, end):
                batch.delete(letter + _NUMBER.pack(number))


def _runs(numbers: range | list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together: the first number of each run and the one after its last."""
    first = end = None
    for number in numbers:
        if number != end:
            if first is not None and end is not None:
                yield first, end
            first = number
        end = number + 1
    if first is not None and end is not None:
        yield first, end


def _id_bytes(id_: str) -> bytes:
    return id_.encode("utf-8", "surrogatepass")


def _remove(db: Rdict, folder: Path) -> None:
    db.close()
    shutil.rmtree(folder, ignore_errors=True)


def _leave(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """One process at a time makes or sweeps folders: one that is not locked yet must not look abandoned."""
    lock = os.open(parent / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove what processes left that could not: they were killed."""
    for folder in parent.glob("process-*"):
        lock = _try_lock(folder)
        if lock is not None:
            _leave(folder, lock)


def _try_lock(folder: Path) -> int | None:
    """The open lock file of a process's folder; None while another holds it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
