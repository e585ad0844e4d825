"""Rows for `streamserve plan`, from a file of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamserve.errors import ConfigError

if TYPE_CHECKING:
    from streamserve.plan.graph import InputForm


def read_rows(file: Path, form: InputForm) -> Any:
    """Texts as a list, or columns as an array `[n, columns]`; an object's values are put in the order of the names.

    `null` among numbers is NaN. Raises `ConfigError` with the line of what is no row of this form.
    """
    rows = [_row(value, form, where) for where, value in _values(file)]
    if form.kind == "text":
        return rows
    if all(isinstance(value, int | float | bool | None) for row in rows for value in row):
        return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)
    table = np.empty((len(rows), len(rows[0])), dtype=object)
    table[:] = rows
    return table


def read_labelled(file: Path) -> tuple[list[str], list[Any]]:
    """Texts and their labels, of lines `{"text": ..., "label": ...}`. Raises `ConfigError` as `read_rows`."""
    texts, labels = [], []
    for where, value in _values(file):
        if not isinstance(value, dict) or not isinstance(value.get("text"), str) or "label" not in value:
            raise ConfigError(f'{where}: an object {{"text": "...", "label": ...}} is needed')
        if isinstance(value["label"], list | dict):
            raise ConfigError(f"{where}: a label is text, a number, true or false")
        texts.append(value["text"])
        labels.append(value["label"])
    return texts, labels


def _values(file: Path) -> list[tuple[str, Any]]:
    """(place, value) of each line that is not empty."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise ConfigError(f"{file} cannot be read: {unreadable}") from unreadable
    values = [(f"{file}:{i}", _json(line, f"{file}:{i}")) for i, line in enumerate(lines, start=1) if line.strip()]
    if not values:
        raise ConfigError(f"{file} holds no row")
    return values


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as broken:
        raise ConfigError(f"{where}: no JSON ({broken})") from broken


def _row(value: Any, form: InputForm, where: str) -> Any:
    if form.kind == "text":
        if not isinstance(value, str):
            raise ConfigError(f"{where}: a text in quotes is needed")
        return value
    if isinstance(value, dict):
        missing = [name for name in form.names if name not in value]
        if missing or not form.names:
            raise ConfigError(f"{where}: no column {', '.join(missing) or 'has a name in this plan; give a list'}")
        value = [value[name] for name in form.names]
    if not isinstance(value, list) or len(value) != form.columns:
        raise ConfigError(f"{where}: a list of {form.columns} values is needed")
    return value
