"""A model's own sample row. A model is foreign code: whatever it does when it is asked becomes a `ModelError`."""

from __future__ import annotations

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.errors import ModelError
from streamserve.runtimes.base import Runtime, Sampled
from streamserve.runtimes.conversion import plain_strings

_MOST_CHARS = 400


def sample_of(model_id: str, runtime: Runtime) -> AnyArray | None:
    """One row, `[1, ...]`, that the runtime knows to fit; None where it does not say. Raises `ModelError`."""
    try:
        # Looking for the method already runs the model's code, where that is a property.
        row = runtime.sample() if isinstance(runtime, Sampled) else None
        sample = None if row is None else plain_strings(np.asarray(row))
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {error}"[:_MOST_CHARS]
        raise ModelError(f"model {model_id}: its sample row cannot be had: {words}") from error
    if sample is None:
        return None
    is_bare_row = sample.ndim == 1 and len(sample) > 1 and sample.dtype != object
    if sample.ndim == 0 or not len(sample) or is_bare_row:
        shape = list(sample.shape)
        raise ModelError(f"model {model_id}: its sample has the shape {shape}; expected one row, [1, ...]")
    return sample[:1]
