"""What the plans of a process hold together and alone, and what they have done: for `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamserve.runtimes.base import Runtime
from streamserve.runtimes.plan import PlanRuntime

if TYPE_CHECKING:
    from streamserve.plan.materialised import CacheFigures
    from streamserve.plan.stage_times import StageFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Of all plans of one process."""

    bytes_shared: Mapping[str, int]
    """Model -> bytes of arrays that other models of the process use, too."""
    bytes_unique: Mapping[str, int]
    """Model -> bytes of its own."""
    stages: Sequence[StageFigures]
    cache: CacheFigures | None
    """None: no cache of sub-results was asked for, or no two plans share any."""
    compilations: int
    """Functions compiled since the process began; after its start none should be added."""


def figures_of(runtimes: Mapping[str, Runtime]) -> PlanFigures | None:
    """None where no plan is among them."""
    plans = {model: runtime for model, runtime in runtimes.items() if isinstance(runtime, PlanRuntime)}
    if not plans:
        return None
    from streamserve.plan.kernels import compilations  # noqa: PLC0415  (a plan is there, so its extra is)

    held = {model: runtime.held_bytes for model, runtime in plans.items()}
    users = Counter(digest for arrays in held.values() for digest in arrays)
    first = next(iter(plans.values()))
    caches = [runtime.cache for runtime in plans.values() if runtime.cache is not None]
    return PlanFigures(
        bytes_shared={model: sum(n for key, n in arrays.items() if users[key] > 1) for model, arrays in held.items()},
        bytes_unique={model: sum(n for key, n in arrays.items() if users[key] == 1) for model, arrays in held.items()},
        stages=first.times.figures(),
        cache=caches[0].figures() if caches else None,
        compilations=compilations(),
    )
