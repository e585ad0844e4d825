"""How a model runs: `load` finds the object that a source names and the runtime class that accepts it.

    from streamserve.runtimes import ModelSpec, load

    runtime = load(ModelSpec(name="linear", version="1", source="workers.digits_linear:model"))
    outputs = runtime.predict(batch)

No framework is imported before a model needs it.
"""

from __future__ import annotations

from streamserve.core.messages import Outputs
from streamserve.runtimes.base import LoadableRuntime, ModelSpec, RowError, Runtime
from streamserve.runtimes.loading import load, runtime_names
from streamserve.runtimes.metrics import report_metric

__all__ = [
    "LoadableRuntime",
    "ModelSpec",
    "Outputs",
    "RowError",
    "Runtime",
    "load",
    "report_metric",
    "runtime_names",
]
