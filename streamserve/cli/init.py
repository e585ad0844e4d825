"""`streamserve init`: a project that serves at once, to be changed from there."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from streamserve.errors import ConfigError
from streamserve.topics.names import IllegalName, check_app

_SUFFIX = ".template"


def init(
    name: Annotated[str, typer.Argument(help="Folder to make; its last part names the app.")],
) -> None:
    """Write a project: streamserve.toml, a fitted model in workers/, train.py, README.md. Overwrites nothing."""
    if not name.strip() or Path(name).name in ("", ".."):
        raise typer.BadParameter(f"{name!r} names no folder of its own")
    written = write_project(Path(name))
    for file in written:
        typer.echo(f"wrote {file}")
    typer.echo(f"\nNext:\n  cd {name}\n  streamserve check streamserve.toml\n  streamserve up streamserve.toml")


def write_project(folder: Path) -> list[Path]:
    """Write the project's files into `folder`, which may exist; return them.

    Raises `ConfigError`, having written nothing, where a file is there already or the name cannot be an app's.
    """
    app = folder.resolve().name.lower().replace("_", "-")
    try:
        check_app(app)
    except IllegalName as error:
        raise ConfigError(f"{folder}: {error}") from None
    texts = {folder / path: Template(text).substitute(app=app) for path, text in _templates().items()}
    there = sorted(str(file) for file in texts if file.exists())
    if there:
        raise ConfigError(f"nothing was written, since there already is: {', '.join(there)}; choose another name")
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    return list(texts)


def _templates() -> dict[Path, str]:
    """Path in the project -> text, in the order of their names."""
    found: dict[Path, str] = {}

    def collect(folder: Traversable, path: Path) -> None:
        for item in sorted(folder.iterdir(), key=lambda item: item.name):
            if item.is_dir():
                collect(item, path / item.name)
            elif item.name.endswith(_SUFFIX):
                found[path / item.name.removesuffix(_SUFFIX)] = item.read_text("utf-8")

    collect(files("streamserve.cli").joinpath("template"), Path())
    return found
