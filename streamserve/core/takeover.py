"""What an owner of a partition knows of its predecessor, and tells its successor."""

from __future__ import annotations

import re
from collections import deque

import numpy as np

from streamserve.core.events import Resume
from streamserve.core.messages import I64, Flags

_METADATA = re.compile(r'\{"v":1,"answers":(\d+),"predictions":(\d+)\}')


def parse_metadata(text: str) -> tuple[int, int]:
    """(answers, predictions): offsets to read from; (0, 0), the start of the log, where the words say nothing."""
    found = _METADATA.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class Ownership:
    """One owned partition of a terminal stage."""

    def __init__(self, resume: Resume) -> None:
        self.next_request = resume.position
        self.answers_at = resume.answers_from
        self._answers_end = resume.answers_end
        self._answered = resume.answered if resume.answered is not None and len(resume.answered) else None
        self._predictions_from = parse_metadata(resume.metadata)[1]
        self._written: deque[tuple[int, int]] = deque()

    @property
    def catching_up(self) -> bool:
        """Answers that were in the log when ownership began have not all been applied."""
        return self.answers_at < self._answers_end

    def unanswered(self, offsets: I64) -> Flags | None:
        """Which requests have no terminal record from a predecessor; None: all of them."""
        if self._answered is None:
            return None
        if offsets[0] > self._answered[-1]:
            self._answered = None
            return None
        flags: Flags = ~np.isin(offsets, self._answered)
        return flags

    def wrote(self, predictions_offset: int, highest_request: int) -> None:
        """A block of terminal records stands in the log from this offset on."""
        if predictions_offset >= 0:
            self._written.append((predictions_offset, highest_request))

    def metadata(self, first_answer: int, lowest_open: int) -> str:
        """first_answer: offset of the first answer to an open request. lowest_open: the position that is committed."""
        while self._written and self._written[0][1] < lowest_open:
            self._predictions_from = max(self._predictions_from, self._written.popleft()[0])
        answers = max(0, min(first_answer, self.answers_at))
        return f'{{"v":1,"answers":{answers},"predictions":{self._predictions_from}}}'
