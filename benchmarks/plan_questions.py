"""What the models of PRETZEL's workloads are asked. Imports no framework: a process that holds plans needs none."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamserve.datasets import sentiment

SA, AC, AC_ALONE = "SA", "AC", "AC nothing shared"
COLUMNS = 40
#: What a client wants of a model.
OUTPUT = {SA: "predict_proba", AC: "predict", AC_ALONE: "predict"}


def rows_for(workload: str, count: int) -> Any:
    """Real texts, or columns that no model was fitted on."""
    if workload == SA:
        texts = sentiment().texts
        return [texts[i] for i in np.random.default_rng(3).permutation(len(texts))[:count]]
    return np.random.default_rng(6).normal(size=(count, COLUMNS)) * 2
