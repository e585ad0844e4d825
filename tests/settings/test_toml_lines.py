"""The locator against documents written with known positions, by hand and at random."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.settings.lines import key_lines, line_of
from tests.effort import examples

DOCUMENT = '''\
# a comment = "not a key"
top = 1
"quoted key" . 'with # hash' = "a # no comment \\" [x]"

[a]
b = { c = 1, d = { e = [1, 2] } } # comment
list = [ # one
  "x", # [not.a.table]
  # nothing
  { k = 1 },

  [ 1,
    2 ],
]
text = """
[not.a.header]
key = "value"
""\\"""""
raw = \'\'\'
x = 1\'\'\'\'\'
after = 1979-05-27 07:32:00Z

[a . "x.y"]
z.deep.key = true
[[jobs]]
name = "first"
  [jobs.limits]
  cpu = 1
[[jobs]]
name = "second"
  [[jobs.parts]]
  p = 1
  [[jobs.parts]]
  p = 2
'''

EXPECTED = {
    ("top",): 2,
    ("quoted key", "with # hash"): 3,
    ("a",): 5,
    ("a", "b", "c"): 6,
    ("a", "b", "d", "e", 1): 6,
    ("a", "list"): 7,
    ("a", "list", 0): 8,
    ("a", "list", 1, "k"): 10,
    ("a", "list", 2): 12,
    ("a", "list", 2, 1): 13,
    ("a", "text"): 15,
    ("a", "raw"): 19,
    ("a", "after"): 21,
    ("a", "x.y"): 23,
    ("a", "x.y", "z", "deep", "key"): 24,
    ("jobs", 0): 25,
    ("jobs", 0, "name"): 26,
    ("jobs", 0, "limits"): 27,
    ("jobs", 0, "limits", "cpu"): 28,
    ("jobs", 1, "name"): 30,
    ("jobs", 1, "parts", 0, "p"): 32,
    ("jobs", 1, "parts", 1, "p"): 34,
}


def test_the_sample_document_is_toml() -> None:
    assert tomllib.loads(DOCUMENT)["jobs"][1]["parts"] == [{"p": 1}, {"p": 2}]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("path", EXPECTED)
def test_finds_the_line_of_each_kind_of_key(path: tuple[str | int, ...], newline: str) -> None:
    assert key_lines(DOCUMENT.replace("\n", newline))[path] == EXPECTED[path]


def test_what_is_not_there_has_the_line_of_what_is_above_it() -> None:
    lines = key_lines(DOCUMENT)
    assert line_of(lines, ("a", "b", "missing")) == 6
    assert line_of(lines, ("nothing", "at", "all")) == 1


def test_an_empty_document_has_no_keys() -> None:
    assert key_lines("") == {}
    assert key_lines("# only a comment") == {}


SCALARS = st.sampled_from(
    [
        "1",
        "-0.5e3",
        "true",
        "inf",
        "1979-05-27",
        "07:32:00",
        '"a # b ] } , \\" ="',
        "'[x]'",
        '"""a\n"b" #\n"""',
        "'''\n'''",
    ]
)
KEYS = st.sampled_from(["a", "b-c", "d_9", '"e f"', '"g.h"', "'i]'", '"\\u00e9"', '""'])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "array", "table"])) if depth else "scalar"
    if kind == "scalar":
        return draw(SCALARS)
    inner = draw(st.lists(values(depth=depth - 1), max_size=3))
    if kind == "array":
        gap = draw(st.sampled_from(["", " ", "\n", " # c ] \n\n"]))
        return "[" + gap + f"{gap},{gap}".join(inner) + gap + "]"
    keys = draw(st.lists(KEYS, min_size=len(inner), max_size=len(inner), unique=True))
    return "{" + ", ".join(f"{key} = {value}" for key, value in zip(keys, inner, strict=True)) + "}"


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[tuple[str, ...], int]]:
    """A document, and the line of each table and of each key directly in one."""
    text, expected, headers = (
        "",
        {},
        draw(st.lists(st.lists(KEYS, min_size=1, max_size=2).map(tuple), max_size=3, unique=True)),
    )
    if any(a != b and a == b[: len(a)] for a in headers for b in headers):
        headers = headers[:1]
    for header in [(), *headers]:
        text += draw(st.sampled_from(["", "\n", "# c = 1\n", "  \n\n"]))
        prefix = tuple(plain(key) for key in header)
        if header:
            expected[prefix] = text.count("\n") + 1
            text += f"[{' . '.join(header)}]\n"
        for key in draw(st.lists(KEYS, max_size=3, unique=True)) if header else []:
            expected[(*prefix, plain(key))] = text.count("\n") + 1
            text += f"{key} = {draw(values())}{draw(st.sampled_from(['', ' # c']))}\n"
    return text, expected


def plain(key: str) -> str:
    return next(iter(tomllib.loads(f"{key} = 1")))


@settings(max_examples=examples(150))
@given(documents())
def test_agrees_with_documents_written_at_random(document: tuple[str, dict[tuple[str, ...], int]]) -> None:
    text, expected = document
    value = tomllib.loads(text)
    lines = key_lines(text)
    assert {path: lines[path] for path in expected} == expected
    assert set(lines) == set(paths(value))


def paths(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        inner: Any = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    found = [above] if above else []
    for key, item in inner:
        found += paths(item, (*above, key))
    return found
