"""The same seed is the same run, to the byte, in another process too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from streamserve.testing.simulator.draw import draw
from streamserve.testing.simulator.run import run

SEEDS = "0 3 6 11 27"
PROGRAM = """
import sys
from streamserve.testing.simulator.draw import draw
from streamserve.testing.simulator.run import run
for seed in map(int, sys.argv[1:]):
    result = run(draw(seed, 500), digest=True)
    print(seed, result.digest, sorted(result.faults.items()))
"""


def told(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SEEDS.split()], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_process() -> None:
    first = told("1")
    assert first.count("\n") == len(SEEDS.split())
    assert first == told("4242")


def test_seeds_differ() -> None:
    assert run(draw(0, 100), digest=True).digest != run(draw(1, 100), digest=True).digest
