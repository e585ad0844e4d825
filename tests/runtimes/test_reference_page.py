"""`docs/reference/runtimes.md` names every runtime and option, and its code runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from streamserve.runtimes import ModelSpec, load, runtime_names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "runtimes.md").read_text("utf-8")
CODE = {path.stem: path.read_text("utf-8") for path in (ROOT / "streamserve" / "runtimes").glob("*.py")}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ASKED = re.compile(r'options\.(?:text|integer|boolean|values|table)\("(\w+)"')
#: What reads an artifact reads its runtime's options.
READERS = {"_read_onnx": "onnx", "_read_state_dict": "torch", "_read_plan": "plan"}


def options_in_code() -> set[tuple[str, str]]:
    found = {(name, option) for name in runtime_names() for option in ASKED.findall(CODE[name])}
    for reader, runtime in READERS.items():
        (body,) = re.findall(rf"^def {reader}\(.*?(?=^def |^_READERS)", CODE["sources"], re.DOTALL | re.MULTILINE)
        found |= {(runtime, option) for option in ASKED.findall(body)}
    return found


def options_on_the_page() -> set[tuple[str, str]]:
    section = PAGE.partition("## Options")[2].partition("```")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]
    return {(runtime.strip("` "), row[1].strip("`")) for row in rows for runtime in row[0].split(",")}


def test_every_option_is_on_the_page_and_no_other() -> None:
    assert options_in_code() == options_on_the_page()


def test_every_runtime_of_ours_is_on_the_page() -> None:
    section = PAGE.partition("## Options")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(runtime_names())


def test_the_callable_answers_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [text for language, text in BLOCKS if language == "python"]
    (tmp_path / "words_of_the_page.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    runtime = load(ModelSpec(name="words", version="1", source="words_of_the_page:model"))
    outputs = runtime.predict(np.array(["two words", ""], dtype=object))
    assert outputs.metrics == {"longest_words": 2.0}
    assert outputs.labels[0] == 2
    assert set(outputs.row_errors) == {1}
    assert "no words in it" in outputs.row_errors[1]


def test_its_tables_can_be_read() -> None:
    model, entry_point = (tomllib.loads(text) for language, text in BLOCKS if language == "toml")
    assert set(model["models"]["net"]["options"]) <= {option for runtime, option in options_on_the_page()}
    assert set(entry_point["project"]["entry-points"]) == {"streamserve.runtimes"}
