"""Example models, each a short program as an application would write it. Run from the checkout; not in the wheel."""
