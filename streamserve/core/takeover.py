"""What an owner of a partition knows of its predecessor, and tells its successor."""

from __future__ import annotations

import re

import numpy as np

from streamserve.core.events import Resume
from streamserve.core.messages import I64, Flags

_PREDECESSORS = -1
#: What the shell adds of its own stands behind.
_METADATA = re.compile(r'\{"v":1,"answers":(\d+),"predictions":(\d+)[,}].*')


def parse_metadata(text: str) -> tuple[int, int]:
    """(answers, predictions): offsets to read from; (0, 0), the start of the log, where the words say nothing."""
    found = _METADATA.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class Ownership:
    """One owned partition of a terminal stage."""

    def __init__(self, resume: Resume) -> None:
        self.answers_at = resume.answers_from
        self._answers_end = resume.answers_end
        self._answered = resume.answered if resume.answered is not None and len(resume.answered) else None
        self._log_end = parse_metadata(resume.metadata)[1]
        # token -> (no record of it stands before this offset, its highest request)
        self._sent: dict[int, tuple[int, int]] = {}
        if self._answered is not None:  # what predecessors wrote must be found by the successor too
            self._sent[_PREDECESSORS] = (self._log_end, int(self._answered[-1]))

    @property
    def catching_up(self) -> bool:
        """Answers that were in the log when ownership began have not all been applied."""
        return self.answers_at < self._answers_end

    @property
    def may_have_answered(self) -> bool:
        """A predecessor's terminal records may still be met."""
        return self._answered is not None

    def unanswered(self, offsets: I64) -> Flags:
        """Which requests, in order of offset, have no terminal record from a predecessor."""
        if self._answered is None or offsets[0] > self._answered[-1]:
            self._answered = None
            return np.ones(len(offsets), np.bool_)
        flags: Flags = ~np.isin(offsets, self._answered)
        return flags

    def sending(self, token: int, highest_request: int) -> None:
        """Terminal records are on their way: they will stand behind everything acknowledged so far."""
        self._sent[token] = (self._log_end, highest_request)

    def wrote(self, token: int, predictions_offset: int) -> None:
        """Their first record stands here. One whose sending failed may stand anywhere behind its bound."""
        sent = self._sent.get(token)
        if sent is not None and predictions_offset >= 0:
            self._sent[token] = (predictions_offset, sent[1])
            self._log_end = max(self._log_end, predictions_offset)

    def metadata(self, first_answer: int, lowest_open: int) -> str:
        """first_answer: offset of the first answer to an open request. lowest_open: the position that is committed."""
        for token in [token for token, (_, highest) in self._sent.items() if highest < lowest_open]:
            del self._sent[token]
        predictions = min((bound for bound, _ in self._sent.values()), default=self._log_end)
        answers = max(0, min(first_answer, self.answers_at))
        return f'{{"v":1,"answers":{answers},"predictions":{predictions}}}'
