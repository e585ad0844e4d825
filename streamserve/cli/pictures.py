"""What the commands' pictures share: checked before the work, drawn without a display."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from streamserve.client import UnusableInput

#: `--plot`, of each command that can draw its report.
Plot = Annotated[
    Path | None, typer.Option("--plot", help="A picture of the report: .png, .svg or .pdf. Needs matplotlib.")
]
_SUFFIXES = (".png", ".svg", ".pdf")
_MOST_NAME = 24


def check_plot(file: Path | None) -> None:
    """Raises UnusableInput where no picture could be written there: before the work, not after it."""
    if file is None:
        return
    if file.suffix.lower() not in _SUFFIXES:
        raise UnusableInput(f"--plot {file}: expected a name ending in {', '.join(_SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise UnusableInput(f"--plot {file}: there is no folder {file.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnusableInput("--plot needs matplotlib: pip install matplotlib; --json has the same figures")


def figure_of(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """An empty figure of this size in inches, and its axes: one, or an array of them. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (may be missing, and slow)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes if axes.size > 1 else axes[0, 0]


def save(figure: Any, file: Path) -> None:
    """Raises UnusableInput where the file cannot be written."""
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise UnusableInput(f"--plot {file}: cannot be written: {error.strerror}") from None


def short(name: str) -> str:
    """What fits beside an axis."""
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - 1]}…"
