"""What each character is to this interpreter: part of a word, or whitespace; and how ASCII is lowered.

Both tables come from the `re` module of the running interpreter, since that is what scikit-learn asks; versions of
Python know different versions of Unicode.
"""

from __future__ import annotations

import re
import sys
from functools import cache

import numpy as np

from streamserve.core.messages import U8

_IS_WORD, _IS_SPACE = 1, 2
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000


@cache
def classes() -> U8:
    """`[1114112]`: bit 0 where `\\w` matches the code point, bit 1 where `\\s` does. Made once, in some 0.1 s."""
    points = sys.maxunicode + 1
    everything = "".join(map(chr, range(points)))
    table = np.zeros(points, dtype=np.uint8)
    for pattern, bit in ((r"\w+", _IS_WORD), (r"\s+", _IS_SPACE)):
        for run in re.finditer(pattern, everything):
            table[run.start() : run.end()] |= bit
    table.flags.writeable = False
    return table


@cache
def lowering() -> U8:
    """`[512]`: bytes as they are, then bytes with A-Z as a-z. Only ASCII is lowered by table: see `texts`."""
    same = np.arange(256, dtype=np.uint8)
    lowered = same.copy()
    lowered[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
    table: U8 = np.concatenate([same, lowered])
    table.flags.writeable = False
    return table
