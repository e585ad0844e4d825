"""Load a model: its source gives an object, the entry points give the runtime class that accepts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

from streamserve.added import added
from streamserve.errors import StreamserveError
from streamserve.runtimes.base import LoadableRuntime, ModelSpec, Runtime
from streamserve.runtimes.isolated import IsolatedRuntime
from streamserve.runtimes.sources import resolve

GROUP = "streamserve.runtimes"
#: The package whose runtimes are asked after those that others add, since a plugin knows its framework better.
_OURS = "streamserve"
#: Asked last of all, in this order: a plan is made of an estimator only where the config says so, and the other accepts
#: whatever can be called.
_LAST = ("plan", "callable")

logger = logging.getLogger(__name__)


def load(spec: ModelSpec, *, base_dir: Path | str | None = None) -> Runtime:
    """Load the model that `spec.source` names and wrap it in the runtime that accepts it.

    An import path is imported with the working directory on `sys.path`; a relative file is looked up in `base_dir`
    (the config's folder; None: the working directory). A spec with `isolation` is loaded in a process of its own.
    Raises `ModelError` that says what is wrong and what to do.
    """
    folder = Path(base_dir) if base_dir is not None else Path.cwd()
    if spec.isolation is not None:
        return IsolatedRuntime(spec, spec.isolation, folder)
    loaded = resolve(spec, folder)
    rest = {name: value for name, value in spec.options.items() if name not in loaded.used_options}
    runtime_class = _choose(loaded.obj, spec)
    if spec.precision not in getattr(runtime_class, "precisions", ("f64",)):
        raise spec.error(
            f'precision = "{spec.precision}" is for the runtime plan, and this one runs as {runtime_class.__name__}; '
            'set runtime = "plan", or leave precision out'
        )
    try:
        return runtime_class(loaded.obj, replace(spec, options=rest))
    except StreamserveError:
        raise
    except Exception as refused:
        raise spec.error(
            f"runtime {runtime_class.__name__} cannot take {spec.source}: {type(refused).__name__}: {refused}"
        ) from refused


def runtime_names() -> tuple[str, ...]:
    """Names of the runtimes that are installed, in the order in which they are asked."""
    return tuple(point.name for point in _points())


def _points() -> list[EntryPoint]:
    """One entry point a name (the first found, as imports would), plugins first."""
    unique = {point.name: point for point in reversed(added(GROUP))}

    def rank(point: EntryPoint) -> tuple[int, bool, str]:
        late = _LAST.index(point.name) + 1 if point.name in _LAST else 0
        return (late, point.module.partition(".")[0] == _OURS, point.name)

    return sorted(unique.values(), key=rank)


def _choose(obj: object, spec: ModelSpec) -> type[LoadableRuntime]:
    if spec.runtime is not None:
        return _named(spec.runtime, obj, spec)
    for runtime_class in _importable():
        if _accepts(runtime_class, obj, spec):
            return runtime_class
    raise spec.error(f"{_no_runtime(obj, spec)}; installed runtimes: {', '.join(runtime_names()) or 'none'}")


def _named(name: str, obj: object, spec: ModelSpec) -> type[LoadableRuntime]:
    for point in _points():
        if point.name == name:
            runtime_class = _import(point, spec)
            if not _accepts(runtime_class, obj, spec):
                raise spec.error(f"runtime {name!r} does not take {spec.source}, {_kind(obj)}")
            return runtime_class
    raise spec.error(f"runtime {name!r} is not installed; installed runtimes: {', '.join(runtime_names()) or 'none'}")


def _accepts(runtime_class: type[LoadableRuntime], obj: object, spec: ModelSpec) -> bool:
    """Whether it can run the object. Looking at an object may run its code: a property may raise."""
    try:
        return runtime_class.accepts(obj)
    except Exception as broken:
        raise spec.error(
            f"runtime {runtime_class.__name__} cannot look at {spec.source}: {type(broken).__name__}: {broken}"
        ) from broken


def _import(point: EntryPoint, spec: ModelSpec) -> type[LoadableRuntime]:
    try:
        runtime_class: type[LoadableRuntime] = point.load()
    except Exception as broken:
        raise spec.error(f"runtime {point.name!r} ({point.value}) cannot be imported: {broken}") from broken
    return runtime_class


def _importable() -> Iterator[type[LoadableRuntime]]:
    for point in _points():
        try:
            yield point.load()
        except Exception as broken:  # noqa: BLE001  (a plugin that nobody asked for must not stop the others)
            logger.warning("runtime %r (%s) cannot be imported: %s", point.name, point.value, broken)


def _no_runtime(obj: object, spec: ModelSpec) -> str:
    words = f"no runtime accepts {spec.source}, {_kind(obj)}"
    if isinstance(obj, type):
        return f'{words}; to make an object of it write source = "{spec.source}()"'
    return f"{words}; a model is a function of the batch, or an object with predict(batch)"


def _kind(obj: object) -> str:
    if isinstance(obj, type):
        return f"the class {obj.__qualname__}"
    return f"an object of type {type(obj).__module__}.{type(obj).__qualname__}"
