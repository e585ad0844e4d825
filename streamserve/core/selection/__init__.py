"""Selection: which models a request goes to, as a function of learnt state and the request's place in the log."""

from streamserve.core.selection.base import Distribution, Policy, draw

__all__ = ["Distribution", "Policy", "draw"]
