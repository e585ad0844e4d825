"""White-box plans: a fitted scikit-learn model opened up, rewritten by rules, run by few kernels over shared arrays.

    plan = compile_plan(fitted_pipeline)
    plan.predict_proba(["a few words"])

It answers as the original does, bit for bit where that is possible (`streamserve.plan.verify`), or is refused. Needs
the extra `plan`. Nothing here is imported before it is used: numba takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamserve.plan.compile import Plan, compile_plan

__all__ = ["Plan", "compile_plan"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from streamserve.plan import compile as compiler  # noqa: PLC0415  (as the docstring says)

        return getattr(compiler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
