"""Rows to try a plan with, made of what the plan itself knows: its vocabularies, its columns, its categories."""

from __future__ import annotations

import random
from typing import Any

from streamserve.plan.graph import Graph
from streamserve.plan.kernels.dictionary import entries_of
from streamserve.plan.sampling_columns import sample_table

ROWS = 200
_SEED = 7
_MOST_ENTRIES = 4_000
#: Between words: what scripts and editors put there.
_BETWEEN = (" ", " ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "-", ", ", "'", "_", "")
#: Characters that have caught somebody: case that changes length, context, combining marks, other planes, surrogates.
_ODD = (
    "İ", "ı", "ẞ", "ß", "Σ", "ς", "ΑΣ", "ﬁ", "Å", "é", "e\u0301", "ñ", "ⅷ", "²", "½", "™", "ª", "क्षि", "हिन्दी",
    "中文", "日本語", "한국어", "עברית", "العربية", "ไทย", "😀", "👩‍👩‍👧", "𝔘𝔫", "\ud800",
    "\udfff", "\u200b", "\ufeff", "\x00", "\x85", "_", "__", "a_b", "I'm", "x" * 300, "1", "12", "٣",
)  # fmt: skip
_WHOLE = ("", " ", "\t", "\n \n", "\u2003\u2003", ".", "!!! ???", "a", "A", "aa", "A B C D", "é" * 50, "word " * 200)


def sample_rows(graph: Graph, *, rows: int = ROWS, seed: int = _SEED, odd: bool = True) -> Any:
    """Rows of the form that the graph takes; the same for the same graph and seed.

    `odd` adds what a model seldom sees and must answer all the same: to be compared with, not to be timed with.
    """
    texts = sample_texts(graph, rows=rows, seed=seed, odd=odd)
    if graph.form.kind == "text":
        return texts
    return sample_table(graph, rows=rows, seed=seed, odd=odd, texts=texts)


def sample_texts(graph: Graph, *, rows: int, seed: int, odd: bool) -> list[str]:
    """Documents of the vocabularies' own entries; where `odd`, in every case, with odd characters and separators."""
    draw = random.Random(seed)
    entries = [entry for node in graph.nodes if "arena" in node.constants for entry in _some(node.array("arena"), draw)]
    entries = entries or ["word"]
    if not odd:
        return [" ".join(draw.choices(entries, k=draw.choice((20, 60, 100)))) for _ in range(rows)]
    documents = list(_WHOLE[:rows])
    while len(documents) < rows:
        parts: list[str] = []
        for _ in range(draw.choice((1, 3, 10, 40, 120))):
            chance = draw.random()
            part = draw.choice(_ODD) if chance < 0.12 else draw.choice(entries)
            part = draw.choice((str, str, str, str.upper, str.title))(part)
            parts += (part, draw.choice(_BETWEEN))
        documents.append("".join(parts))
    return documents


def _some(arena: Any, draw: random.Random) -> list[str]:
    entries = list(entries_of(arena))
    return entries if len(entries) <= _MOST_ENTRIES else draw.sample(entries, _MOST_ENTRIES)
