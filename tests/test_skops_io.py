"""skops is imported without torch, and torch stays importable."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from streamserve.skops_io import _Hidden, skops_io
assert hasattr(skops_io(), "loads")
print("torch" in sys.modules)
assert not [finder for finder in sys.meta_path if isinstance(finder, _Hidden)]
import torch
print("torch" in sys.modules)
"""


@pytest.mark.torch
def test_torch_is_left_alone() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


OTHERS = """
import sys, threading
from streamserve.skops_io import _Hidden
sys.meta_path.insert(0, _Hidden("colorsys"))
def elsewhere():
    import colorsys
thread = threading.Thread(target=elsewhere)
thread.start(); thread.join()
assert "colorsys" in sys.modules
del sys.modules["colorsys"]
try:
    import colorsys
except ModuleNotFoundError:
    print("hidden here alone")
"""


def test_other_threads_find_what_is_hidden_from_this_one() -> None:
    run = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "hidden here alone"
