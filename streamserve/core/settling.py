"""From open requests to terminal records: outcome, reason, combined answer, confidence, who said what.

Long since a terminal record is built in one place, whoever has answered: its columns must agree row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamserve.core.codec import InputCodec
from streamserve.core.combining import Combined, MemberRows, combine, served_probability
from streamserve.core.epochs import EpochTable
from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.masks import bits
from streamserve.core.messages import (
    F64,
    I64,
    PROBABILITY_ONE,
    U8,
    AnyArray,
    Choice,
    DeadLetters,
    Flags,
    MemberOutput,
    NamedRows,
    Predictions,
    ToldProbabilities,
)
from streamserve.core.opinions import evidence_of
from streamserve.core.outputs_of import default_rows, member_outputs, told_probabilities
from streamserve.core.reasons import UNUSABLE, Missing, Outcome, Reason
from streamserve.core.routes import Route
from streamserve.core.rows import span_ms, starts_of
from streamserve.core.selection.base import draw, salt_of
from streamserve.core.selection.confident import Confident
from streamserve.core.slicing import take_predictions
from streamserve.core.sureness import Said, sureness
from streamserve.core.window import NO_ERROR, Due, Window, head_words, member_words

_UNUSABLE = np.array(sorted(UNUSABLE), np.int64)
_ERROR = int(Outcome.ERROR)
_REFUSALS = (Missing.ROW_ERROR, Missing.BAD_INPUT)


Block = tuple[Predictions, I64]
"""Terminal records and the window's rows that they settle."""


