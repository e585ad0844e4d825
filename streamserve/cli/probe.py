"""`python -m streamserve.cli.probe`: load one model in this fresh interpreter and try it, for `streamserve check`.

Reads one JSON object from standard input, writes one to standard output. What the model itself prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray, Outputs
from streamserve.core.outputs import check_outputs
from streamserve.core.reasons import Missing
from streamserve.errors import ModelError
from streamserve.ragged import why_no_array
from streamserve.runtimes import ModelSpec, Runtime, load
from streamserve.runtimes.isolated import IsolatedRuntime
from streamserve.runtimes.isolation import Limits
from streamserve.runtimes.plain import plain_outputs
from streamserve.runtimes.sampling import sample_of

_SIZES = (1, 64)
_MOST_CALLS = 20
_ENOUGH_MS = 300.0

Report = dict[str, Any]


def probe(spec: ModelSpec, base_dir: str, sample: str | None) -> Report:
    """Load the model and, where a sample row is known, call it.

    Keys of the report: `runtime`, `load_ms`; `sample` (whether there was one), `ms` (rows -> median ms per call),
    `output` (words); `probabilities` (whether it gives them). Raises `ModelError`.
    """
    started = time.perf_counter()
    runtime = load(spec, base_dir=base_dir)
    report: Report = {"runtime": _name_of(runtime), "load_ms": _ms_since(started)}
    rows = read_sample(sample) if sample else sample_of(spec.model_id, runtime)
    report["sample"] = rows is not None
    if rows is not None:
        report |= _try(runtime, rows, spec)
    try:
        runtime.close()
    except Exception as error:
        raise spec.error(f"closing it failed: {type(error).__name__}: {error}") from error
    return report


def _name_of(runtime: Runtime) -> str:
    return runtime.name if isinstance(runtime, IsolatedRuntime) else type(runtime).__name__


def read_sample(sample: str) -> AnyArray:
    """Rows `[n, ...]` from JSON (a list of rows or texts, or one row), or from a file of it or `.npy`.

    Raises `ModelError`.
    """
    file = Path(sample)
    try:
        if file.suffix == ".npy":
            rows = np.load(file, allow_pickle=False)
        else:
            values = json.loads(sample if sample.lstrip().startswith("[") else file.read_text("utf-8"))
            is_text = isinstance(values, str) or (isinstance(values, list) and any(isinstance(v, str) for v in values))
            rows = _rows(values, file, dtype=object if is_text else np.float64)
    except OSError as error:
        raise ModelError(f"the sample {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ModelError(f"the sample {file} cannot be read as .npy or as JSON rows: {error}") from error
    if rows.size == 0:
        raise ModelError(f"the sample {file} has no rows")
    is_one_row = rows.ndim == 0 or (rows.ndim == 1 and rows.dtype != object)
    one: AnyArray = rows[np.newaxis] if is_one_row else rows
    return one


def _rows(values: object, file: Path, dtype: type) -> AnyArray:
    try:
        return np.array(values, dtype=dtype)
    except ValueError:
        if not isinstance(values, list):
            raise
        raise ModelError(f"the sample {file} is no array: {why_no_array(values)}; give rows of equal length") from None


def _try(runtime: Runtime, rows: AnyArray, spec: ModelSpec) -> Report:
    times: dict[str, float] = {}
    for size in _SIZES:
        batch = np.resize(rows, (size, *rows.shape[1:])) if len(rows) != size else rows
        outputs, times[str(size)] = _timed(runtime, batch, spec)
        _refuse_wrong(outputs, size, spec)
    return {"ms": times, "output": _form(outputs), "probabilities": outputs.probabilities is not None}


def _timed(runtime: Runtime, batch: AnyArray, spec: ModelSpec) -> tuple[Outputs, float]:
    """The outputs, and the median time of a few calls after a first one."""
    begun = time.perf_counter()
    times: list[float] = []
    while not times or (_ms_since(begun) < _ENOUGH_MS and len(times) <= _MOST_CALLS):
        started = time.perf_counter()
        try:
            outputs = plain_outputs(runtime.predict(batch))
        except Exception as error:
            raise ModelError(
                f"model {spec.model_id}: failed on {len(batch)} sample rows: {type(error).__name__}: {error}"
            ) from error
        times.append(_ms_since(started))
    return outputs, round(median(times[1:] or times), 3)


def _refuse_wrong(outputs: Outputs, size: int, spec: ModelSpec) -> None:
    checked = check_outputs(outputs, np.ones(size, np.int64))
    if (checked.missing != Missing.PRESENT).any():
        words = next(iter(checked.details.values()), "its output cannot be used")
        raise ModelError(f"model {spec.model_id}: {words} (on {size} sample rows)")


def _form(outputs: Outputs) -> str:
    row = list(outputs.labels.shape[1:])
    words = f"{outputs.labels.dtype.name}{f' {row}' if row else ''} a row"
    if outputs.probabilities is not None:
        words += f", probabilities of {outputs.probabilities.shape[1]} classes"
    return words


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1e3, 3)


def _answer(question: Report) -> Report:
    spec = _spec(question["spec"])
    try:
        return probe(spec, question["base_dir"], question["sample"])
    except ModelError as error:
        return {"problem": str(error)}
    except Exception as error:  # noqa: BLE001  (a model is foreign code)
        return {"problem": str(spec.error(f"{type(error).__name__}: {error}"))}


def _spec(values: Report) -> ModelSpec:
    limits = values["isolation"]
    return ModelSpec(**{**values, "isolation": None if limits is None else Limits(**limits)})


def main() -> None:
    """Answer the one question on standard input."""
    # The model may print: keep the real standard output for the report alone.
    report_file = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    with report_file:
        json.dump(_answer(question), report_file)


if __name__ == "__main__":
    main()
