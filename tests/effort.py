"""How many examples a property gets that wants more or fewer than Hypothesis gives by itself."""

from __future__ import annotations

from hypothesis import settings

_BY_ITSELF = 100


def examples(full: int) -> int:
    """`full` of them; with a profile of fewer examples (`--hypothesis-profile=fast`) the same share of `full`."""
    return max(1, full * settings().max_examples // _BY_ITSELF)
