"""Whether a model that keeps failing is called: closed, open, half open (Nygard, Release It!, 2007).

Not poison but a broken model: calling it would only make its requests late, and taking its batches apart would only
find that every request is bad.
"""

from __future__ import annotations

#: Calls that failed whole, one after the other, with none going well in between.
OPENS_AFTER = 5
FIRST_BACK_OFF_MS = 500
MOST_BACK_OFF_MS = 30_000
#: While a model's process is gone: asking whether it is back costs nothing.
AWAY_BACK_OFF_MS = 250
#: Requests of a trial: so many that one bad one among them says nothing of the model.
TRIAL_REQUESTS = 8


class Circuit:
    """Of one model in one process. Law: closed as long as no `OPENS_AFTER` calls in a row have failed."""

    def __init__(self) -> None:
        self._failed = 0
        self._back_off_ms = FIRST_BACK_OFF_MS
        self._closed_from_ms: int | None = None
        """While it is open: when it lets a trial through."""
        self._trial = False

    @property
    def is_open(self) -> bool:
        """Open or half open."""
        return self._closed_from_ms is not None

    def lets_through(self, now_ms: int) -> int | None:
        """How many requests may be called now; None: all."""
        if self._closed_from_ms is None:
            return None
        return 0 if self._trial or now_ms < self._closed_from_ms else TRIAL_REQUESTS

    def tries(self) -> None:
        """What it let through is being called."""
        self._trial = self.is_open

    def went_well(self) -> bool:
        """A call answered; True: that closes it."""
        closes = self.is_open
        self._failed = 0
        self._back_off_ms = FIRST_BACK_OFF_MS
        self._closed_from_ms = None
        self._trial = False
        return closes

    def told_nothing(self) -> None:
        """A call failed for which the model is not to blame: as it was, and what comes next may be the trial."""
        self._trial = False

    def failed(self, now_ms: int, *, away: bool = False) -> bool:
        """A call failed whole; True: that opens it. away: because the process that runs the model is gone."""
        self._failed += 1
        was_open, self._trial = self.is_open, False
        if away:
            self._closed_from_ms = now_ms + AWAY_BACK_OFF_MS
            return not was_open
        if was_open:
            self._back_off_ms = min(2 * self._back_off_ms, MOST_BACK_OFF_MS)
        elif self._failed < OPENS_AFTER:
            return False
        self._closed_from_ms = now_ms + self._back_off_ms
        return not was_open
