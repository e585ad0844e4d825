"""Which pool should host which model, so that models that share arrays share a process's memory.

Every pool maps each array once, however many of its models use it. So the memory of a placement is the sum over pools
of the distinct bytes of their models. Pools take about equally many models, since requests go by model, and one pool
with all of them would be the cheapest and the slowest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Array -> bytes.
Arrays = Mapping[str, int]
#: A pool may take so much more than an equal share of the models, for the sake of sharing.
SLACK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A proposal."""

    pools: tuple[tuple[str, ...], ...]
    """The models of each pool."""
    pool_bytes: tuple[int, ...]
    """Distinct bytes of each pool."""
    dealt_bytes: int
    """What the same pools would hold with the models dealt out in turn."""
    unshared_bytes: int
    """What the models hold without any sharing."""

    @property
    def bytes(self) -> int:
        """Of all pools."""
        return sum(self.pool_bytes)


def place(models: Mapping[str, Arrays], pools: int) -> Placement:
    """A placement of models in so many pools. Raises ValueError for less than one pool.

    Models come in the order of what they share, largest first, so those that share it come one after another; each goes
    where it adds the fewest bytes, of equal ones where there is the most room. Never more than dealt out in turn: where
    that is no more, it is proposed.
    """
    if pools < 1:
        raise ValueError("a placement needs at least one pool")
    dealt = [list(models)[i::pools] for i in range(pools)]
    dealt_bytes = sum(_distinct(models, members) for members in dealt)
    proposed = _greedy(models, pools)
    sizes = [_distinct(models, members) for members in proposed]
    if sum(sizes) > dealt_bytes:
        proposed, sizes = dealt, [_distinct(models, members) for members in dealt]
    return Placement(
        pools=tuple(tuple(members) for members in proposed),
        pool_bytes=tuple(sizes),
        dealt_bytes=dealt_bytes,
        unshared_bytes=sum(sum(arrays.values()) for arrays in models.values()),
    )


def _greedy(models: Mapping[str, Arrays], pools: int) -> list[list[str]]:
    users = Counter(array for arrays in models.values() for array in arrays)
    room = max(-(-len(models) // pools), int((1 + SLACK) * len(models) / pools))

    def shares(model: str) -> tuple[list[tuple[int, str]], str]:
        shared = [(-size, array) for array, size in models[model].items() if users[array] > 1]
        return sorted(shared), model

    members: list[list[str]] = [[] for _ in range(pools)]
    held: list[set[str]] = [set() for _ in range(pools)]
    for model in sorted(models, key=shares):
        arrays = models[model]
        open_pools = [i for i in range(pools) if len(members[i]) < room]
        added = {i: sum(size for array, size in arrays.items() if array not in held[i]) for i in open_pools}
        best = min(open_pools, key=lambda i: (added[i], len(members[i]), i))
        members[best].append(model)
        held[best].update(arrays)
    return members


def _distinct(models: Mapping[str, Arrays], members: Sequence[str]) -> int:
    sizes: dict[str, int] = {}
    for model in members:
        sizes.update(models[model])
    return sum(sizes.values())
