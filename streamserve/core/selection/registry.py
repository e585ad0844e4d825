"""The built-in policies by the name that a config uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from streamserve.core.selection.ab import AB
from streamserve.core.selection.epsilon_greedy import EpsilonGreedy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.exp3ix import Exp3IX
from streamserve.core.selection.exp4 import Exp4
from streamserve.core.selection.hedge import Hedge
from streamserve.core.selection.leader import Leader
from streamserve.core.selection.linucb import LinUCB
from streamserve.core.selection.squarecb import SquareCB
from streamserve.core.selection.stack import Stack
from streamserve.core.selection.static import Static
from streamserve.core.selection.thompson import Thompson
from streamserve.core.selection.ucb import UCB

POLICIES: Mapping[str, type] = MappingProxyType(
    {
        "static": Static,
        "ab": AB,
        "hedge": Hedge,
        "stack": Stack,
        "leader": Leader,
        "epsilon_greedy": EpsilonGreedy,
        "exp3": Exp3,
        "exp3ix": Exp3IX,
        "exp4": Exp4,
        "thompson": Thompson,
        "ucb": UCB,
        "linucb": LinUCB,
        "squarecb": SquareCB,
    }
)
