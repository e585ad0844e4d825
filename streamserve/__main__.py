"""`python -m streamserve`: the command `streamserve`."""

from __future__ import annotations

from streamserve.cli import main

if __name__ == "__main__":
    main()
