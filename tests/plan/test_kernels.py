"""Kernels: few whatever the number of models, compiled before the first request, clean after every call."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba import config
from numba.core.registry import CPUDispatcher
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer

from streamserve.plan import compile_plan, kernels
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.kernels import cache_folder, characters, compilations, dictionary, warm
from streamserve.plan.kernels.scratch import scratch
from tests.plan.texts import DOCUMENTS, VECTORISERS, fitted

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = [*DOCUMENTS, "ünïcödé", "", "x " * 5_000]


def compiled() -> int:
    """Compiled signatures of all of the project's kernels that live."""
    return sum(
        len(thing.signatures)
        for thing in gc.get_objects()
        if isinstance(thing, CPUDispatcher) and thing.py_func.__module__.startswith("streamserve.plan")
    )


@pytest.mark.slow
def test_kernels_do_not_grow_with_models_and_nothing_is_compiled_by_requests() -> None:
    warm()
    first = compile_plan(fitted(clone(VECTORISERS["word"])))
    first.predict_proba(ROWS)
    kernels_before, compilations_before = compiled(), compilations()
    for name, vectoriser in VECTORISERS.items():
        plan = laid_out(import_fitted(fitted(clone(vectoriser))).graph)
        for rows in (ROWS, ROWS[:1], []):
            plan.run(rows, plan.outputs)
        assert compilations() == compilations_before, name
    assert compiled() == kernels_before


def test_every_kernel_that_is_called_from_python_lets_go_of_the_lock_and_has_a_signature() -> None:
    for file in Path(kernels.__file__).parent.glob("*.py"):
        source = file.read_text("utf-8")
        for decorator in re.findall(r"^@njit\((.*?)\)\ndef ", source, re.DOTALL | re.MULTILINE):
            assert "nogil=True" in decorator, f"{file.name}: {decorator}"
            inner = decorator in {"nogil=True", 'nogil=True, inline="always"'}
            assert inner or "cache=True" in decorator, f"{file.name}: {decorator}"


def test_threads_share_a_plan() -> None:
    model = fitted(clone(VECTORISERS["union"]))
    plan = compile_plan(model)
    expected = model.predict_proba(ROWS).tolist()
    barrier = threading.Barrier(4)

    def work(_: int) -> list[bool]:
        barrier.wait()
        return [plan.predict_proba(ROWS).tolist() == expected for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(same) for same in pool.map(work, range(4)))


def test_buffers_are_clean_after_a_call_and_do_not_grow_again() -> None:
    plan = compile_plan(fitted(clone(VECTORISERS["union"])))
    plan.predict(ROWS)
    own = scratch()
    before = [array.ctypes.data for array in (own.counts, own.bits, own.buffer, own.keys)]
    for _ in range(3):
        plan.predict(ROWS)
    assert not own.counts.any()
    assert not own.bits.any()
    assert [array.ctypes.data for array in (own.counts, own.bits, own.buffer, own.keys)] == before


def test_the_table_of_characters_is_this_interpreters() -> None:
    table = characters.classes()
    for point in [*range(0x300), 0x130, 0x3C2, 0x93F, 0x4E2D, 0x1F600, 0xD800, 0x10FFFF, 0x2003, 0x1D518]:
        character = chr(point)
        assert bool(table[point] & 1) == (character.isalnum() or character == "_"), hex(point)
        assert bool(table[point] & 2) == character.isspace(), hex(point)


def test_an_arena_gives_its_entries_back_and_equal_ones_are_equal_bytes() -> None:
    entries = ["", "a", "abcdefg", "abcdefgh", "ü", "\ud800", "x" * 300, "two words"]
    arena, slots = dictionary.build(entries)
    assert list(dictionary.entries_of(arena)) == entries
    assert dictionary.longest_of(arena) == 300
    again_arena, again_slots = dictionary.build(entries)
    assert arena.tobytes() == again_arena.tobytes()
    assert slots.tobytes() == again_slots.tobytes()


def test_colliding_hashes_change_nothing() -> None:
    """Strings of two letters in the order of Thue and Morse collide under every polynomial hash modulo 2^64."""

    def thue_morse(first: str, second: str, doublings: int) -> str:
        one, other = first, second
        for _ in range(doublings):
            one, other = one + other, other + one
        return one

    one, other = thue_morse("a", "b", 11), thue_morse("b", "a", 11)
    arena, slots = dictionary.build([one, other])
    keys = sorted(slots[slots[:, 1] != 0][:, 0].tolist())
    assert keys[0] == keys[1]
    assert len(arena) > 4096
    vectoriser = TfidfVectorizer(vocabulary=[one])
    model = fitted(vectoriser)
    model.steps[-1][1].coef_ = np.array([[3.0]])
    rows = [one, other, f"{one} {other}"]
    assert compile_plan(model, rows=rows).decision_function(rows).tolist() == model.decision_function(rows).tolist()


@pytest.mark.slow
def test_memory_does_not_grow_with_requests() -> None:
    plan = laid_out(import_fitted(fitted(clone(VECTORISERS["union"]))).graph)

    def serve(times: int) -> None:
        for i in range(times):
            plan.run([ROWS[i % len(DOCUMENTS)]], plan.outputs)

    serve(500)
    tracemalloc.start()
    try:
        serve(500)
        before = tracemalloc.get_traced_memory()[0]
        serve(5_000)
        assert tracemalloc.get_traced_memory()[0] - before < 16_384
    finally:
        tracemalloc.stop()


def test_where_no_cache_can_be_written_kernels_are_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path / "cache"))
    cache_folder.choose()
    chosen = tmp_path / "cache" / "numba" / f"streamserve-{cache_folder.kernels_digest()}"
    assert str(chosen) == config.CACHE_DIR
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "users"))
    cache_folder.choose()
    assert Path(config.CACHE_DIR).parent == tmp_path / "users"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache_folder.choose()
    assert Path(config.CACHE_DIR).parent == tmp_path
