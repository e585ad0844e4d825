"""What one partition of predictions and of outcomes has said: its cells, and how far it has been read.

Promises, whatever the process dies of, if changes are written in the four steps of `Changes`, each acknowledged before
the next, and offsets are committed after the third:

* a record is counted once in each cell that it concerns: what is read again changes nothing. A cell says itself what
  it includes; the mark says what all of them include;
* what is written never holds less than the mark says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum

import msgspec

from streamserve.core.contexts import is_keyed
from streamserve.core.losses import apart, label_rows
from streamserve.core.records import Decision, Label, OutcomeRecord
from streamserve.core.routes import Route
from streamserve.insights.cells import Cell, Row
from streamserve.insights.drift import Drift, DriftRule, DriftState
from streamserve.insights.seen import Entry, SeenFeedback, SeenRefs

PREDICTIONS, OUTCOMES = 0, 1
_DAY_MS = 86_400_000
#: A test of drift without a loss for so long is forgotten.
DRIFT_KEPT_MS = 7 * _DAY_MS
_GIVEN = ("ok", "partial")

Key = tuple[str | int, ...]
"""Of a written value: its kind, then what tells it from others of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightRules:
    """What all partitions share."""

    routes: Mapping[str, Route]
    window_ms: int = 60_000
    most_cells: int = 20_000
    """Of one partition; of a context that would need more nothing is counted but the levels above it."""
    drift: DriftRule = field(default_factory=DriftRule)


class Mark(msgspec.Struct, kw_only=True):
    """How far one partition has been read, and what keeps a second record from being counted."""

    read: list[int]
    """Next offset of predictions, of outcomes."""
    newest_ms: list[int]
    """Newest append time of predictions, of outcomes; -1: none."""
    refs: SeenRefs
    clocks: dict[int, tuple[int, int]]
    closed_ms: int = 0
    """Windows that begin before it are closed: what still comes for them is left out."""
    left_out: dict[str, int]
    """Why records, or rows of them, were not counted, and how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be written, step by step: of one step in any order."""

    cells: dict[Key, bytes]
    tests: dict[Key, bytes]
    """Tests of drift, whose alarms are in the cells; feedback that has been counted."""
    mark: dict[Key, bytes]
    gone: tuple[Key, ...]
    """To be removed."""

    @property
    def steps(self) -> tuple[Mapping[Key, bytes | None], ...]:
        """None removes a key."""
        steps: tuple[Mapping[Key, bytes | None], ...] = (self.cells, self.tests, self.mark, dict.fromkeys(self.gone))
        return tuple(step for step in steps if step)


_encode = msgspec.json.Encoder().encode
_cell = msgspec.json.Decoder(Cell).decode
_drift = msgspec.json.Decoder(DriftState).decode
_mark = msgspec.json.Decoder(Mark).decode
_page = msgspec.json.Decoder(list[Entry]).decode


