"""Write the published contract: `python -m streamserve.topics.publish [--check] DIR`.

`DIR` (the folder `topics/` of the repository) gets one JSON Schema per value, an AsyncAPI document, and a page that
explains them. With `--check` nothing is written: the exit code is 1 where the folder is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamserve.topics.asyncapi import document
from streamserve.topics.page import page
from streamserve.topics.schemas import SCHEMAS, schema_file, schemas

PAGE = "README.md"
ASYNCAPI = "asyncapi.json"


def files() -> dict[str, str]:
    """Path inside the folder -> text, of everything that is published."""
    texts = {PAGE: page(), ASYNCAPI: _json(document())}
    texts.update({schema_file(kind): _json(schema) for kind, schema in schemas().items()})
    return texts


def out_of_date(folder: Path) -> list[str]:
    """Paths in `folder` that are missing, differ, or are schemas that nothing generates any more."""
    wanted = files()
    stale = [path for path, text in wanted.items() if _read(folder / path) != text]
    schemas_there = {path.relative_to(folder).as_posix() for path in (folder / SCHEMAS).glob("*.json")}
    return sorted({*stale, *(schemas_there - wanted.keys())})


def write(folder: Path) -> None:
    """Make `folder` the published contract: nothing missing, nothing left over."""
    for path in out_of_date(folder):
        (folder / path).unlink(missing_ok=True)
    for path, text in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m streamserve.topics.publish", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where DIR is out of date")
    options = parser.parse_args(arguments)
    stale = out_of_date(options.folder)
    if not options.check:
        write(options.folder)
        return 0
    if stale:
        sys.stderr.write(
            f"{options.folder} is out of date: {', '.join(stale)}\n"
            f"To mend this: python -m streamserve.topics.publish {options.folder}\n"
        )
    return 1 if stale else 0


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
