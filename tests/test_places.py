from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from streamserve.places import belongings


def test_only_what_is_ours_is_wiped(tmp_path: Path) -> None:
    environ = {"STREAMSERVE_CACHE": str(tmp_path / "cache"), "STREAMSERVE_STATE": str(tmp_path / "state")}
    ours = [tmp_path / "cache" / "datasets", tmp_path / "cache" / "kafka-4.3.1", tmp_path / "state" / "app" / "broker"]
    theirs = [tmp_path / "cache" / "photos", tmp_path / "state" / "letters"]
    for folder in (*ours, *theirs):
        folder.mkdir(parents=True)
    assert belongings(environ) == sorted([ours[0], ours[1], tmp_path / "state" / "app"])
    command = [sys.executable, "-m", "streamserve.places", "--wipe"]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    assert not any(folder.exists() for folder in ours)
    assert all(folder.exists() for folder in theirs)
