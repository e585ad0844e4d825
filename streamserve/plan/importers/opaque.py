"""Black boxes on disk: `.skops` where its types are known to be safe, else joblib, if that is trusted."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import joblib
import sklearn

from streamserve.errors import ImportRefused, PlanDamaged
from streamserve.skops_io import skops_io

SKOPS, JOBLIB = "skops", "joblib"


def dump(estimator: Any, origin: str, *, trust_pickle: bool) -> tuple[str, bytes]:
    """(form, bytes). Raises `ImportRefused` for one that only a pickle can hold, unless that is trusted."""
    words = ""
    try:
        skops = skops_io()
        data = skops.dumps(estimator)
        untrusted = skops.get_untrusted_types(data=data)
        if not untrusted:
            return SKOPS, data
        words = f"it holds types that are not known to be safe: {', '.join(sorted(untrusted))}"
    except Exception as refused:  # noqa: BLE001  (whatever the estimator's own code raises)
        words = f"{type(refused).__name__}: {refused}"
    if not trust_pickle:
        raise ImportRefused(
            f"{origin or type(estimator).__name__}: this black box cannot be kept as .skops ({words}); with "
            "--trust-pickle it is kept as a pickle, which runs code where it is loaded"
        )
    buffer = io.BytesIO()
    try:
        joblib.dump(estimator, buffer)
    except Exception as refused:
        raise ImportRefused(
            f"{origin or type(estimator).__name__}: this black box cannot be kept: {type(refused).__name__}: {refused}"
        ) from refused
    return JOBLIB, buffer.getvalue()


def undump(form: str, data: bytes, where: str, versions: Mapping[str, str], *, trust_pickle: bool) -> Any:
    """The object again. Raises `ImportRefused` for a pickle that is not trusted or another version of scikit-learn."""
    if form not in {SKOPS, JOBLIB}:
        raise PlanDamaged(
            f"{where}: this black box is kept as {form!r}, which is not known here; a newer streamserve did"
        )
    packed = versions.get("scikit-learn", "")
    if packed.split(".")[:2] != sklearn.__version__.split(".")[:2]:
        raise ImportRefused(
            f"{where}: this black box was made by scikit-learn {packed}, here is {sklearn.__version__}; install that "
            "one, or pack the plan again"
        )
    if form == JOBLIB and not trust_pickle:
        raise ImportRefused(
            f"{where}: this black box is a pickle, and reading one runs the code inside; if you made the plan "
            "yourself, set trust_pickle = true (--trust-pickle)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return skops_io().loads(data) if form == SKOPS else joblib.load(io.BytesIO(data))
    except Exception as broken:
        raise PlanDamaged(f"{where}: its black box cannot be loaded: {type(broken).__name__}: {broken}") from broken
