"""The client: ask an app for predictions, and tell it what really happened.

`Client` is for an event loop, `SyncClient` for everything else. Nothing special is needed without them: any record that
the route's codec can read is a request, and the topics are documented.
"""

from __future__ import annotations

from streamserve.client.client import Client
from streamserve.client.failures import PredictionFailed, TooManyOutstanding, UnusableInput
from streamserve.client.prediction import Prediction
from streamserve.client.stream import PredictionStream
from streamserve.client.submitted import Submitted
from streamserve.client.sync import SyncClient, SyncPredictionStream, SyncSubmitted
from streamserve.client.targets import RouteHint

__all__ = [
    "Client",
    "Prediction",
    "PredictionFailed",
    "PredictionStream",
    "RouteHint",
    "Submitted",
    "SyncClient",
    "SyncPredictionStream",
    "SyncSubmitted",
    "TooManyOutstanding",
    "UnusableInput",
]
