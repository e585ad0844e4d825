"""`streamserve plan`: pack, verify, explain, bench and the store, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from streamserve.cli.entry import app
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")


def call(*words: Any) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *map(str, words)])
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    joblib.dump(fitted(clone(VECTORISERS["word"])), folder / "model.joblib")
    other = fitted(clone(VECTORISERS["word"]))
    other.steps[-1][1].intercept_ = other.steps[-1][1].intercept_ + 0.5
    joblib.dump(other, folder / "other.joblib")
    code, said = call(
        "pack", folder / "model.joblib", "--trust-pickle", "-o", folder / "x.plan", "--store", folder / "s"
    )
    assert code == 0, said
    return folder


@pytest.mark.slow
def test_pack_and_verify(place: Path) -> None:
    code, said = call("verify", place / "x.plan", place / "model.joblib", "--trust-pickle", "--store", place / "s")
    assert (code, said) == (0, "equal on 200 rows: decision_function, predict, predict_proba\n")


@pytest.mark.slow
def test_verify_tells_the_first_difference(place: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(text) for text in DOCUMENTS), "utf-8")
    words = ("verify", place / "x.plan", place / "other.joblib", "--trust-pickle", "--store", place / "s")
    code, said = call(*words, "--rows", rows)
    assert code == 1
    assert "differ: row 0, " in said
    rows.write_text('"fine"\n7\n')
    code, said = call(*words, "--rows", rows)
    assert code == 2
    assert "rows.jsonl:2: a text in quotes is needed" in said


def test_a_pickle_is_not_read_unasked(place: Path, tmp_path: Path) -> None:
    code, said = call("pack", place / "model.joblib", "-o", tmp_path / "x.plan")
    assert code == 3
    assert "is a pickle" in said


def test_explain(place: Path) -> None:
    code, said = call("explain", place / "model.joblib", "--trust-pickle", "--disable", "fuse-score")
    assert code == 0
    assert "after push-linear" in said
    assert "after fuse-score" not in said
    code, said = call("explain", place / "x.plan", "--store", place / "s", "--mermaid")
    assert code == 0
    assert said.startswith("flowchart LR")
    code, said = call("explain", place / "model.joblib", "--trust-pickle", "--disable", "nothing")
    assert code == 3
    assert "no rule nothing" in said


@pytest.mark.slow
def test_bench(place: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('"hello world"\n"the end"\n')
    words = ("--trust-pickle", "--store", place / "s", "--rows", tmp_path / "rows")
    code, said = call("bench", place / "x.plan", place / "model.joblib", *words)
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["1", "10", "1000"]
    assert said.endswith("compiled while it ran: 0\n")


def test_stats_of_the_plans_of_a_pool(place: Path, tmp_path: Path) -> None:
    (tmp_path / "y.plan").write_bytes((place / "x.plan").read_bytes())
    words = ("stats", place / "x.plan", tmp_path / "y.plan", "--store", place / "s")
    code, said = call(*words, "--json")
    assert code == 0
    report = json.loads(said)
    assert [held["bytes_unique"] for held in report["plans"].values()] == [0, 0]
    lane = report["together"][0]
    assert (lane["plans"], 2 * lane["stages_together"]) == (2, lane["stages_alone"])
    assert "2 plans take the same rows" in call(*words)[1]


@pytest.mark.slow
def test_the_store(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert call("pack", place / "model.joblib", "--trust-pickle", "-o", tmp_path / "x.plan", "--store", folder)[0] == 0
    code, said = call("store", "ls", "--store", folder)
    assert code == 0
    digest, *_, name = said.split()
    assert name == "x"
    report = json.loads(call("store", "stats", "--store", folder, "--json")[1])
    assert (report["plans"], report["bytes_unneeded"]) == (1, 0)
    assert "plans            1" in call("store", "stats", "--store", folder)[1]
    assert call("store", "rm", digest[:6], "--store", folder) == (0, f"forgot {digest}\n")
    code, said = call("store", "gc", "--store", folder)
    assert code == 0
    assert said.startswith(f"removed {report['objects']} arrays (")
    assert call("store", "rm", "abc", "--store", folder)[0] == 2


@pytest.mark.slow
def test_heads_in_float32(place: Path, tmp_path: Path) -> None:
    kept, pickle = ("--store", place / "s"), (place / "model.joblib", "--trust-pickle")
    code, said = call("pack", *pickle, "--f32", "-o", tmp_path / "narrow.plan", *kept)
    assert code == 0, said
    assert "heads in float32: decision_function off by at most " in said
    code, said = call("explain", tmp_path / "narrow.plan", *kept)
    assert code == 0
    assert "heads in float32: decision_function off by at most " in said
    code, said = call("verify", tmp_path / "narrow.plan", *pickle, *kept)
    assert code == 0, said
    assert "gives with heads in float32, on 200 rows; heads in float32: " in said
    code, said = call("verify", tmp_path / "narrow.plan", place / "other.joblib", "--trust-pickle", *kept)
    assert code == 1
    assert "is not " in said
    code, said = call("bench", place / "x.plan", "--f32", *kept)
    assert code == 0, said
    assert "float32 " in said
    assert "labels that change" in said


@pytest.mark.slow
def test_a_head_is_learnt_further(place: Path, tmp_path: Path) -> None:
    rows, kept = tmp_path / "rows.jsonl", ("--store", place / "s")
    labels = [int(label) for label in joblib.load(place / "model.joblib").predict(DOCUMENTS)]
    lines = [{"text": text, "label": 1 - label} for text, label in zip(DOCUMENTS, labels, strict=True)]
    rows.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    words = ("learn", place / "x.plan", "--rows", rows, "-o", tmp_path / "y.plan", *kept)
    code, said = call(*words, "--rate", "1", "--passes", "40")
    assert code == 0, said
    assert f"pass 1: 0 of {len(labels)} rows right" in said
    assert f"pass 40: {len(labels)} of {len(labels)} rows right" in said
    code, said = call("stats", place / "x.plan", tmp_path / "y.plan", *kept)
    assert code == 0
    assert "2 plans take the same rows" in said
    rows.write_text('{"text": "fine", "label": 1}\n{"text": 7, "label": 1}\n')
    code, said = call(*words)
    assert code == 2
    assert 'rows.jsonl:2: an object {"text": "...", "label": ...} is needed' in said
    rows.write_text('{"text": "fine", "label": "perhaps"}\n')
    code, said = call(*words)
    assert code == 3
    assert "row 0: 'perhaps' is no class of this plan" in said
