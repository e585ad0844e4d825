"""What a runtime is: the one interface between streamserve and a model, whatever framework it comes from.

A runtime is a class found by an entry point of the group `streamserve.runtimes`. Another package adds one with::

    [project.entry-points."streamserve.runtimes"]
    lightgbm = "my_package.lightgbm_runtime:LightGbmRuntime"

where the class has the four members of `LoadableRuntime`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelError, StreamserveError
from streamserve.runtimes.isolation import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One `[models.NAME]` of the config, as plain values."""

    name: str
    version: str
    source: str
    """Import path (`package.module:attribute`, or `package.module:factory()` to call it) or an artifact's file
    (`.skops`, `.onnx`, `.pt`, `.joblib`, `.plan`)."""
    runtime: str | None = None
    """Name of a `streamserve.runtimes` entry point; None: the first runtime that accepts the loaded object."""
    trust_pickle: bool = False
    trusted_types: tuple[str, ...] = ()
    """Types that a `.skops` file may hold beyond the safe ones."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Runtime's own options (`[models.NAME.options]`): device, dtype, threads, module, ..."""
    precision: str = "f64"
    """Of linear heads over text, with the runtime `plan` only: `f64` answers as the original, `f32` nearly so."""
    head_rate: float | None = None
    """Of a white-box plan whose head learns while it serves: how far one row moves the weights."""
    head_store: str | None = None
    """Folder of the object store that such heads are published in; None: the machine's own."""
    isolation: Limits | None = None
    """Limits of a process of its own; None: it runs in the worker's process, on a thread."""

    @property
    def model_id(self) -> str:
        return f"{self.name}@{self.version}"

    def error(self, words: str) -> ModelError:
        """A `ModelError` that starts with the model's name and version."""
        return ModelError(f"model {self.model_id}: {words}")


class RowError(StreamserveError):
    """One row that a model refuses; a callable puts it into its list of labels in the place of that row's label.

    Raised instead, it fails the whole batch, as any other exception does.
    """


@runtime_checkable
class Runtime(Protocol):
    """A loaded model. Called from one thread at a time; never from the event loop's thread."""

    def predict(self, batch: AnyArray) -> Outputs:
        """Answer a batch: `[n, ...]` in, n labels out (`Outputs`). May raise: then the whole batch has failed.

        The batch may be shared with other models: a runtime leaves it as it is.
        """
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


@runtime_checkable
class Sampled(Protocol):
    """A runtime that knows what a row looks like: it is warmed with it, and rows of another form are refused early."""

    def sample(self) -> AnyArray | None:
        """One row, `[1, ...]`, of the form that the model takes; None where it does not say."""
        ...


#: Places of batches that ran together, each with what it gets: its outputs, or what was raised for it.
Ended = list[tuple[int, Outputs | Exception]]


@runtime_checkable
class Lane(Protocol):
    """Runs batches of several models on one thread: models that share work, and whose calls cannot hang."""

    @property
    def name(self) -> str:
        """Of the lane, unique in its process."""
        ...

    def predict_all(self, batches: Sequence[tuple[str, AnyArray]]) -> Iterator[Ended]:
        """Run (model, batch) pairs in about this order; those that share work run together and end together.

        Each place comes once. Does not raise. May be called from several threads at once.
        """
        ...


@runtime_checkable
class Sharing(Protocol):
    """A runtime that may run together with others of its process."""

    @property
    def lane(self) -> Lane | None:
        """What runs it; None where it runs alone."""
        ...


class LoadableRuntime(Runtime, Protocol):
    """What an entry point of the group `streamserve.runtimes` names: a runtime and how to make one."""

    def __init__(self, obj: Any, spec: ModelSpec) -> None:
        """Take the loaded object. Raises `ModelError` (`spec.error(words)`) where object or options are no good."""
        ...

    @classmethod
    def accepts(cls, obj: object) -> bool:
        """Whether this runtime can run the object. Looks only: imports no framework that is not yet imported."""
        ...
