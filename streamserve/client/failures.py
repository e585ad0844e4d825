"""What a client raises beside the errors of `streamserve.errors`, from the same tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamserve.errors import StreamserveError

if TYPE_CHECKING:
    from streamserve.client.prediction import Prediction


class UnusableInput(StreamserveError):
    """What was to be sent cannot be a request or a feedback; nothing was sent."""

    exit_code = 2


class TooManyOutstanding(StreamserveError):
    """The client waits for as many answers as it may; nothing was sent. Send it again when some have come."""


class PredictionFailed(StreamserveError):
    """A request got its terminal record, and that holds no usable answer. `prediction` is the record."""

    def __init__(self, message: str, prediction: Prediction) -> None:
        super().__init__(message)
        self.prediction = prediction
