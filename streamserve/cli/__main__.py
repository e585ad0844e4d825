"""`python -m streamserve.cli`: the same as `streamserve`, for processes that start each other."""

from __future__ import annotations

from streamserve.cli import main

if __name__ == "__main__":
    main()
