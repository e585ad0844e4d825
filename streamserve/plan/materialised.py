"""Materialised sub-results: rows of features that one plan has made are kept for the other plans of a process.

What is kept: a document's features under one text stage (ids and values), the work that heads over one vocabulary share
(PRETZEL section 4.3, "sub-plan materialization"). Looked up by (stage, document): the hash only finds the place, the
document itself is compared. What a plan then says has the same bits: the products are added in the same order.

Who gets in: a document that is seen for the second time (a doorkeeper of fingerprints remembers the first); one in so
many looks, since making a row costs more than an answer, and fewer than one in a hundred cannot move the 99th
percentile; and, where the cache is full, only if the least recently used row was not asked for again: a row that was
gets another turn instead. So documents that never come again fill nothing and pay for one look each; and when hardly a
look finds anything, the cache rests for some thousand documents before it tries again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import DIGEST_BYTES, Graph
from streamserve.plan.kernels.memory import addresses
from streamserve.plan.kernels.products import add_products
from streamserve.plan.kernels.texts import Texts
from streamserve.plan.operators.fused import stage_of
from streamserve.plan.operators.linear import zero_scores

#: Fingerprints of documents seen once; at the same place a newer one takes an older one's.
_DOOR_SLOTS = 1 << 16
#: Looks after which it is asked whether they pay, the part of them that must have found something, and the rest else.
_TRIAL, _LEAST_HITS, _REST = 2_048, 0.03, 16_384
#: Of so many looks one may make a row; so many rows at most when there was none for a while.
_LOOKS_PER_ROW, _MOST_SAVED = 128, 8
#: Of the bytes of the whole cache, the most that one row may take.
_LARGEST = 64
#: Bytes of an entry beside its arrays and document: objects and places in tables.
_ENTRY_BYTES = 600


@dataclass(slots=True, eq=False)
class _Row:
    """A document's features under one stage."""

    ids: AnyArray
    values: AnyArray
    places: tuple[int, int, int]
    """Address of the ids, of the values, how many."""
    nbytes: int
    asked: int = 0
    """How often it was found since it last had to leave and did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """What a cache has done since it began, and what it holds."""

    most_bytes: int
    bytes: int
    rows: int
    hits: int
    misses: int
    admitted: int
    evicted: int
    skipped: int
    """Documents that were not looked up while it rested."""


class SubResults:
    """Rows of features by (stage, document), at most so many bytes. Threads may share it."""

    def __init__(self, most_bytes: int, *, looks_per_row: int = _LOOKS_PER_ROW) -> None:
        """`looks_per_row`: of so many looks at most one leads to a row that is kept."""
        self._most_bytes = most_bytes
        self._looks_per_row = looks_per_row
        self._saved_looks = 0
        self._rows: OrderedDict[tuple[str, str], _Row] = OrderedDict()
        self._door = array("q", bytes(8 * _DOOR_SLOTS))
        self._lock = threading.Lock()
        self._bytes = self._hits = self._misses = self._admitted = self._evicted = self._skipped = 0
        self._trial_looks = self._trial_hits = self._rest = 0

    def rests(self, documents: int) -> bool:
        """Whether so many documents are not to be looked up. A count lost between threads only makes it rest longer."""
        if self._rest <= 0:
            return False
        self._rest -= documents
        self._skipped += documents
        return True

    def look(self, stage: str, documents: Sequence[str]) -> tuple[dict[int, _Row], list[int]] | None:
        """(rows found by place, places whose features are worth keeping); None where there is neither."""
        found: dict[int, _Row] = {}
        wanted: list[int] = []
        with self._lock:
            rows, door = self._rows, self._door
            saved = min(self._saved_looks + len(documents), max(len(documents), _MOST_SAVED * self._looks_per_row))
            for place, document in enumerate(documents):
                key = (stage, document)
                row = rows.get(key)
                if row is not None:
                    row.asked += 1
                    rows.move_to_end(key)
                    found[place] = row
                    continue
                mark = hash(key)
                slot = mark & (_DOOR_SLOTS - 1)
                if door[slot] != mark:
                    door[slot] = mark
                elif saved >= self._looks_per_row:
                    saved -= self._looks_per_row
                    wanted.append(place)
            self._saved_looks = saved
            self._tell(len(documents), len(found))
        return (found, wanted) if found or wanted else None

    def _tell(self, looks: int, hits: int) -> None:
        self._hits += hits
        self._misses += looks - hits
        self._trial_looks += looks
        self._trial_hits += hits
        if self._trial_looks >= _TRIAL:
            if self._trial_hits < _LEAST_HITS * self._trial_looks:
                self._rest = _REST
            self._trial_looks = self._trial_hits = 0

    def put(self, stage: str, document: str, ids: AnyArray, values: AnyArray) -> _Row:
        """The row of these features, kept if it gets in."""
        ids, values = ids.copy(), values.copy()  # of their own: a slice would keep its whole batch
        both = addresses(ids, values)
        nbytes = ids.nbytes + values.nbytes + sys.getsizeof(document) + _ENTRY_BYTES
        row = _Row(ids, values, (int(both[0]), int(both[2]), len(ids)), nbytes)
        if nbytes * _LARGEST <= self._most_bytes:
            with self._lock:
                self._admit((stage, document), row)
        return row

    def _admit(self, key: tuple[str, str], row: _Row) -> None:
        if key in self._rows:  # another thread was first
            return
        while self._bytes + row.nbytes > self._most_bytes:
            oldest, leaving = next(iter(self._rows.items()))
            if leaving.asked:
                leaving.asked //= 2
                self._rows.move_to_end(oldest)
                return
            del self._rows[oldest]
            self._bytes -= leaving.nbytes
            self._evicted += 1
        self._rows[key] = row
        self._bytes += row.nbytes
        self._admitted += 1

    def figures(self) -> CacheFigures:
        with self._lock:
            return CacheFigures(
                most_bytes=self._most_bytes,
                bytes=self._bytes,
                rows=len(self._rows),
                hits=self._hits,
                misses=self._misses,
                admitted=self._admitted,
                evicted=self._evicted,
                skipped=self._skipped,
            )


def feature_keys(graph: Graph) -> dict[int, str]:
    """Of each text stage (`score`, `features`): the hash of what decides a document's features, weights left out."""
    found = {}
    for i, node in enumerate(graph.nodes):
        if node.op not in {"score", "features"}:
            continue
        constants = {name: one.digest for name, one in sorted(node.constants.items()) if name != "weights"}
        whole = json.dumps([graph.nodes[node.inputs[0]].own_key(), dict(sorted(node.params.items())), constants])
        found[i] = hashlib.blake2b(whole.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return found


def shared_keys(graphs: Iterable[Graph]) -> frozenset[str]:
    """Those that two or more graphs have: what one of them has made another can use."""
    seen: set[str] = set()
    shared: set[str] = set()
    for graph in graphs:
        keys = set(feature_keys(graph).values())
        shared |= keys & seen
        seen |= keys
    return frozenset(shared)


def materialising(
    graph: Graph, cache: SubResults, shared: frozenset[str], plain: Sequence[Sequence[Callable[..., Any]]]
) -> Mapping[int, Sequence[Callable[..., Any]]]:
    """Node -> how it runs with the cache, for those whose features are shared. `plain`: how each runs without, by
    sizes of batches."""
    found: dict[int, Sequence[Callable[..., Any]]] = {}
    for i, key in feature_keys(graph).items():
        if key in shared:
            kind = _Scores if graph.nodes[i].op == "score" else _Features
            found[i] = [kind(graph.nodes[i], key, cache, run) for run in plain[i]]
    return found


class _Kept:
    """What both kinds of stages do: look, make what is worth keeping, leave the rest to the plain way."""

    def __init__(self, node: Any, key: str, cache: SubResults, plain: Callable[..., Any]) -> None:
        self._stage, self._key, self._cache, self._plain = stage_of(node), key, cache, plain

    def _rows(self, texts: Texts, looked: tuple[dict[int, _Row], list[int]]) -> dict[int, _Row]:
        """The rows found, and those made now to be kept."""
        found, wanted = looked
        if not wanted:
            return found
        ids, values, starts = self._stage.rows(texts.taken(wanted))
        ends = starts.tolist()
        for k, place in enumerate(wanted):
            part = slice(ends[k], ends[k + 1])
            found[place] = self._cache.put(self._key, texts.documents[place], ids[part], values[part])
        return found


class _Scores(_Kept):
    """A `score` stage: of features that are there only the products are left to do."""

    def __init__(self, node: Any, key: str, cache: SubResults, plain: Callable[..., Any]) -> None:
        super().__init__(node, key, cache, plain)
        self._weights = np.ascontiguousarray(node.array("weights"))
        self._pinned = addresses(self._weights)

    def __call__(self, texts: Texts, so_far: Any = None) -> Any:
        if self._cache.rests(len(texts)) or (looked := self._cache.look(self._key, texts.documents)) is None:
            return self._plain(texts, so_far)
        scores = zero_scores(len(texts), self._weights) if so_far is None else so_far
        rows = self._rows(texts, looked)
        add_products(np.array([(place, *row.places) for place, row in rows.items()]), self._pinned, scores)
        if len(rows) < len(texts):
            rest = [place for place in range(len(texts)) if place not in rows]
            scores[rest] = self._plain(texts.taken(rest), scores[rest])
        return scores


class _Features(_Kept):
    """A `features` stage: CSR rows, those that are there among those that are made."""

    def __call__(self, texts: Texts) -> Any:
        if self._cache.rests(len(texts)) or (looked := self._cache.look(self._key, texts.documents)) is None:
            return self._plain(texts)
        rows = self._rows(texts, looked)
        rest = [place for place in range(len(texts)) if place not in rows]
        made = self._plain(texts.taken(rest)) if rest else None
        ids, values = [rows[place].ids for place in rows], [rows[place].values for place in rows]
        ends = np.cumsum([0, *map(len, ids)])
        shape = (len(rows), self._stage.features)
        kept = sparse.csr_matrix((np.concatenate(values), np.concatenate(ids), ends.astype(ids[0].dtype)), shape=shape)
        if made is None and list(rows) == list(range(len(texts))):
            return kept
        whole = kept if made is None else sparse.vstack([kept, made], format="csr")
        return whole[np.argsort([*rows, *rest])]
