"""Versions of scikit-learn whose semantics the importers were tested with."""

from __future__ import annotations

import sklearn

from streamserve.errors import ImportRefused

#: `major.minor` of each; `tests/plan` run on these.
TESTED = ("1.9",)


def check(*, allow_untested: bool) -> None:
    """Raise `ImportRefused` for a version that was not tested, unless allowed."""
    if ".".join(sklearn.__version__.split(".")[:2]) in TESTED or allow_untested:
        return
    raise ImportRefused(
        f"scikit-learn {sklearn.__version__} is installed; plans were tested with {', '.join(TESTED)}. Formulas differ "
        "between versions. Install one of these, or allow it (--allow-untested, allow_untested = true): every plan is "
        "compared with its original all the same"
    )
