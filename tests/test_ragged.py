"""Why nested lists are no array, in words of ours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamserve.ragged import why_no_array


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1, 2], [3]], "row 0 has 2 values, row 1 has 1 value"),
        ([[1], [2], []], "row 0 has 1 value, row 2 has 0 values"),
        ([1, [2]], "row 0 is 1, row 1 has 1 value"),
        ([[1], "x" * 99], "row 0 has 1 value, row 1 is str"),
        ([[[1, 2], [3, 4]], [[5, 6], [7]]], "row 1.0 has 2 values, row 1.1 has 1 value"),
        ("word", "str is no list of rows"),
    ],
)
def test_the_first_difference_is_named(values: object, words: str) -> None:
    assert why_no_array(values) == words


def test_what_is_nested_without_end_is_told_too() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert why_no_array(endless) == "it is nested too deep"


@given(st.recursive(st.integers(0, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_whatever_numpy_refuses_differs_somewhere(values: object) -> None:
    try:
        np.asarray(values)
    except ValueError:
        assert why_no_array(values).startswith("row ")