class Settling:
    """Pure but for reading the window. Law: one entry in exactly one block for each request that is due."""

    def __init__(self, window: Window, epochs: EpochTable, codecs: Mapping[str, InputCodec]) -> None:
        self._routes = epochs.routes
        self._window = window
        self._epochs = epochs
        self._codecs = codecs

    def weights(self, route: int, at: I64) -> F64:
        """`[n, models]`: each request's weights under its epoch, zero for models that were not chosen."""
        table = self._window.table
        width = len(self._routes[route].models)
        if width == 1:
            return np.ones((len(at), 1))
        weights = self._epochs.weights(route, *self._decided_by(route, at))
        weights[~bits(table["chosen"][at], width)] = 0.0
        mask = self._routes[route].second_mask
        if mask:  # where it has come, it counts alone
            came = (table["chosen"][at] & table["present"][at] & np.uint64(mask)) != 0
            weights[came] = 0.0
            weights[came, width - 1] = 1.0
        return weights

    def _decided_by(self, route: int, at: I64) -> tuple[I64, I64, list[str] | None, I64]:
        """Epochs, append times, contexts and partitions of these requests."""
        table = self._window.table
        contexts = None if self._routes[route].contexts is None else table.entries("contexts", at)
        return table["epoch"][at], table["append_ms"][at], contexts, table["partition"][at]

    def settle(self, due: Due, now_ms: int) -> list[Block]:
        """Terminal records, one block per (route, kind of answer)."""
        table = self._window.table
        routes = table["route"][due.at]
        found = distinct(routes)
        if len(found) == 1:
            return self._settle_group(due.at, due.early, found[0], now_ms)
        blocks: list[Block] = []
        for route in found:
            mine = routes == route
            blocks += self._settle_group(due.at[mine], due.early[mine], route, now_ms)
        return blocks

    def _settle_group(self, at: I64, early: Flags, route: int, now_ms: int) -> list[Block]:
        table = self._window.table
        usable = (table["error"][at] == NO_ERROR) & (route >= 0)
        answered = usable & ((table["chosen"][at] & table["present"][at]) != 0)
        blocks: list[Block] = []
        if some(answered):
            forms = table["form"][at]
            if every(answered) and every(forms == forms[0]):
                return self._answered(at, early, route, now_ms)
            for form in distinct(forms[answered]):
                mine = answered & (forms == form)
                blocks += self._answered(at[mine], early[mine], route, now_ms)
        if not every(answered):
            rest = at[~answered]
            blocks.append((self._unanswered(rest, route, now_ms), rest))
        return blocks

    # -- somebody answered ---------------------------------------------------------------------------------------

    def combined(self, at: I64, route: int, weights: F64) -> tuple[Combined, list[tuple[int, MemberRows]], I64]:
        """The ensemble's answer for requests that each have one, their members' rows, and `row_starts`."""
        n_rows = self._window.table["n_rows"][at]
        row_starts = starts_of(n_rows)
        members = self._window.members(at, route, row_starts)
        shares = weights[:, [bit for bit, _ in members]]
        if int(row_starts[-1]) != len(at):
            shares = np.repeat(shares, n_rows, axis=0)
        rule, draws = self._routes[route], None
        if rule.combine == "drawn":
            draws = np.repeat(self._draws(rule, at), n_rows)
        combined = combine(rule.combine, shares, [rows for _, rows in members], draws)
        return combined, members, row_starts

    def _draws(self, rule: Route, at: I64) -> F64:
        """`[n]` in [0, 1): which member's answer is given, a function of the request's place alone."""
        table = self._window.table
        found = draw(table["partition"][at], table["offset"][at], salt_of(rule.name, rule.policy.name, "served"))
        return found / PROBABILITY_ONE

    def _answered(self, at: I64, early: Flags, route: int, now_ms: int) -> list[Block]:
        table, rule = self._window.table, self._routes[route]
        weights = self.weights(route, at)
        combined, members, row_starts = self.combined(at, route, weights)
        agreement = self.confidence(weights, combined, members, row_starts)
        if rule.confident is not None and rule.confident.rules.of == "probability":
            agreement = self._evidence(rule, combined, members, row_starts)
        said = Said(confidence=agreement)
        if rule.confident is not None:
            said = sureness(
                rule.confident,
                self._epochs.deciding(route, *self._decided_by(route, at)),
                agreement,
                (combined, row_starts),
            )
        if rule.confident is not None and rule.second is not None:
            said = self._with_second(rule, rule.confident, said, at, route)
        confidence = said.confidence
        complete = (table["chosen"][at] & ~table["present"][at]) == 0
        late = now_ms > table["deadline_ms"][at]
        outcome, reason = _story(complete, early)
        low = np.zeros(len(at), np.bool_)
        if rule.confidence_threshold > 0 and (rule.has_default or rule.abstains):
            low = (confidence < rule.confidence_threshold) & ~late
        outputs = member_outputs(rule, combined, members, row_starts, low)
        told = told_probabilities(rule, combined, members, row_starts) if rule.tells_probabilities else ()
        served = None
        if rule.second is not None:
            low[:] = False  # it was asked, or there was no time: what is there is given
        if rule.combine == "drawn":
            there = np.stack([rows.present[row_starts[:-1]] for _, rows in members], axis=1)
            served = served_probability(weights[:, [bit for bit, _ in members]], combined.agrees, there, row_starts)
        block = self._block(
            at,
            route,
            now_ms,
            outcome=outcome,
            reason=reason,
            row_starts=row_starts,
            labels=combined.labels,
            probabilities=combined.probabilities if rule.probabilities or said.extras else None,
            classes=combined.classes if rule.probabilities or said.extras or told else None,
            confidence=confidence,
            agreement=None if rule.confident is None else agreement,
            said=said,
            late=late,
            members=outputs,
            told=told,
            served_probability=served,
            missing=self._missing(at, route, now_ms, early),
        )
        if not some(low):
            return [(block, at)]
        if rule.confident is not None:
            block = replace(block, extras=(*block.extras, NamedRows(name="withheld", rows=combined.labels, told=low)))
        return _split_low(block, at, low, rule)

    def _evidence(self, rule: Route, combined: Combined, members: list[tuple[int, MemberRows]], row_starts: I64) -> F64:
        """`[n]`: the answer's highest probability; where a second opinion came, that of the first answer. NaN: none."""
        n = len(row_starts) - 1
        if rule.second is None:
            found = combined.probabilities
            return np.full(n, np.nan) if found is None else evidence_of(found, row_starts)
        evidence = np.full(n, np.nan)
        for bit, rows in members:
            if rule.models[bit] != rule.second and rows.probabilities is not None:
                there = rows.present[row_starts[:-1]]
                evidence[there] = evidence_of(rows.probabilities, row_starts)[there]
        return evidence

    def _with_second(self, rule: Route, confident: Confident, said: Said, at: I64, route: int) -> Said:
        """The same, with how often second opinions are right where one came."""
        table = self._window.table
        came = (table["chosen"][at] & table["present"][at] & np.uint64(rule.second_mask)) != 0
        if not some(came):
            return said
        numbers, decided = self._epochs.deciding(route, *self._decided_by(route, at))
        of_second = np.array([confident.confidence_of_second(one.value) for one in decided])
        return replace(said, confidence=np.where(came, of_second[numbers], said.confidence))

    def confidence(
        self, weights: F64, combined: Combined, members: list[tuple[int, MemberRows]], row_starts: I64
    ) -> F64:
        """Weighted agreement over all chosen, `[n]`: members that are missing cannot agree; many rows: their mean."""
        n = len(weights)
        if weights.shape[1] == 1:
            return np.ones(n)
        total = weights.sum(axis=1)
        agrees = combined.agrees
        shares = weights[:, [bit for bit, _ in members]]
        if len(agrees) != n:
            agrees_mean = np.add.reduceat(agrees.astype(np.float64), row_starts[:-1], axis=0)
            agrees_mean /= np.diff(row_starts)[:, None]
        else:
            agrees_mean = agrees.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (agrees_mean * shares).sum(axis=1) / total
        plain = agrees_mean.mean(axis=1)
        confidence: F64 = np.minimum(np.maximum(np.where(total > 0, share, plain), 0.0), 1.0)
        return confidence

    def _missing(self, at: I64, route: int, now_ms: int, early: Flags | None) -> U8:
        """`[n, models]`: why each chosen member's answer is not there."""
        table = self._window.table
        width = len(self._routes[route].models) if route >= 0 else 0
        if every(table["chosen"][at] == table["present"][at]):
            return np.zeros((len(at), width), np.uint8)
        missing: U8 = table["missing"][at][:, :width].copy()
        chosen = bits(table["chosen"][at], width)
        absent = chosen & ~bits(table["present"][at], width) & ~bits(table["failed"][at], width)
        if some(absent):
            missing[absent] = Missing.LATE
            if early is not None:
                missing[absent & early[:, None]] = Missing.NOT_AWAITED
        missing[~chosen] = Missing.PRESENT
        return missing

    # -- nobody answered -----------------------------------------------------------------------------------------

    def _unanswered(self, at: I64, route: int, now_ms: int) -> Predictions:
        table = self._window.table
        rule = self._routes[route] if route >= 0 else None
        self._read_ids(at, rule)
        n = len(at)
        missing = self._missing(at, route, now_ms, None)
        in_time = now_ms <= table["deadline_ms"][at]
        may_default = in_time & (rule is not None and rule.has_default)
        outcome = np.where(may_default, Outcome.DEFAULT, Outcome.EXPIRED)
        reason = np.where(may_default, Reason.NO_ANSWER_IN_TIME, Reason.DEADLINE_PASSED)
        reason[(outcome == Outcome.EXPIRED) & table["late_on_arrival"][at]] = Reason.LATE_ON_ARRIVAL
        if rule is not None:
            self._blame_members(at, missing, may_default, outcome, reason)
        error = table["error"][at]
        unusable = error != NO_ERROR
        outcome[unusable] = Outcome.ERROR
        reason[unusable] = error[unusable]
        missing[unusable[:, None] & (missing == Missing.LATE)] = Missing.PRESENT  # nobody is to answer it
        given = outcome == Outcome.DEFAULT
        n_rows = np.where(given, np.maximum(table["n_rows"][at], 1), 0)
        labels = default_rows(rule, int(n_rows.sum())) if rule is not None and some(given) else None
        return self._block(
            at,
            route,
            now_ms,
            outcome=outcome.astype(np.uint8),
            reason=reason.astype(np.uint8),
            row_starts=starts_of(n_rows),
            labels=labels,
            probabilities=None,
            classes=None,
            confidence=np.full(n, np.nan),
            late=np.zeros(n, np.bool_),
            members=(),
            missing=missing,
        )

    def _blame_members(self, at: I64, missing: U8, may_default: Flags, outcome: I64, reason: I64) -> None:
        """All chosen members said that they will not answer: refused, failed or shed."""
        table = self._window.table
        chosen = bits(table["chosen"][at], missing.shape[1])
        settled = ((table["chosen"][at] & ~table["failed"][at]) == 0) & chosen.any(axis=1)
        if not some(settled):
            return

        def every(*codes: Missing) -> Flags:
            flags: Flags = settled & (np.isin(missing, codes) | ~chosen).all(axis=1)
            return flags

        failed = settled & ~every(Missing.SHED, Missing.LATE)
        outcome[failed & ~may_default] = Outcome.ERROR
        reason[failed] = Reason.ALL_MEMBERS_FAILED
        refused = every(*_REFUSALS)
        outcome[refused] = Outcome.ERROR
        reason[refused] = Reason.REFUSED
        wrong = every(Missing.BAD_INPUT)
        reason[wrong] = Reason.WRONG_SHAPE
        shed = every(Missing.SHED, Missing.LATE) & ~may_default & ~table["late_on_arrival"][at]
        reason[shed] = Reason.SHED

    def _read_ids(self, at: I64, rule: Route | None) -> None:
        """What nobody has read yet: the body's id, by which the caller knows its request, or why it has none."""
        table, window = self._window.table, self._window
        lists = table.lists
        ids, values, headers = lists["ids"], lists["values"], lists["headers"]
        codec = self._codecs[rule.input if rule is not None else self._routes[0].input]
        unread = [i for i in at.tolist() if ids[i] is None]
        if not unread:
            return
        decoded = codec.decode([values[i] for i in unread], [headers[i] for i in unread])
        for i, request_id in zip(unread, decoded.ids, strict=True):
            ids[i] = request_id
        for index, (reason, words) in decoded.errors.items():
            row = unread[index]
            if table["error"][row] == NO_ERROR:
                table["error"][row] = reason
                window.words.setdefault(row + table.base, {})[-1] = words

    # -- both ----------------------------------------------------------------------------------------------------

    def _block(
        self,
        at: I64,
        route: int,
        now_ms: int,
        *,
        outcome: U8,
        reason: U8,
        row_starts: I64,
        labels: AnyArray | None,
        probabilities: F64 | None,
        classes: AnyArray | None,
        confidence: F64,
        late: Flags,
        members: tuple[MemberOutput, ...],
        missing: U8,
        told: tuple[ToldProbabilities, ...] = (),
        agreement: F64 | None = None,
        said: Said | None = None,
        served_probability: F64 | None = None,
    ) -> Predictions:
        table = self._window.table
        models = self._routes[route].models if route >= 0 else ()
        return Predictions(
            partition=table["partition"][at],
            route=self._routes[route].name if route >= 0 else "",
            models=models,
            offsets=table["offset"][at],
            append_ms=table["append_ms"][at],
            keys=table.entries("keys", at),
            ids=table.entries("ids", at),
            traces=table.entries("traces", at),
            contexts=table.entries("contexts", at) if route >= 0 and self._routes[route].contexts else (),
            outcome=outcome,
            reason=reason,
            row_starts=row_starts,
            labels=labels,
            probabilities=probabilities,
            classes=classes,
            confidence=confidence,
            choice=Choice(
                chosen=table["chosen"][at],
                probability=table["probability"][at],
                epoch=table["epoch"][at],
                stale=table["stale"][at],
            ),
            answered=table["present"][at] & table["chosen"][at],
            missing=missing,
            members=members,
            told=told,
            agreement=agreement,
            state_age_ms=self._ages_ms(at, route),
            set_size=None if said is None else said.set_size,
            second=self._routes[route].second if route >= 0 else None,
            served_probability=served_probability,
            extras=() if said is None else said.extras,
            queue_ms=table["queue_ms"][at],
            inference_ms=table["inference_ms"][at],
            total_ms=span_ms(table["append_ms"][at], now_ms),
            late=late,
            off_epoch=table["off_epoch"][at],
            details=self._details(at, models),
            heads=self._heads(at, models),
        )

    def _ages_ms(self, at: I64, route: int) -> I64 | None:
        if route < 0 or not self._routes[route].learns:
            return None
        return self._epochs.ages_ms(route, *self._decided_by(route, at))

    def _heads(self, at: I64, models: tuple[str, ...]) -> dict[int, str]:
        heads, table = self._window.heads, self._window.table
        if not heads:
            return {}
        present = (table["present"][at] & table["chosen"][at]).tolist()
        found = {}
        for i, row in enumerate(at.tolist()):
            said = heads.get(row + table.base)
            words = head_words(said, present[i], models) if said else ""
            if words:
                found[i] = words
        return found

    def _details(self, at: I64, models: tuple[str, ...]) -> dict[int, str]:
        words, base = self._window.words, self._window.table.base
        if not words:
            return {}
        details = {}
        for i, row in enumerate(at.tolist()):
            said = words.get(row + base)
            if said:
                details[i] = said.get(-1) or member_words(said, models)
        return details

    def unusable(self, block: Predictions) -> Flags:
        """Which requests of a block become dead letters too."""
        flags: Flags = block.outcome == _ERROR
        if some(flags):
            flags &= np.isin(block.reason, _UNUSABLE)
        return flags

    def dead_letters(self, block: Predictions, at: I64) -> DeadLetters:
        """The requests whose value could not be used. `at`: the rows in the window of a block of one partition."""
        unusable = indices(self.unusable(block))
        lists = self._window.table.lists
        rows = unusable.tolist()
        said, handles = self._window.failures, (at[unusable] + self._window.table.base).tolist()
        return DeadLetters(
            source="requests",
            partition=int(block.partition[0]),
            offsets=block.offsets[unusable],
            append_ms=block.append_ms[unusable],
            keys=[block.keys[i] for i in rows],
            values=[lists["values"][at[i]] for i in rows],
            headers=[lists["headers"][at[i]] for i in rows],
            reasons=[str(Reason(int(block.reason[i]))) for i in rows],
            details=[block.details.get(i, "") for i in rows],
            stage="aggregator",
            failures={i: said[handle] for i, handle in enumerate(handles) if handle in said},
        )


