"""How many examples a property gets that wants more or fewer than Hypothesis gives by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from hypothesis import settings

_BY_ITSELF = 100


def examples(full: int) -> int:
    """`full` of them; with a profile of fewer examples (`--hypothesis-profile=fast`) the same share of `full`."""
    return max(1, full * settings().max_examples // _BY_ITSELF)


def check_law(law: Callable[..., None], policy: object) -> None:
    """A law of `streamserve.testing.policy_checks`, with its share of rounds where it goes by their number."""
    rounds = inspect.signature(law).parameters.get("n")
    if rounds is None:
        law(policy)
    else:
        law(policy, n=max(2_000, examples(rounds.default)))
