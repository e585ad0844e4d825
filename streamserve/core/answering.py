"""From queued requests to model calls to answers: the middle of the worker stage.

Long since what becomes of a batch (whole, in parts, from the cache, halved) is one story of the same queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamserve.core.asked import Asked
from streamserve.core.blocks import Answered, Verdict, build_blocks
from streamserve.core.bounds import Fill
from streamserve.core.coalescing import Coalescing, SortedOut, subset
from streamserve.core.codec import InputCodec
from streamserve.core.composing import Composing
from streamserve.core.decoding import UNDECODED, UNUSABLE_INPUT, InputRows
from streamserve.core.desk import FAILED_CALLS_LIMIT, SUSPECTS_LIMIT, TELLING_REQUESTS, Batch, Desk
from streamserve.core.effects import Count, Effect, RunBatch
from streamserve.core.events import BatchFinished
from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.messages import I64, U8, AnyArray, Failure, Outputs
from streamserve.core.outputs import alike, check_outputs, joined
from streamserve.core.presence import is_present
from streamserve.core.reasons import PRESENT, Missing, Reason
from streamserve.core.routes import AppRules, Route
from streamserve.core.rows import ranges, starts_of
from streamserve.core.table import Table

_NONE = np.zeros(0, np.int64)


class Answering:
    """Decides what runs next for a model, and what became of what ran."""

    def __init__(
        self, rules: AppRules, routes: Sequence[Route], table: Table, codecs: Mapping[str, InputCodec]
    ) -> None:
        self._routes = routes
        self._table = table
        self._inputs = InputRows(table, routes, codecs)
        self._composing = Composing(table, self._inputs)
        self._running: dict[int, Desk] = {}
        """By number of the batch."""
        self._coalescing = Coalescing(rules.bounds.queue_requests)

    def fills(self) -> dict[str, Fill]:
        return self._coalescing.fills()

    def running(self, batch: int) -> Desk | None:
        """The desk whose call this is; None: nobody waits for it any more."""
        return self._running.get(batch)

    def chosen_anew(self) -> None:
        """Requests in the table have other choices than before."""
        self._composing.chosen_anew()

    def forget(self, model: str) -> None:
        """A model is hosted no more."""
        self._coalescing.forget(model)

    # -- before the call -----------------------------------------------------------------------------------------

    def cut(self, desk: Desk, now_ms: int, guard_ms: int, backlog_rows: int, effects: list[Effect]) -> list[Answered]:
        """Give an idle model its next batch, if there is one; returns answers that need no call."""
        answered: list[Answered] = []
        desk.go_at_ms = None
        while desk.running is None:
            if desk.retries:
                answered += self._retry(desk, now_ms, guard_ms, effects)
                continue
            answered += self.turn_away(desk, now_ms)
            doomed = desk.pop_due(desk.doomed_until_ms(now_ms, guard_ms))
            answered += self.shed(desk, doomed, "doomed", now_ms, effects)
            if not len(desk):
                break
            load = desk.load(now_ms, guard_ms, backlog_rows)
            size = desk.batcher.size(load)
            desk.target_rows = size.target
            desk.go_at_ms = desk.waits_until_ms(size, load.slack_ms, now_ms)
            if desk.go_at_ms is not None:
                break
            head, too_late = desk.choose(size.rows, load.slack_ms, now_ms, guard_ms)
            for why, gone in too_late:
                answered += self.shed(desk, gone, why, now_ms, effects)
            newest = self._composing.again(head)
            if newest is not None and not self._refusal(desk, newest.inputs):
                batch = self._composing.take_again(desk, newest, size.why, now_ms)
                answered += self._from_cache(desk, batch, size.why, now_ms, effects)
                continue
            new = head[self._table["group"][self._table.at(head)] == UNDECODED]
            unusable = self._answer_unusable(desk, head, now_ms)
            answered += unusable
            if unusable or some(self._table["n_rows"][self._table.at(new)] > 1):
                continue  # others stand at the head now, or it has more rows than it was counted for: decide again
            if len(desk):
                batch = self._composing.compose(desk, head, size.rows, size.why, now_ms)
                answered += self._from_cache(desk, batch, size.why, now_ms, effects)
        self._count_answered(desk, answered, effects)
        return answered

    def _count_answered(self, desk: Desk, answered: list[Answered], effects: list[Effect]) -> None:
        if answered:
            n = sum(len(block) for _, block in answered)
            effects.append(Count(what="answered_without_call", label=desk.rules.model, n=n))

    def _retry(self, desk: Desk, now_ms: int, guard_ms: int, effects: list[Effect]) -> list[Answered]:
        """Run the next piece of a failed batch, without those for whom nobody waits or who cannot make it any more."""
        batch = desk.retries.popleft()
        groups = [self._waiting_for(batch, i) for i in range(len(batch))]
        until_ms = desk.doomed_until_ms(now_ms, guard_ms)
        deadline = self._table["deadline_ms"]
        useful = np.array([some(deadline[self._table.at(group)] > until_ms) for group in groups], np.bool_)
        if every(useful):
            self._run(desk, batch, "bisect", now_ms, effects)
            return []
        answered: list[Answered] = []
        for i in indices(~useful).tolist():
            answered += self.shed(desk, groups[i], "doomed", now_ms, effects)
            if batch.keys:
                self._coalescing.release(batch.keys[i])
        kept = indices(useful)
        if len(kept):
            keys = tuple(batch.keys[i] for i in kept.tolist()) if batch.keys else ()
            self._run(desk, replace(subset(batch, kept, batch.number), keys=keys), "bisect", now_ms, effects)
        elif not desk.retries:
            answered += self._convict(desk, Missing.ROW_ERROR)
        return answered

    def _waiting_for(self, batch: Batch, i: int) -> I64:
        """A request of a batch and its followers, as far as they still wait."""
        followers = self._coalescing.followers(batch.keys[i]) if batch.keys else []
        handles = np.array([int(batch.handles[i]), *followers], np.int64)
        handles = handles[handles >= self._table.base]
        waiting: I64 = handles[self._table["waiting"][self._table.at(handles)] > 0]
        return waiting

    def turn_away(self, desk: Desk, now_ms: int) -> list[Answered]:
        """Answers for the queued requests that a model which keeps failing is not called for."""
        passes = desk.circuit.lets_through(now_ms)
        if passes is None or len(desk) <= passes:
            return []
        words = f"{desk.rules.model} keeps failing: it is not called until a trial goes well"
        return self._answer_all(desk, desk.pop_beyond(passes), Missing.CIRCUIT_OPEN, now_ms, words)

    def shed_due(self, desk: Desk, now_ms: int, effects: list[Effect]) -> list[Answered]:
        """Answers for the queued requests whose deadline has come."""
        return self.shed(desk, desk.pop_due(now_ms), "deadline", now_ms, effects)

    def shed(self, desk: Desk, gone: I64, why: str, now_ms: int, effects: list[Effect]) -> list[Answered]:
        """Answers for requests that are not run, so that others make their deadline; they are in no queue."""
        if len(gone):
            effects.append(Count(what="shed", label=why, model=desk.rules.model, n=len(gone)))
        return self._answer_all(desk, gone, Missing.SHED, now_ms)

    def _answer_unusable(self, desk: Desk, head: I64, now_ms: int) -> list[Answered]:
        """Decode the head of the queue; answer and remove what no call can use."""
        table = self._table
        errors = self._inputs.decode(head)
        for handle, error in errors.items():
            table.lists["errors"][handle - table.base] = error
        at = table.at(head)
        bad = head[table["group"][at] == UNUSABLE_INPUT]
        answered: list[Answered] = []
        if len(bad):
            desk.remove(bad)
            answered += self._answer_all(desk, bad, Missing.BAD_INPUT, now_ms)
        if desk.rules.takes_text is None and desk.rules.trailing_shape is None:
            return answered
        groups = table["group"][at]
        for group in distinct(groups[groups >= 0]):
            words = self._refusal(desk, self._inputs.rows(group, _NONE, _NONE))
            if words:
                wrong = head[groups == group]
                desk.remove(wrong)
                answered += self._answer_all(desk, wrong, Missing.BAD_INPUT, now_ms, words)
        return answered

    def _refusal(self, desk: Desk, rows: AnyArray) -> str:
        """Why the model does not take rows of this form; empty: it does."""
        shape, rules = rows.shape[1:], desk.rules
        is_text = bool(rows.dtype == object)
        fits = rules.takes_text in (None, is_text) and rules.trailing_shape in (None, shape)
        if fits:
            return ""
        takes = _row_words(rules.trailing_shape, is_text=rules.takes_text)
        return f"{rules.model} takes rows of {takes}, this request has rows of {_row_words(shape, is_text=is_text)}"

    def _run(self, desk: Desk, batch: Batch, why: str, now_ms: int, effects: list[Effect]) -> None:
        desk.running = batch
        self._running[batch.number] = desk
        desk.called(now_ms)
        desk.circuit.tries()
        here = False
        if desk.lane is not None:
            here = desk.lane.begin(desk.rules.model, desk.expected_ms(len(batch.inputs)))
        effects.append(
            RunBatch(
                batch=batch.number,
                model=desk.rules.model,
                inputs=batch.inputs,
                why=why,
                target_rows=desk.target_rows,
                here=here,
            )
        )

    # -- cache ---------------------------------------------------------------------------------------------------

    def _from_cache(self, desk: Desk, batch: Batch, why: str, now_ms: int, effects: list[Effect]) -> list[Answered]:
        """Answer what is known, let repeats follow the request that is under way, run the rest."""
        if not desk.rules.cache_bytes or batch.part_of >= 0:
            self._run(desk, batch, why, now_ms, effects)
            return []
        sorted_out = self._coalescing.sort_out(desk.rules, batch)
        answered = self._answer_known(desk, batch, sorted_out, effects)
        if len(sorted_out.lead):
            part = replace(subset(batch, sorted_out.lead, batch.number), keys=sorted_out.keys)
            self._run(desk, part, why, now_ms, effects)
        return answered

    def look_up(self, desk: Desk, handles: I64, now_ms: int, effects: list[Effect]) -> list[Answered]:
        """Requests that came while a call is under way: what is known need not wait for its end."""
        answered = self._answer_unusable(desk, handles, now_ms)
        handles = handles[desk.queues(handles)]
        groups = self._table["group"][self._table.at(handles)]
        for group in distinct(groups):
            mine = handles[groups == group]
            at = self._table.at(mine)
            n_rows = self._table["n_rows"][at]
            inputs = self._inputs.rows(group, self._table["first_row"][at], n_rows)
            batch = self._composing.batch(mine, n_rows, inputs, "cache", now_ms)
            sorted_out = self._coalescing.sort_out(desk.rules, batch, leads=False)
            gone = [rows for rows, _ in sorted_out.known] + [sorted_out.followers]
            desk.remove(mine[np.concatenate(gone)])
            answered += self._answer_known(desk, batch, sorted_out, effects)
        self._count_answered(desk, answered, effects)
        return answered

    def _answer_known(self, desk: Desk, batch: Batch, found: SortedOut, effects: list[Effect]) -> list[Answered]:
        for label, n in (("hit", found.hits), ("coalesced", len(found.followers)), ("miss", len(found.lead))):
            if n:
                effects.append(Count(what="cache", label=label, n=n))
        answered: list[Answered] = []
        for rows, outputs in found.known:
            known = subset(batch, rows, batch.number)
            answered += self._build(desk, known, Verdict(missing=np.zeros(len(rows), np.uint8), outputs=outputs))
        return answered

    def _with_followers(self, desk: Desk, batch: Batch, verdict: Verdict) -> tuple[Batch, I64]:
        """The batch with the requests that followed its members appended, and whose answer each request gets; where
        nobody followed, the very same batch.

        Fills the cache.
        """
        n = len(batch)
        if not batch.keys:
            return batch, _NONE
        source, handles = list(range(n)), batch.handles.tolist()
        self._coalescing.remember(desk.rules.model, batch, verdict.outputs, verdict.missing == PRESENT)
        for i, key in enumerate(batch.keys):
            live = [follower for follower in self._coalescing.release(key) if follower >= self._table.base]
            source += [i] * len(live)
            handles += live
        if len(handles) == n:
            return batch, _NONE
        table = self._table
        at = table.at(np.array(handles[n:], np.int64))
        extended = replace(
            batch,
            handles=np.array(handles, np.int64),
            n_rows=batch.n_rows[source],
            asked=batch.asked.plus(Asked.read(table, at)),
        )
        return extended, np.array(source, np.int64)

    # -- after the call ------------------------------------------------------------------------------------------

    def finish(self, desk: Desk, event: BatchFinished, now_ms: int, effects: list[Effect]) -> Iterator[Answered]:
        """What became of the running batch."""
        batch = self._ended(desk)
        if batch is None:
            return
        desk.called(now_ms)
        outputs = event.outputs
        if outputs is None:
            yield from self._failed(desk, batch, event, now_ms, effects)
            return
        rows = len(batch.inputs)
        desk.batcher.observe(rows, event.duration_ms, batch.limited)
        desk.most_rows_run = max(desk.most_rows_run, rows)
        duration = max(0, round(event.duration_ms))
        checked = check_outputs(outputs, batch.n_rows)
        missing = checked.missing
        is_answered = is_present(missing) or some(missing == PRESENT)
        if is_answered:
            desk.forms.answered(batch.inputs)
            self._went_well(desk, effects)
        elif desk.forms.is_strange(batch.inputs):
            desk.circuit.told_nothing()
        elif len(batch) >= TELLING_REQUESTS:
            self._failed_whole(desk, event, now_ms, effects)
            if desk.calls_failed_in_row > FAILED_CALLS_LIMIT:
                missing = np.full(len(batch), Missing.MODEL_ERROR, np.uint8)
        else:
            self._went_well(desk, effects)
        yield from self._convict(desk, Missing.ROW_ERROR)
        if batch.part_of >= 0:
            yield from self._finish_part(desk, batch, outputs, duration)
            return
        # Of a call that answers nobody the rows are worth nothing, and may not even be as many as were asked for.
        said = outputs if is_answered else None
        verdict = Verdict(missing=missing, outputs=said, details=checked.details, duration_ms=duration)
        yield from self._deliver(desk, batch, verdict)

    def _ended(self, desk: Desk) -> Batch | None:
        """Its call is over, or nobody waits for it any more; the batch, if there was one."""
        batch, desk.running = desk.running, None
        if batch is not None:
            del self._running[batch.number]
            if desk.lane is not None:
                desk.lane.ended(desk.rules.model)
        return batch

    def _went_well(self, desk: Desk, effects: list[Effect]) -> None:
        desk.calls_failed_in_row = 0
        if desk.circuit.went_well():
            effects.append(Count(what="circuit", label="closed", model=desk.rules.model, n=1))

    def _deliver(self, desk: Desk, batch: Batch, verdict: Verdict) -> list[Answered]:
        full, source = self._with_followers(desk, batch, verdict)
        if full is not batch:
            outputs = verdict.outputs
            if outputs is not None:
                outputs = _gathered(outputs, ranges(starts_of(batch.n_rows)[:-1][source], full.n_rows))
            verdict = Verdict(
                missing=verdict.missing[source],
                outputs=outputs,
                details={i: verdict.details[s] for i, s in enumerate(source.tolist()) if s in verdict.details},
                failures={i: verdict.failures[s] for i, s in enumerate(source.tolist()) if s in verdict.failures},
                duration_ms=verdict.duration_ms,
            )
        return self._build(desk, full, verdict)

    def _failed(
        self, desk: Desk, batch: Batch, event: BatchFinished, now_ms: int, effects: list[Effect]
    ) -> Iterator[Answered]:
        """A call raised: halve it until the bad requests stand alone, and try each of these once more.

        Given up where it is the model that is bad, which rows of a form that it never answered do not tell.
        """
        strange = desk.forms.is_strange(batch.inputs)
        if event.away or (len(batch) > 1 and not strange and desk.taken_for_bad()):
            self._failed_whole(desk, event, now_ms, effects)
            pieces = [batch, *desk.retries]
            desk.retries.clear()
            for piece in pieces:
                yield from self._refuse(desk, piece, Missing.MODEL_ERROR, event)
            yield from self._convict(desk, Missing.MODEL_ERROR)
            return
        if len(batch) > 1:
            half = len(batch) // 2
            for part in (np.arange(half, len(batch)), np.arange(half)):
                keys = tuple(batch.keys[i] for i in part.tolist()) if batch.keys else ()
                piece = replace(subset(batch, part, self._composing.number()), keys=keys, attempts=batch.attempts + 1)
                desk.retries.appendleft(piece)
            return
        if batch.attempts == 1 and not desk.calls_failed_in_row and batch.part_of < 0:
            desk.retries.appendleft(replace(batch, number=self._composing.number(), attempts=2))
            return
        desk.suspects.append((batch, event))
        model_is_bad = len(desk.suspects) >= SUSPECTS_LIMIT
        if model_is_bad:
            while desk.retries:
                desk.suspects.append((desk.retries.popleft(), event))
        if strange and not desk.retries:
            desk.circuit.told_nothing()
            yield from self._convict(desk, Missing.ROW_ERROR)
        elif not desk.retries:
            # Nothing of the batch went well: the calls before it tell whose fault it is.
            self._failed_whole(desk, event, now_ms, effects)
            model_is_bad = model_is_bad or desk.calls_failed_in_row > FAILED_CALLS_LIMIT
            yield from self._convict(desk, Missing.MODEL_ERROR if model_is_bad else Missing.ROW_ERROR)

    def _failed_whole(self, desk: Desk, event: BatchFinished, now_ms: int, effects: list[Effect]) -> None:
        desk.calls_failed_in_row += 1
        if desk.circuit.failed(now_ms, away=event.away):
            effects.append(Count(what="circuit", label="opened", model=desk.rules.model, n=1))

    def _convict(self, desk: Desk, missing: Missing) -> Iterator[Answered]:
        suspects, desk.suspects = desk.suspects, []
        for batch, event in suspects:
            yield from self._refuse(desk, batch, missing, event)

    def _refuse(self, desk: Desk, batch: Batch, missing: Missing, event: BatchFinished) -> list[Answered]:
        """The same verdict for all requests of a batch that had its call."""
        if batch.part_of >= 0:
            is_over = self._is_over(desk, batch)
            desk.remove(batch.handles)
            if is_over:
                return []
        verdict = Verdict.all(len(batch), missing, event.error)
        if missing == Missing.ROW_ERROR:
            failure = Failure(
                exception=event.exception, stack=event.stack, attempts=batch.attempts, model=desk.rules.model
            )
            verdict = replace(verdict, failures=dict.fromkeys(range(len(batch)), failure))
        return self._deliver(desk, batch, verdict)

    def _is_over(self, desk: Desk, part: Batch) -> bool:
        """Whether the request of a part was shed, revoked or given up meanwhile: it has its answer."""
        return part.part_of not in desk.rows_taken or part.part_of < self._table.base

    def _finish_part(self, desk: Desk, batch: Batch, outputs: Outputs, duration_ms: int) -> Iterator[Answered]:
        """Keep a part's rows; answer when all parts of the request are there."""
        handle = batch.part_of
        checked = check_outputs(outputs, batch.n_rows)
        if self._is_over(desk, batch):
            desk.remove(batch.handles)
            return
        if checked.missing[0] != Missing.PRESENT:
            desk.remove(batch.handles)
            yield from self._build(desk, batch, Verdict(missing=checked.missing, details=checked.details))
            return
        parts = desk.parts.setdefault(handle, [])
        parts.append(outputs)
        if not alike(parts[0], outputs):
            desk.remove(batch.handles)
            words = "the model answered the parts of this request in different forms"
            yield from self._build(desk, batch, Verdict.all(1, Missing.INCOMPATIBLE, words))
            return
        if sum(len(part.labels) for part in parts) < int(self._table["n_rows"][handle - self._table.base]):
            return
        desk.rows_taken.pop(handle, None)
        desk.parts.pop(handle, None)
        whole = joined(parts)
        checked = check_outputs(whole, np.array([len(whole.labels)], np.int64))
        if checked.missing[0] != Missing.PRESENT:  # each part was small enough
            yield from self._build(desk, batch, Verdict(missing=checked.missing, details=checked.details))
            return
        one = replace(batch, n_rows=np.array([len(whole.labels)], np.int64), part_of=-1)
        yield from self._build(
            desk, one, Verdict(missing=np.zeros(1, np.uint8), outputs=whole, duration_ms=duration_ms)
        )

    # -- answers -------------------------------------------------------------------------------------------------

    def _answer_all(self, desk: Desk, handles: I64, missing: Missing, now_ms: int, words: str = "") -> list[Answered]:
        """The same verdict for all of them, without a call."""
        if not len(handles):
            return []
        n = len(handles)
        batch = self._composing.batch(handles, np.zeros(n, np.int64), np.zeros((0, 0)), "drained", now_ms)
        return self._build(desk, batch, Verdict.all(n, missing, words))

    def let_go(self, desk: Desk, now_ms: int) -> list[Answered]:
        """Answers for all that is still with a model which is hosted no more."""
        handles = [desk.pop_beyond(0)]
        running = () if desk.running is None else (desk.running,)
        for batch in (*running, *desk.retries, *(suspect for suspect, _ in desk.suspects)):
            for i in range(len(batch)) if batch.part_of < 0 or not self._is_over(desk, batch) else ():
                handles.append(self._waiting_for(batch, i))
            for key in batch.keys:
                self._coalescing.release(key)
        self._ended(desk)
        desk.retries.clear()
        desk.suspects.clear()
        self.forget(desk.rules.model)
        waiting = np.unique(np.concatenate(handles))
        return self.not_hosted(desk.rules.model, waiting, now_ms) if len(waiting) else []

    def not_hosted(self, model: str, handles: I64, now_ms: int) -> list[Answered]:
        """Answers for requests whose model is to be asked here, and is not loaded here."""
        n = len(handles)
        batch = self._composing.batch(handles, np.zeros(n, np.int64), np.zeros((0, 0)), "drained", now_ms)
        verdict = Verdict.all(n, Missing.NOT_HOSTED, f"{model} is not loaded in the process that was to ask it")
        return build_blocks(batch, model, verdict, self._routes, self._errors_of)

    def _build(self, desk: Desk, batch: Batch, verdict: Verdict) -> list[Answered]:
        return build_blocks(batch, desk.rules.model, verdict, self._routes, self._errors_of)

    def _errors_of(self, handles: I64, missing: U8) -> dict[int, tuple[int, str]]:
        """Reason and words of values that no model can use."""
        table = self._table
        errors: dict[int, tuple[int, str]] = {}
        if is_present(missing):
            return errors
        for i in indices(missing == Missing.BAD_INPUT).tolist():
            at = int(handles[i]) - table.base
            if at >= 0 and table["group"][at] == UNUSABLE_INPUT:
                reason, words = table.lists["errors"][at]
                errors[i] = (int(Reason(reason)), words)
        return errors


def _gathered(outputs: Outputs, rows: I64) -> Outputs:
    probabilities = outputs.probabilities[rows] if outputs.probabilities is not None else None
    return replace(outputs, labels=outputs.labels[rows], probabilities=probabilities, row_errors={}, metrics={})


def _row_words(shape: tuple[int, ...] | None, *, is_text: bool | None) -> str:
    """Of what form a row is, in words: `[784] numbers`, `text`; None: any shape, either kind."""
    kind = {True: "text", False: "numbers", None: "values"}[is_text]
    if shape == () and not is_text:
        return f"single {kind}"
    return f"{list(shape)} {kind}" if shape else kind
