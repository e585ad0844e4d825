"""Another model that can be broken or slowed while it serves, to see what the system makes of it.

    [models.forest]
    version = "1"
    source = "workers.faulty:model()"
    options = { source = "workers.digits_forest:model", key = "forest", control = "$DEMO_FAULTS" }

The control file (environment variables in its name are filled in) says which faults are in force now; it is looked at
before every batch, and no file means no fault. `write_faults` replaces it in one step:

    write_faults(path, {"forest": {"shuffle": True}, "mlp": {"delay_ms": 400}})

`shuffle` moves each row's answer to another class, chosen by the row's own numbers, so about 1 in `classes` answers
stays right, whatever the batch. `delay_ms` makes each call take that much longer.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Outputs, Runtime, load
from streamserve.runtimes.base import Sampled


class Fault(TypedDict, total=False):
    """What is wrong with one model."""

    shuffle: bool
    delay_ms: float


class Faulty:
    """Answers as the inner model does, unless the control file gives a fault to `key`."""

    def __init__(self, inner: Runtime, key: str, control: Path) -> None:
        self._inner = inner
        self._key = key
        self._control = control
        self._read_version: tuple[int, int] | None = None
        self._fault: Fault = {}

    def __call__(self, batch: AnyArray) -> Outputs:
        """Answer a batch `[n, ...]` of numbers, perhaps late, perhaps wrongly."""
        fault = self._in_force()
        outputs = self._inner.predict(batch)
        time.sleep(fault.get("delay_ms", 0.0) / 1e3)
        return shuffled(outputs, batch) if fault.get("shuffle", False) else outputs

    def sample(self) -> AnyArray | None:
        """A row of the form that the inner model takes, where it says."""
        return self._inner.sample() if isinstance(self._inner, Sampled) else None

    def close(self) -> None:
        """Close the inner model."""
        self._inner.close()

    def _in_force(self) -> Fault:
        try:
            status = self._control.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version != self._read_version:
                self._fault = json.loads(self._control.read_text()).get(self._key, {})
                self._read_version = version
        except FileNotFoundError:
            self._fault, self._read_version = {}, None
        return self._fault


def model(source: str, key: str, control: str, options: Mapping[str, Any] | None = None) -> Faulty:
    """Load the inner model (`source` and its `options`) and let the control file's entry `key` break it."""
    spec = ModelSpec(name=key, version="inner", source=source, options=options or {})
    return Faulty(load(spec), key, Path(os.path.expandvars(control)).expanduser())


def write_faults(control: Path, faults: Mapping[str, Fault]) -> None:
    """Replace the control file: these faults are in force from the next batch on, and no others."""
    part = control.with_name(f"{control.name}.part")
    part.write_text(json.dumps(faults))
    part.replace(control)


def shuffled(outputs: Outputs, batch: AnyArray) -> Outputs:
    """The outputs with each row's classes moved round. Raises `ModelError` where there are no probabilities."""
    if outputs.probabilities is None:
        raise ModelError("a model without probabilities cannot be shuffled: its classes are not known")
    n_rows, n_classes = outputs.probabilities.shape
    rows = batch.reshape(n_rows, -1)
    moved_by = np.array([zlib.crc32(row.tobytes()) for row in rows], dtype=np.int64) % n_classes
    columns = (np.arange(n_classes) + moved_by[:, None]) % n_classes
    probabilities = np.take_along_axis(outputs.probabilities, columns, axis=1)
    classes = np.arange(n_classes) if outputs.classes is None else outputs.classes
    return replace(outputs, labels=classes[probabilities.argmax(axis=1)], probabilities=probabilities)