class Slice:
    """State of one partition. `written`: what its changelog holds."""

    def __init__(self, rules: InsightRules, written: Mapping[Key, bytes] | None = None) -> None:
        self._rules = rules
        self.cells: dict[Row, Cell] = {}
        self._drifts: dict[tuple[str, str, str], Drift] = {}
        self._feedback = SeenFeedback()
        self._mark = Mark(read=[0, 0], newest_ms=[-1, -1], refs=SeenRefs(), clocks={}, left_out={})
        self._changed: dict[Row, None] = {}
        self._changed_drifts: set[tuple[str, str, str]] = set()
        self._gone: list[Key] = []
        self._is_marked = True
        self._restore(written or {})

    @property
    def newest_ms(self) -> tuple[int, int]:
        """Newest append time of predictions and of outcomes that were read; -1: none."""
        return self._mark.newest_ms[PREDICTIONS], self._mark.newest_ms[OUTCOMES]

    @property
    def read(self) -> tuple[int, int]:
        """Next offset of predictions and of outcomes."""
        return self._mark.read[PREDICTIONS], self._mark.read[OUTCOMES]

    @property
    def left_out(self) -> Mapping[str, int]:
        return self._mark.left_out

    # -- what a record changes -----------------------------------------------------------------------------------

    def prediction(self, offset: int, append_ms: int, ref_offset: int | None, decision: Decision | None) -> None:
        """A record of the predictions topic; None for what cannot be read from it."""
        if not self._is_new(PREDICTIONS, offset, append_ms):
            return
        if ref_offset is None or decision is None:
            self._leave_out("unreadable_prediction")
        elif not self._mark.refs.first_time(ref_offset):
            self._leave_out("second_prediction")
        else:
            self._count_prediction(offset, append_ms, decision)

    def outcome(self, outcome: OutcomeRecord | None, offset: int, append_ms: int) -> None:
        """A record of the outcomes topic; None where it cannot be read."""
        if not self._is_new(OUTCOMES, offset, append_ms):
            return
        if outcome is None:
            self._leave_out("unreadable_outcome")
        elif is_keyed(outcome.context):
            pass  # its levels above are outcomes of their own
        elif not self._feedback.first_time(outcome):
            self._leave_out("second_outcome")
        else:
            self._mark.clocks = self._feedback.clocks
            self._count_outcome(outcome, offset)

    def _is_new(self, source: int, offset: int, append_ms: int) -> bool:
        if offset < self._mark.read[source]:
            return False
        self._mark.read[source] = offset + 1
        self._mark.newest_ms[source] = max(self._mark.newest_ms[source], append_ms)
        self._is_marked = False
        return True

    def _count_prediction(self, offset: int, append_ms: int, decision: Decision) -> None:
        route = self._rules.routes.get(decision.route)
        combine = "vote" if route is None else route.combine
        served = decision.answer
        alike = {
            model: said
            for model, answer in decision.members.items()
            if (said := likeness(combine, answer, served)) is not None
        }
        whole = fsum(alike.values()) / len(alike) if alike else None
        levels = ("",) if route is None else route.levels(decision.context)
        for context in (level for level in levels if not is_keyed(level)):  # one key has too little to show
            for model in ("", *decision.chosen):
                cell = self._cell(self._row(decision.route, model, context, append_ms), PREDICTIONS, offset)
                if cell is not None:
                    answered = served is not None if model == "" else model in decision.members
                    cell.predicted(decision.outcome, answered=answered, agreement=alike.get(model) if model else whole)

    def _count_outcome(self, outcome: OutcomeRecord, offset: int) -> None:
        knows_time = outcome.prediction_ms >= 0
        at_ms = outcome.prediction_ms if knows_time else outcome.feedback_ms
        delay_ms = max(0, outcome.feedback_ms - outcome.prediction_ms) if knows_time else None
        route = self._rules.routes.get(outcome.route)
        losses = dict(outcome.losses)
        served = served_loss("vote" if route is None else route.combine, outcome)
        if served is not None:
            losses[""] = served
        for model in ("", *outcome.decision.chosen):
            cell = self._cell(self._row(outcome.route, model, outcome.context, at_ms), OUTCOMES, offset)
            loss = losses.get(model)
            if cell is not None:
                cell.told(delay_ms, loss)
            raised = loss is not None and self._rises((outcome.route, model, outcome.context), loss, outcome)
            if raised and cell is not None:
                cell.alarmed(outcome.feedback_ms)

    def _row(self, route: str, model: str, context: str, at_ms: int) -> Row:
        return Row(route, model, context, at_ms - at_ms % self._rules.window_ms)

    def _cell(self, row: Row, source: int, offset: int) -> Cell | None:
        """The cell of this row; None where it includes this record already, is closed, or there may be no more."""
        cell = self.cells.get(row)
        if cell is None:
            if row.from_ms < self._mark.closed_ms:
                self._leave_out("window_closed")
                return None
            if len(self.cells) >= self._rules.most_cells:
                self._leave_out("too_many_rows")
                return None
            cell = self.cells[row] = Cell()
        if offset < cell.read[source]:
            return None
        cell.read[source] = offset + 1
        self._changed[row] = None
        return cell

    def _rises(self, key: tuple[str, str, str], loss: float, outcome: OutcomeRecord) -> bool:
        drift = self._drifts.get(key)
        if drift is None:
            if len(self._drifts) >= self._rules.most_cells:
                return False
            drift = self._drifts[key] = Drift(self._rules.drift)
        if outcome.offset < drift.read:
            return False
        drift.read, drift.at_ms = outcome.offset + 1, outcome.append_ms
        self._changed_drifts.add(key)
        return drift.update(loss)

    def _leave_out(self, why: str) -> None:
        self._mark.left_out[why] = self._mark.left_out.get(why, 0) + 1

    # -- what is written -----------------------------------------------------------------------------------------

    def close(self, rows: Iterable[Row], closed_ms: int) -> None:
        """Drop windows that are over, all that begin before `closed_ms`; their rows leave the changelog last."""
        if closed_ms > self._mark.closed_ms:
            self._mark.closed_ms = closed_ms
            self._is_marked = False
        for row in rows:
            if self.cells.pop(row, None) is not None:
                self._changed.pop(row, None)
                self._gone.append(("cell", *row))
        newest_ms = max(self._mark.newest_ms)
        for key in [key for key, drift in self._drifts.items() if drift.at_ms < newest_ms - DRIFT_KEPT_MS]:
            del self._drifts[key]
            self._changed_drifts.discard(key)
            self._gone.append(("drift", *key))

    def changes(self) -> Changes:
        """What has changed since the last call."""
        cells: dict[Key, bytes] = {("cell", *row): _encode(self.cells[row]) for row in self._changed}
        tests: dict[Key, bytes] = {
            ("drift", *key): _encode(self._drifts[key].state()) for key in sorted(self._changed_drifts)
        }
        gone, mark = self._gone, dict[Key, bytes]()
        for page, entries in self._feedback.changes().items():
            if entries:
                tests["seen", page] = _encode(entries)
            else:
                gone.append(("seen", page))
        if not self._is_marked:
            mark["mark",] = _encode(self._mark)
        self._changed, self._changed_drifts, self._gone, self._is_marked = {}, set(), [], True
        return Changes(cells=cells, tests=tests, mark=mark, gone=tuple(gone))

    def _restore(self, written: Mapping[Key, bytes]) -> None:
        if ("mark",) in written:
            self._mark = _mark(written["mark",])
        pages = []
        for key, value in written.items():
            match key:
                case ("cell", str(route), str(model), str(context), int(from_ms)):
                    self.cells[Row(route, model, context, from_ms)] = _cell(value)
                case ("drift", str(route), str(model), str(context)):
                    self._drifts[route, model, context] = Drift(self._rules.drift, _drift(value))
                case ("seen", int()):
                    pages.append(_page(value))
        self._feedback.restore(pages, self._mark.read[OUTCOMES])
        self._feedback.clocks = self._mark.clocks


def likeness(combine: str, answer: Label, served: Label) -> float | None:
    """How far one member said what was served, the mean over rows; None where they cannot be compared."""
    if not isinstance(answer, list) or not isinstance(served, list) or len(answer) != len(served) or not served:
        return None
    return 1.0 - fsum(apart(combine, one, other) for one, other in zip(served, answer, strict=True)) / len(served)


def served_loss(combine: str, outcome: OutcomeRecord) -> float | None:
    """The loss of what the route served; None where the feedback says nothing of that.

    A reward speaks of the served answer, unless it named one of several models.
    """
    decision = outcome.decision
    if outcome.has_label:
        answer = decision.answer
        if not isinstance(answer, list) or not answer:
            return None
        truth = label_rows(outcome.label, len(answer), any(isinstance(row, list) for row in answer))
        alike = None if truth is None else likeness(combine, answer, truth)
        return None if alike is None else 1.0 - alike
    if outcome.reward is None or decision.outcome not in _GIVEN:
        return None
    names_one = len(decision.chosen) > 1 and bool(outcome.losses)
    return None if names_one else 1.0 - outcome.reward
