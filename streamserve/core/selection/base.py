"""The policy protocol, and the draw that every policy shares.

A policy holds configuration only; its state is a value passed in and returned (Clipper, section 5: select, combine,
observe). `decide` is split in two so that it can be columnar: `distribution(state)` is computed once per learnt state,
and `draw` picks from it for thousands of requests in one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from streamserve.core.fast import constant
from streamserve.core.messages import F64, I64, PROBABILITY_ONE, U64
from streamserve.core.records import OutcomeRecord
from streamserve.core.values import unchanging


@unchanging(eq=False)
class Distribution:
    """What a policy may choose under one state: sets of models, each with its exact probability."""

    masks: U64
    """`[choices]`: each possible set of models, as bits in the route's order."""
    probabilities: I64
    """`[choices]`: fixed point, summing to `PROBABILITY_ONE`."""
    weights: F64
    """`[models]`: each model's weight in the combination, summing to 1; >= 0 but for a policy that reads probabilities
    (its route combines log-probabilities, and to take one away is sound)."""


class Policy(Protocol):
    """Configuration of a policy; stateless. States are any immutable value.

    More attributes may be there: `when_to_use`, a line for people; `sticky_by_key`: where it is true, requests of one
    record key draw alike; `reads_probabilities`: where it is true, outcomes tell each member's probabilities.
    """

    @property
    def name(self) -> str:
        """As in the config and in `StateRecord.policy`."""
        ...

    def initial(self, models: Sequence[str]) -> Any:
        """The state before any feedback, for these model ids in the route's order."""
        ...

    def distribution(self, state: Any, models: Sequence[str]) -> Distribution:
        """Choices, exact probabilities and weights under this state, in the order of `models`."""
        ...

    def learn(self, state: Any, outcome: OutcomeRecord) -> Any:
        """The state after this outcome; the logged probability is `outcome.decision.probability`."""
        ...

    def dump(self, state: Any) -> Mapping[str, Any]:
        """The state as plain JSON values, with the model ids in it."""
        ...

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> Any:
        """A state from `dump`; models that it lacks enter at the mean, those it has too many are left out."""
        ...


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_U64 = (1 << 64) - 1


def _mix(x: U64) -> U64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014) on an array; wraps modulo 2**64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def _mix_one(x: int) -> int:
    """The same of one number: arrays of one cost ten times as much."""
    x = ((x ^ (x >> 30)) * int(_MIX_1)) & _U64
    x = ((x ^ (x >> 27)) * int(_MIX_2)) & _U64
    return x ^ (x >> 31)


def salt_of(*words: str) -> int:
    """A 64-bit salt from words: FNV-1a, the same in every process whatever PYTHONHASHSEED."""
    value = _FNV_OFFSET
    for byte in "\x00".join(words).encode():
        value = ((value ^ byte) * _FNV_PRIME) & _U64
    return value


def draw(partition: I64, offsets: I64, salt: int) -> I64:
    """Uniform draws in [0, PROBABILITY_ONE), a function of (partition, offset, salt) alone. `[n]` in and out."""
    if len(offsets) == 1:
        begin = (int(partition[0]) + 1) * int(_GOLDEN) + (salt & _U64)
        return np.array([_mix_one(_mix_one((int(offsets[0]) * int(_GOLDEN) + begin) & _U64)) >> 32], np.int64)
    start = (partition + 1).astype(np.uint64) * _GOLDEN + np.uint64(salt & _U64)
    mixed = _mix(_mix(offsets.astype(np.uint64) * _GOLDEN + start))
    return (mixed >> np.uint64(32)).astype(np.int64)


def is_sticky(policy: Policy) -> bool:
    """Whether requests of one key draw alike under this policy."""
    return bool(getattr(policy, "sticky_by_key", False))


def reads_probabilities(policy: Policy) -> bool:
    """Whether this policy learns from what each member gave each class."""
    return bool(getattr(policy, "reads_probabilities", False))


def sticky_places(partition: I64, offsets: I64, keys: Sequence[bytes | None]) -> tuple[I64, I64]:
    """Where a request with a key draws as if it stood: a place that only its key decides. `[n]` in and out.

    No request stands there (the partition is -1), so keys and places never draw alike but by chance.
    """
    keyed = np.fromiter((key is not None for key in keys), np.bool_, len(keys))
    hashes = np.fromiter((0 if key is None else zlib.crc32(key) for key in keys), np.int64, len(keys))
    return np.where(keyed, -1, partition), np.where(keyed, hashes, offsets)


def pick(distribution: Distribution, partition: I64, offsets: I64, salt: int) -> tuple[U64, I64]:
    """Masks and exact probabilities of n requests under one distribution: inverse-CDF on a hashed draw."""
    if len(distribution.masks) == 1:
        n = len(offsets)
        return constant(n, int(distribution.masks[0]), "uint64"), constant(n, PROBABILITY_ONE)
    edges = np.cumsum(distribution.probabilities)
    index = np.searchsorted(edges, draw(partition, offsets, salt), side="right")
    return distribution.masks[index], distribution.probabilities[index]
