"""The worker's cache at work: which requests of a batch are known, which repeat one under way, which must run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from streamserve.core.bounds import Fill, fullest
from streamserve.core.cache import CachedRows, ResultCache, frozen_copy, input_key
from streamserve.core.desk import Batch, ModelRules
from streamserve.core.fast import indices, some
from streamserve.core.messages import I64, Flags, Outputs
from streamserve.core.outputs import alike, joined
from streamserve.core.rows import ranges, starts_of
from streamserve.core.values import unchanging


@unchanging(eq=False)
class SortedOut:
    """A batch, sorted out; numbers are indices of its requests."""

    known: list[tuple[I64, Outputs]]
    """Requests that the cache answers, with their rows one after the other."""
    lead: I64
    """Those that must run."""
    keys: tuple[Hashable, ...]
    """Of `lead`."""
    hits: int
    followers: I64
    """Those that wait for an equal input's call."""


class Coalescing:
    """Result caches by model, and who follows whom: a follower is a handle that waits for an equal input's call."""

    def __init__(self, most_following: int) -> None:
        """`most_following`: requests that may leave a queue to follow a call that is under way."""
        self._caches: dict[str, ResultCache] = {}
        self._followers: dict[Hashable, list[int]] = {}
        self._following = 0
        self._most_following = most_following

    def fills(self) -> dict[str, Fill]:
        """The fullest cache, and who follows."""
        return {
            "cache_bytes": fullest([Fill(cache.used_bytes, cache.budget_bytes) for cache in self._caches.values()]),
            "coalesced_requests": Fill(self._following, self._most_following),
        }

    def forget(self, model: str) -> None:
        """What is known of a model that is hosted no more."""
        self._caches.pop(model, None)

    def sort_out(self, rules: ModelRules, batch: Batch, *, leads: bool = True) -> SortedOut:
        """`leads` False: nothing of it is to run now; what is neither known nor under way is left out."""
        cache = self._caches.setdefault(rules.model, ResultCache(rules.cache_bytes))
        hits: list[tuple[int, CachedRows]] = []
        lead: list[int] = []
        followers: list[int] = []
        keys: list[Hashable] = []
        starts = starts_of(batch.n_rows)
        for i in range(len(batch)):
            key = input_key(rules.model, batch.inputs[starts[i] : starts[i + 1]])
            known = cache.get(key)
            if known is not None:
                hits.append((i, known))
            elif key in self._followers:
                if not leads and self._following >= self._most_following:
                    continue  # it stays in its queue, which has a bound of its own
                self._followers[key].append(int(batch.handles[i]))
                self._following += 1
                followers.append(i)
            elif leads:
                self._followers[key] = []
                keys.append(key)
                lead.append(i)
        return SortedOut(
            known=_in_groups(hits),
            lead=np.array(lead, np.int64),
            keys=tuple(keys),
            hits=len(hits),
            followers=np.array(followers, np.int64),
        )

    def remember(self, model: str, batch: Batch, outputs: Outputs | None, good: Flags) -> None:
        """Put what a call said of its good requests into the cache."""
        if outputs is None or not some(good):
            return
        cache, starts = self._caches[model], starts_of(batch.n_rows)
        for i in indices(good).tolist():
            rows = slice(int(starts[i]), int(starts[i + 1]))
            probabilities = outputs.probabilities
            entry = CachedRows(
                labels=frozen_copy(outputs.labels[rows]),
                probabilities=None if probabilities is None else frozen_copy(probabilities[rows]),
                classes=outputs.classes,
            )
            cache.put(batch.keys[i], entry)

    def followers(self, key: Hashable) -> Sequence[int]:
        return self._followers.get(key, ())

    def release(self, key: Hashable) -> Sequence[int]:
        """The followers of an input whose call is over."""
        released = self._followers.pop(key, ())
        self._following -= len(released)
        return released


def _in_groups(hits: list[tuple[int, CachedRows]]) -> list[tuple[I64, Outputs]]:
    """Hits whose rows can stand in one array, together: each group is one record of answers."""
    groups: list[tuple[list[int], list[Outputs]]] = []
    for i, rows in hits:
        outputs = Outputs(labels=rows.labels, probabilities=rows.probabilities, classes=rows.classes)
        for members, found in groups:
            if alike(found[0], outputs) and found[0].labels.dtype == outputs.labels.dtype:
                members.append(i)
                found.append(outputs)
                break
        else:
            groups.append(([i], [outputs]))
    return [(np.array(members, np.int64), joined(found)) for members, found in groups]


def subset(batch: Batch, rows: I64, number: int) -> Batch:
    """These requests of a batch, without their cache keys."""
    starts = starts_of(batch.n_rows)
    return replace(
        batch,
        number=number,
        handles=batch.handles[rows],
        n_rows=batch.n_rows[rows],
        inputs=batch.inputs[ranges(starts[:-1][rows], batch.n_rows[rows])],
        asked=batch.asked.take(rows),
        keys=(),
    )
