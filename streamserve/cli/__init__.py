"""The command line: `streamserve`. Each command's module is imported when it is called, so `--help` stays quick."""

from __future__ import annotations


def main() -> None:
    """Run the command line; exits the process with the command's exit code."""
    import sys  # noqa: PLC0415  (`import streamserve.cli` costs nothing)

    from streamserve.cli.stops import early_stop, stops_in_order  # noqa: PLC0415  (as above)

    if stops_in_order(sys.argv[1:]):
        early_stop.install()

    from streamserve.cli.entry import run  # noqa: PLC0415  (takes a while)

    run()