def _story(complete: Flags, early: Flags) -> tuple[U8, U8]:
    """Outcomes and reasons of requests that somebody answered."""
    n = len(complete)
    if every(complete):
        return np.full(n, int(Outcome.OK), np.uint8), np.full(n, int(Reason.ALL_ANSWERED), np.uint8)
    outcome = np.where(complete | early, int(Outcome.OK), int(Outcome.PARTIAL)).astype(np.uint8)
    reason = np.where(complete, int(Reason.ALL_ANSWERED), int(Reason.MEMBERS_MISSING))
    reason = np.where(early & ~complete, int(Reason.DECIDED_EARLY), reason)
    return outcome, reason.astype(np.uint8)


def _split_low(block: Predictions, at: I64, low: Flags, rule: Route) -> list[Block]:
    """Cut off the requests whose confidence is below the threshold: their answer is the default, or nothing."""
    parts: list[Block] = []
    if not every(low):
        parts.append((take_predictions(block, indices(~low)), at[~low]))
    part = take_predictions(block, indices(low))
    n = len(part)
    kept = rule.confident is not None and part.set_size is not None  # what is learnt from its label needs them
    given = take_predictions(
        part,
        np.arange(n),
        outcome=np.full(n, Outcome.DEFAULT, np.uint8),
        reason=np.full(n, Reason.ABSTAINED if rule.abstains else Reason.LOW_CONFIDENCE, np.uint8),
        labels=None if rule.abstains else default_rows(rule, int(part.row_starts[-1])),
        probabilities=part.probabilities if kept else None,
        classes=part.classes if kept else None,
        served_probability=None,
    )
    return [*parts, (given, at[low])]
