"""Models of `benchmarks.isolation`: one that only takes its batch, one that works, one that misbehaves on demand."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time

import numpy as np

from streamserve.core.messages import AnyArray

FEATURES = 784
_weights = np.random.default_rng(1).normal(size=(FEATURES, 256)).astype(np.float32)
_held: list[AnyArray] = []


def sample() -> AnyArray:
    return np.zeros((1, FEATURES), np.float32)


def free(batch: AnyArray) -> dict[str, AnyArray]:
    """Costs nothing and answers as a classifier of ten classes would."""
    return {"labels": np.zeros(len(batch), np.int64), "probabilities": np.full((len(batch), 10), 0.1)}


def works(batch: AnyArray) -> AnyArray:
    """About a millisecond for 64 rows."""
    hidden = np.maximum(batch @ _weights, 0.0)
    return (hidden @ hidden.T).argmax(axis=1)


def _loop() -> None:
    while True:
        pass


def _leak() -> None:
    while True:
        _held.append(np.ones(1 << 17))


def _threads() -> None:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def _hash() -> None:
    data = bytes(1 << 20)
    while True:  # hashing lets go of the interpreter's lock
        hashlib.sha256(data)


def _spinning_threads() -> None:
    for _ in range(8):
        threading.Thread(target=_hash, daemon=True).start()
    time.sleep(60)


def _talk() -> None:
    for i in range(20_000):
        print("a line on standard output", i)


#: By the first value of the batch.
TROUBLE = {
    "segfault": lambda: ctypes.string_at(0),
    "os._exit": lambda: os._exit(3),
    "endless loop": _loop,
    "memory leak": _leak,
    "thread bomb": _threads,
    "spinning threads": _spinning_threads,
    "standard output": _talk,
}


def misbehaves(batch: AnyArray) -> AnyArray:
    """Does what the first value says; 0: works."""
    what = int(batch[0, 0])
    if what:
        list(TROUBLE.values())[what - 1]()
    return works(batch)


for _model in (free, works, misbehaves):
    _model.sample = sample  # type: ignore[attr-defined]  # a sample may stand on the model itself
