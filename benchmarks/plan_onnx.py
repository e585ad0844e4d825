"""`onnx`: the same models converted by skl2onnx, run by ONNX Runtime: which convert, how far answers are off, time.

Of each kind of pipeline one. What does not convert, or does not run, is said with the reason. Of the sentiment
pipelines the words alone stand beside the whole.
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.plan_packed import packed
from benchmarks.plan_questions import AC, COLUMNS, OUTPUT, SA, rows_for
from benchmarks.plan_rows import Run, row
from benchmarks.results import Row
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted

_ROWS, _ALONE = 200, 100


def onnx(run: Run) -> Iterator[Row]:
    """One model of each kind."""
    sentiment = _unpickled(packed(SA, run.scale, run.folder).pickles[-1])
    word = sentiment[0].transformer_list[1][1]
    head = LogisticRegression()
    own = sentiment[-1].coef_[:, -len(word.vocabulary_) :]
    head.coef_, head.intercept_, head.classes_ = own, sentiment[-1].intercept_, sentiment[-1].classes_
    head.n_features_in_ = own.shape[1]
    yield _of(SA, "characters and words", sentiment)
    yield _of(SA, "words alone", make_pipeline(word, head))
    kinds: dict[str, str] = {}
    for file in packed(AC, run.scale, run.folder).pickles:
        kinds.setdefault(Path(file).stem.partition("-")[0], file)
    for kind, file in kinds.items():
        yield _of(AC, kind, _unpickled(file))


def _unpickled(file: str) -> Any:
    return pickle.loads(Path(file).read_bytes())


def _of(workload: str, kind: str, model: Any) -> Row:
    rows, about = rows_for(workload, _ROWS), {"workload": workload, "batch": 1, "plans": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = getattr(laid_out(import_fitted(model).graph), OUTPUT[workload])
        ours = _median_us(plan, rows)
        try:
            theirs = _session(workload, model)
            found = theirs(rows)
        except Exception as trouble:  # noqa: BLE001  (any converter's or runtime's: that it does not work is the result)
            reason = " ".join(str(trouble).split())[:120]
            return row(kind, ours, "us/row", note=f"no ONNX: {type(trouble).__name__}: {reason}", **about)
        wanted = np.asarray(getattr(model, OUTPUT[workload])(rows), dtype=np.float64).reshape(len(rows), -1)
        off = float(np.abs(np.asarray(found, dtype=np.float64).reshape(len(rows), -1) - wanted).max())
        note = f"theirs: ONNX Runtime, one thread; its answers are off by up to {off:.2g}"
        return row(kind, ours, "us/row", theirs=_median_us(theirs, rows), note=note, **about)


def _session(workload: str, model: Any) -> Callable[[Any], Any]:
    import onnxruntime  # noqa: PLC0415  (slow to import)
    from skl2onnx import to_onnx  # noqa: PLC0415  (as above)
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType  # noqa: PLC0415  (as above)

    is_text = workload == SA
    form = StringTensorType([None]) if is_text else FloatTensorType([None, COLUMNS])
    # The locale that it asks for by itself is not on every machine.
    asked = {id(model): {"zipmap": False}, TfidfVectorizer: {"locale": "C.UTF-8"}} if is_text else None
    made = to_onnx(model, initial_types=[("rows", form)], options=asked)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_outputs()[-1].name
    dtype: Any = np.str_ if is_text else np.float32
    return lambda rows: session.run([name], {"rows": np.asarray(rows, dtype=dtype)})[0]


def _median_us(call: Callable[[Any], Any], rows: Any) -> float:
    spent = []
    for i in range(_ALONE):
        started = time.perf_counter()
        call(rows[i : i + 1])
        spent.append(1e6 * (time.perf_counter() - started))
    return float(np.median(spent))
