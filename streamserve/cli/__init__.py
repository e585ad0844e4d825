"""The command line: `streamserve`. Each command's module is imported when it is called, so `--help` stays quick."""

from __future__ import annotations


def main() -> None:
    """Run the command line; exits the process with the command's exit code."""
    from streamserve.cli.entry import run  # noqa: PLC0415  (`import streamserve.cli` costs nothing)

    run()
