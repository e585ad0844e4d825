"""What one member has said of open requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamserve.core.messages import F64, I64, Answers, AnyArray
from streamserve.core.rows import RowStore


class MemberStore:
    """Rows of one member: labels and, if it gives them, probabilities."""

    def __init__(self, answers: Answers, classes: AnyArray | None, oldest_needed: Callable[[], int]) -> None:
        assert answers.labels is not None
        self._labels = RowStore(answers.labels, oldest_needed)
        self._probabilities = None if answers.probabilities is None else RowStore(answers.probabilities, oldest_needed)
        self.classes = classes
        self._seen = answers.classes

    @property
    def end(self) -> int:
        return self._labels.end

    def takes(self, answers: Answers) -> bool:
        if answers.labels is None or not self._labels.takes(answers.labels):
            return False
        if (answers.probabilities is None) != (self._probabilities is None):
            return False
        if answers.probabilities is not None and self._probabilities is not None:
            if not self._probabilities.takes(answers.probabilities):
                return False
            return self._names(answers.classes)
        return True

    def _names(self, classes: AnyArray | None) -> bool:
        """The same classes; a model mostly gives the very same array again."""
        if classes is not self._seen and not np.array_equal(np.asarray(self.classes), np.asarray(classes)):
            return False
        self._seen = classes
        return True

    def append(self, answers: Answers) -> int:
        assert answers.labels is not None
        first = self._labels.append(answers.labels)
        if self._probabilities is not None and answers.probabilities is not None:
            self._probabilities.append(answers.probabilities)
        return first

    def slice(self, first_row: int, n: int) -> tuple[AnyArray, F64 | None]:
        """Consecutive rows, as views."""
        labels = self._labels.slice(first_row, n)
        if self._probabilities is None:
            return labels, None
        return labels, self._probabilities.slice(first_row, n).astype(np.float64, copy=False)

    def take(self, first_rows: I64, n_rows: I64) -> tuple[AnyArray, F64 | None]:
        labels = self._labels.take(first_rows, n_rows)
        if self._probabilities is None:
            return labels, None
        return labels, self._probabilities.take(first_rows, n_rows).astype(np.float64, copy=False)
