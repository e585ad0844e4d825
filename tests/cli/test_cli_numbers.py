"""Every number option of every command: what is no use is refused as a slip in the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from streamserve.cli.entry import COMMANDS, run

NEVER: dict[type, list[str]] = {
    float: ["nan", "inf", "-inf", "-1", "1e300", "x"],
    int: ["nan", "inf", "1.5", "-1", "x"],
}
#: Options for which a number below 0 is of use.
SIGNED = {"--priority"}
#: So far from any use that the system's own calls would refuse it.
HUGE = str(10**30)


def functions() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command's path and its function."""
    for name, lazy in COMMANDS.items():
        target = getattr(importlib.import_module(f"streamserve.cli.{lazy.module}"), lazy.attribute)
        if isinstance(target, typer.Typer):
            for command in target.registered_commands:
                yield (name, command.name or getattr(command.callback, "__name__", "")), command.callback
        else:
            yield (name,), target


def words_of(name: str, hint: Any) -> list[str]:
    """A required argument or option, given."""
    told = getattr(hint, "__metadata__", (None,))[0]
    if not isinstance(told, OptionInfo):
        return ["nowhere.toml"]
    return [told.default if isinstance(told.default, str) else f"--{name}", "nowhere.toml"]


def number_options() -> Iterator[Any]:
    for path, function in functions():
        hints = get_type_hints(function, include_extras=True)
        required = [
            word
            for name, one in inspect.signature(function).parameters.items()
            if one.default is one.empty
            for word in words_of(name, hints[name])
        ]
        for name, hint in hints.items():
            types = [get_args(hint)[0], *get_args(get_args(hint)[0])] if get_args(hint) else []
            for kind in NEVER.keys() & set(types):
                # Within `Annotated` an option's own name is where its default would be.
                given = hint.__metadata__[0].default
                option = given if isinstance(given, str) else f"--{name.replace('_', '-')}"
                yield pytest.param(path, required, option, kind, id=f"{'-'.join(path)}{option}")


CASES = list(number_options())


def test_there_are_such_options() -> None:
    found = {case.values[2] for case in CASES}
    assert found >= {"--time-limit-s", "--duration", "--timeout-s", "--reward", "--grace-ms", "--nodes", "--priority"}


@pytest.mark.parametrize(("path", "required", "option", "kind"), CASES)
def test_a_number_of_no_use_is_refused(
    path: tuple[str, ...],
    required: list[str],
    option: str,
    kind: type,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMSERVE_STATE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    values = [value for value in NEVER[kind] if not (value == "-1" and option in SIGNED)]
    if option != "--max":
        values.append(HUGE)
    for value in values:
        with pytest.raises(SystemExit) as left:
            run([*path, *required, option, value])
        err = capfd.readouterr().err
        assert left.value.code == 2, value
        assert f"'{option}'" in err, (value, err)


def test_a_time_limit_is_above_0(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(["check", "nowhere.toml", "--time-limit-s", "0"])
    assert left.value.code == 2
    assert "0 is not above 0 seconds" in capfd.readouterr().err
