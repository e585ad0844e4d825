"""Every exception that streamserve raises on purpose hangs from one tree::

    StreamserveError
    ├── ConfigError            the config file, an environment variable or a flag is wrong
    ├── ModelError             a model cannot be loaded, warmed or run as configured
    │   ├── ModelAway          its own process has ended and is not back yet: the fault of no request
    │   ├── ModelRaised        it raised in its own process
    │   └── PlanError          a white-box plan cannot be made, kept or loaded (`streamserve.plan`)
    │       ├── ImportRefused  the fitted estimator is none that a plan can be made of, as it stands
    │       ├── PlanDiffers    the plan answers otherwise than what it was made of
    │       ├── PlanDamaged    a packed plan or a file of the store is not what was written, or of a future format
    │       └── StoreError     the store's folder cannot be read or written
    ├── RowError               a model refuses one row of a batch (raised by model code: `streamserve.runtimes`)
    ├── DatasetError           an example data set cannot be had (`streamserve.datasets`)
    ├── BrokerError            no broker answers, or ours cannot be started
    ├── TopicsDiffer           the broker's topics are not those that the app declares
    ├── ContractError          a record of ours has a version or a shape that this code cannot read
    │   └── MalformedRecord    its version is right, its content is damaged: it is skipped, counted, dead-lettered
    ├── UnusableInput          a client cannot make a request of this input (`streamserve.client`)
    ├── PredictionFailed       a prediction without an answer, by `raise_for_outcome` (`streamserve.client`)
    ├── PredictionTimeout      a client's request was not answered in deadline + grace
    └── ShuttingDown           the work was abandoned because the process is stopping

Trouble that is expected of data (a bad request, a late model) is a value with a reason, never an exception: see
`streamserve.core.reasons`.
"""

from __future__ import annotations


class StreamserveError(Exception):
    """Something that a person can mend; `str()` says what happened, where, and what to do."""

    exit_code = 1


class ConfigError(StreamserveError):
    """The configuration is wrong. The message starts with `file:line:` where they are known."""

    exit_code = 2


class ModelError(StreamserveError):
    """A model cannot be loaded, warmed or run as configured."""

    exit_code = 3


class ModelAway(ModelError):
    """The process of an isolated model has ended, or is not back yet: no request of this batch is to blame."""

    exception = ""
    stack = ""


class ModelRaised(ModelError):
    """An isolated model raised; the words begin with the type of what it raised."""

    def __init__(self, words: str, *, exception: str = "", stack: str = "") -> None:
        """`exception`: its class, `stack`: where it was raised, both in that process."""
        super().__init__(words)
        self.exception, self.stack = exception, stack


class PlanError(ModelError):
    """A white-box plan cannot be made, kept or loaded."""


class ImportRefused(PlanError):
    """No plan can be made of this estimator as it stands: not fitted, or of a version that was not tested."""


class PlanDiffers(PlanError):
    """A plan answers otherwise than what it was made of; the message names row, operator and both values."""

    exit_code = 1


class PlanDamaged(PlanError):
    """A packed plan or a file of the store is truncated, altered, or of a format that this code cannot read."""


class StoreError(PlanError):
    """The folder of the store cannot be read or written, or is full."""


class BrokerError(StreamserveError):
    """No broker answers, or our own cannot be started."""

    exit_code = 4


class TopicsDiffer(StreamserveError):
    """The broker's topics differ from the declared ones; the message names each difference and the repair."""

    exit_code = 5


class ContractError(StreamserveError):
    """A record of ours has a version or a shape that this code cannot read."""

    exit_code = 6


class MalformedRecord(ContractError):
    """A record of ours is not of its declared form, though not of another version."""


class PredictionTimeout(StreamserveError):
    """A request was not answered within its deadline plus the client's grace."""


class ShuttingDown(StreamserveError):
    """The work was abandoned because the process is stopping."""
