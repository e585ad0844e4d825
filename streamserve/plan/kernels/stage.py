"""One text stage: what the text kernel needs of a node, made once, and the call."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import F64, I64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.kernels import text as kernel
from streamserve.plan.kernels.characters import classes, lowering
from streamserve.plan.kernels.dictionary import EMPTY_ARENA, EMPTY_SLOTS, build, longest_of, powers
from streamserve.plan.kernels.memory import addresses
from streamserve.plan.kernels.scratch import logs, scratch
from streamserve.plan.kernels.texts import Packed, Texts

_ANALYSERS = {"word": kernel.WORD, "char": kernel.CHAR, "char_wb": kernel.CHAR_WB}
_NORMS = {None: kernel.NORM_NONE, "l1": kernel.NORM_L1, "l2": kernel.NORM_L2, "max": kernel.NORM_MAX}
#: Patterns that the kernel itself finds, and the shortest token of each.
KNOWN_PATTERNS = {r"(?u)\b\w\w+\b": 2, r"\b\w\w+\b": 2, r"(?u)\b\w+\b": 1, r"\b\w+\b": 1, r"(?u)\w+": 1, r"\w+": 1}
#: Place of the logarithms among what a stage pins.
_LOGS = 4
_NO_WEIGHTS: F64 = np.zeros((0, 1))
_NO_VALUES: F64 = np.zeros(0)


class TextStage:
    """Calls the kernel for one `features` or `score` node."""

    def __init__(self, node: Node) -> None:
        self._pattern: str = node.param("pattern")
        self._stop_words = frozenset(node.param("stop_words"))
        word = node.param("analyser") == "word"
        self._by_regex = word and self._pattern not in KNOWN_PATTERNS
        self._sublinear: bool = node.param("sublinear")
        self._scale = float(node.param("scale"))
        self._dtype = np.dtype(node.param("dtype"))
        self._arena, self._slots = EMPTY_ARENA, EMPTY_SLOTS
        if "arena" in node.constants:
            self._arena, self._slots = node.array("arena"), node.array("slots")
        self._stop_arena, self._stop_slots = EMPTY_ARENA, EMPTY_SLOTS
        longest = longest_of(self._arena)
        if word and self._stop_words and not self._by_regex:
            self._stop_arena, self._stop_slots = build(sorted(self._stop_words))
            longest = max(longest, longest_of(self._stop_arena))
        self._power = powers(longest)
        self.features: int = node.param("features")
        self._idf = node.array("idf") if "idf" in node.constants else _NO_VALUES
        self._weights = node.array("weights") if "weights" in node.constants else _NO_WEIGHTS
        self._options = self._options_of(node)
        self._min_n, self._max_n = node.param("min_n"), node.param("max_n")
        self._sizes = self._max_n - self._min_n + 1
        self._classes, self._lower = classes(), lowering()
        self._pinned = self._pin()
        scratch().fit(self.features, 0, self._sizes)

    def _pin(self) -> tuple[I64, tuple[AnyArray, ...]]:
        """Addresses of what the kernel reads, in its order, and the arrays: whoever holds the pair keeps them alive."""
        table = logs.table if self._sublinear else _NO_VALUES
        arrays = (
            self._slots, self._arena, self._stop_slots, self._stop_arena, table, self._idf, self._weights,
            self._power, self._classes, self._lower,
        )  # fmt: skip
        return addresses(*arrays), arrays

    def _options_of(self, node: Node) -> I64:
        options = np.zeros(kernel.OPTIONS, dtype=np.int64)
        analyser = _ANALYSERS[node.param("analyser")]
        options[kernel.ANALYSER] = kernel.TOKENS if self._by_regex else analyser
        options[kernel.MIN_N], options[kernel.MAX_N] = node.param("min_n"), node.param("max_n")
        options[kernel.MIN_LENGTH] = KNOWN_PATTERNS.get(self._pattern, 0)
        options[kernel.BINARY] = node.param("binary")
        options[kernel.SUBLINEAR] = self._sublinear
        options[kernel.NORM] = _NORMS[node.param("norm")]
        options[kernel.FEATURES] = self.features
        if "arena" not in node.constants:
            options[kernel.HASHES] = kernel.SIGNED if node.param("signed") else kernel.UNSIGNED
        return options

    def _packed(self, texts: Texts) -> Packed:
        return texts.tokenised(self._pattern, self._stop_words) if self._by_regex else texts.packed

    def _call(self, packed: Packed, options: I64, scores: AnyArray, into: tuple[Any, Any, Any] | None = None) -> int:
        """`into`: found, values and row ends, where the features are wanted; None: the thread's own."""
        own = scratch()
        own.fit(self.features, packed.longest_bytes, self._sizes)
        pinned = self._pinned  # by this call too: another thread may pin longer tables meanwhile
        if self._sublinear and packed.longest_bytes * self._sizes >= len(pinned[1][_LOGS]):
            logs.up_to(packed.longest_bytes * self._sizes + 1)
            pinned = self._pinned = self._pin()
        call: Any = kernel.score
        result: int = call(
            options, pinned[0], self._scale, own.addresses,
            packed.text, packed.offsets, packed.lowered, packed.tokens, packed.token_offsets,
            *(into or (own.found, own.values, own.row_ends)), scores,
        )  # fmt: skip
        return result

    def add_scores(self, texts: Texts, scores: AnyArray) -> None:
        """Add each document's score of every head to `scores [n, K]`, in place, in the type of the weights."""
        self._call(self._packed(texts), self._options, scores)

    def rows(self, texts: Texts) -> tuple[AnyArray, AnyArray, I64]:
        """The features of all documents, end to end: int32 ids, values, and where each document begins, `[n + 1]`."""
        packed = self._packed(texts)
        rows = len(packed.offsets) - 1
        units = len(packed.tokens) if self._by_regex else len(packed.text) + 2 * rows
        room = min(units * self._sizes, rows * self.features) + self.features
        found = np.empty(room, dtype=np.int32)
        values = np.empty(room, dtype=np.float64)
        ends = np.zeros(rows + 1, dtype=np.int64)
        options = self._options.copy()
        options[kernel.EMIT] = 1
        filled = self._call(packed, options, np.zeros((rows, 1)), (found, values, ends[1:]))
        return found[:filled], values[:filled].astype(self._dtype, copy=False), ends

    def matrix(self, texts: Texts) -> Any:
        """The features as CSR `[n, features]`."""
        found, values, ends = self.rows(texts)
        index = np.int32 if len(found) <= np.iinfo(np.int32).max else np.int64
        parts = (values.copy(), found.astype(index), ends.astype(index))
        return sparse.csr_matrix(parts, shape=(len(ends) - 1, self.features))
