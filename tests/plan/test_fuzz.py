"""A hundred thousand strings of every script, and whitespace, against scikit-learn: minutes, so by `make test-long`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sklearn.base import clone

from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

STRINGS = 100_000
_AT_ONCE = 5_000
#: Latin, Greek, Cyrillic, Hebrew and Arabic, Devanagari, Thai, CJK, Hangul, symbols, emoji, letters of mathematics,
#: combining marks, spaces, surrogates, and all the rest.
_BLOCKS = (
    (0x20, 0x7F), (0x20, 0x7F), (0x41, 0x5B), (0x80, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530),
    (0x590, 0x700), (0x900, 0x980), (0xE00, 0xE80), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2200),
    (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xD800, 0xE000), (0x1D400, 0x1D800), (0x1F300, 0x1F700),
    (0x0, 0x20), (0x0, 0x110000),
)  # fmt: skip


def strings(seed: int) -> list[str]:
    draw = random.Random(seed)
    found = []
    for _ in range(STRINGS):
        blocks = draw.sample(_BLOCKS, k=draw.choice((1, 2, 4)))
        parts = []
        for _ in range(draw.choice((0, 1, 3, 8, 20))):
            if draw.random() < 0.3:
                parts.append(draw.choice(DOCUMENTS)[: draw.randrange(12)])
            else:
                low, high = draw.choice(blocks)
                parts.append("".join(chr(draw.randrange(low, high)) for _ in range(draw.choice((1, 2, 5)))))
            parts.append(draw.choice(("", "", " ", " ", "  ", "\t", "\n", "\u00a0", "\u2003", "\x1f", "-")))
        found.append("".join(parts))
    return found


@pytest.fixture(scope="module")
def drawn() -> list[str]:
    return strings(1)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VECTORISERS)
def test_a_hundred_thousand_strings(name: str, drawn: list[str]) -> None:
    vectoriser: Any = clone(VECTORISERS[name])
    model = fitted(vectoriser)
    # n-grams of the strings themselves, so that they are found
    more = [*DOCUMENTS, *drawn[:2_000]]
    model.fit(more, [i % 2 for i in range(len(more))])
    plan = laid_out(import_fitted(model).graph)
    for first in range(0, STRINGS, _AT_ONCE):
        rows = drawn[first : first + _AT_ONCE]
        expected, found = model.decision_function(rows), plan.decision_function(rows)
        assert found.tolist() == expected.tolist(), next(
            repr(row) for row, a, b in zip(rows, expected, found, strict=True) if a != b
        )
