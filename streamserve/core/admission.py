"""What a request asks for, read from its headers and its place in the log; never from its body.

Worker and aggregator both admit every request and, being pure, reach the same result without talking.

Long since each header's rule stands here once, and one pass over a fetch applies them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamserve.core.contexts import GLOBAL
from streamserve.core.epochs import EpochTable
from streamserve.core.fast import distinct, every, indices, some
from streamserve.core.messages import (
    I64,
    INITIAL_EPOCH,
    PROBABILITY_ONE,
    U64,
    AnyArray,
    Choice,
    Flags,
    Headers,
    Requests,
    headers_bytes,
)
from streamserve.core.reasons import Reason
from streamserve.core.route_versions import Period
from streamserve.core.routes import AppRules
from streamserve.core.selection.base import is_sticky, sticky_places
from streamserve.core.slicing import take_requests
from streamserve.core.values import unchanging

_ROUTE, _MODEL, _BUDGET, _PRIORITY = "ss-route", "mlserver-model", "ss-deadline-ms", "ss-priority"
_WITHOUT = "ss-without"
_CONTEXT = "ss-context"
#: All that decides what is asked for; parsed once per distinct set, whatever else an application sends.
_ASKING = frozenset({_ROUTE, _MODEL, _BUDGET, _PRIORITY, _WITHOUT})
MOST_PRIORITY = 9
#: Headers that differ from request to request.
_OWN_HEADERS = frozenset({"ce_id", "traceparent", "ce_time", "tracestate", "ce_traceparent", "ce_tracestate"})
_MEMO_LIMIT = 4096
#: Headers above this are parsed each time: remembered, they could take gigabytes.
_MEMO_BYTES = 1024
#: Whose headers are remembered; requests are of the newest one or two.
_MOST_PERIODS = 8
_MOST_DIGITS = 20
#: Python would also take 1_0 and the digits of other scripts.
_WHOLE = re.compile("[+-]?[0-9]{1,3}")


@unchanging(eq=False)
class Admitted:
    """Columns of n requests."""

    route: I64
    """Index in `EpochTable.routes`; -1 where the request names none that exists."""
    deadline_ms: I64
    n_bytes: I64
    """What each takes: body, key and headers."""
    priority: I64
    """`-MOST_PRIORITY` to `MOST_PRIORITY`; 0 where the request names none. The highest is shed last."""
    choice: Choice
    forced: Flags
    """The request named one model, so nothing was drawn."""
    without: U64
    """Models that the request is not to be given to, as bits."""
    ids: list[str | None]
    """`ce_id`"""
    traces: list[bytes | None]
    errors: Mapping[int, tuple[Reason, str]]
    contexts: list[str]
    """Of each request; empty where its route has none, or it names none."""


@unchanging()
class _Ask:
    """What one distinct set of headers asks for."""

    route: int
    budget_ms: int
    mask: int = 0
    """Bit of the one model that was named; 0: the policy chooses."""
    priority: int = 0
    without: int = 0
    """Bits of the models that this request is not to be given to."""
    error: tuple[Reason, str] | None = None
    context: str = GLOBAL
    """From the header; routes that read it elsewhere ignore this."""


class Admission:
    """Parses headers and lets the epoch in force choose, by the routes in force. Law: a function of the request and the
    known states and routes alone."""

    def __init__(self, rules: AppRules, epochs: EpochTable) -> None:
        self._rules = rules
        self._epochs = epochs
        self._by_period: dict[int, _PeriodAdmission] = {}
        self._last: tuple[Requests, Admitted] | None = None

    def admit(self, requests: Requests) -> Admitted:
        """Columns of these requests. Asked twice in a row for the same ones (fused form), it answers from memory."""
        if self._last is not None and self._last[0] is requests:
            return self._last[1]
        parts = self._epochs.routes.split(requests.append_ms)
        if len(parts) == 1:
            admitted = self._of(parts[0][0]).admit(requests)
        else:
            found = [
                (rows, self._of(period).admit(take_requests(requests, rows)))
                for period, rows in parts
                if rows is not None
            ]
            admitted = _merged(len(requests), found)
        self._last = (requests, admitted)
        return admitted

    def _of(self, period: Period) -> _PeriodAdmission:
        found = self._by_period.get(period.offset)
        if found is None:
            if len(self._by_period) >= _MOST_PERIODS:
                self._by_period.clear()
            found = self._by_period[period.offset] = _PeriodAdmission(self._rules, self._epochs, period)
        return found


class _PeriodAdmission:
    """Of requests for which the same routes are in force."""

    def __init__(self, rules: AppRules, epochs: EpochTable, period: Period) -> None:
        self._rules = rules
        self._epochs = epochs
        self._routes = period.names
        self._route = {index: epochs.routes[index] for index in period.names.values()}
        self._sticky = {index: is_sticky(route.policy) for index, route in self._route.items()}
        self._rule_of = {index: route.contexts for index, route in self._route.items()}
        # An application may send a context to routes that have none, another one with each request.
        by_header = any(rule is not None and rule.source == "header" for rule in self._rule_of.values())
        self._asking = _ASKING | {_CONTEXT} if by_header else _ASKING
        self._memo: dict[Headers, int] = {}
        self._asked: dict[Headers, int] = {}
        self._asks: list[_Ask] = []
        self._ask_route = np.zeros(0, np.int64)
        self._ask_budget = np.zeros(0, np.int64)
        self._ask_mask = np.zeros(0, np.uint64)
        self._ask_priority = np.zeros(0, np.int64)
        self._ask_without = np.zeros(0, np.uint64)

    def admit(self, requests: Requests) -> Admitted:
        n = len(requests)
        ids: list[str | None] = [None] * n
        traces: list[bytes | None] = [None] * n
        if len(self._asks) > _MEMO_LIMIT:
            self._forget()
        elif len(self._memo) > _MEMO_LIMIT:
            self._memo.clear()
        memo = self._memo
        numbers = [memo.get(headers, -1) for headers in requests.headers]
        if -1 in numbers:
            for i, number in enumerate(numbers):
                if number < 0:
                    numbers[i], ids[i], traces[i] = self._look_up(requests.headers[i])
            self._arrange()
        ask = np.array(numbers, np.int64)
        route = self._ask_route[ask]
        mask = self._ask_mask[ask]
        errors = {}
        if any(self._asks[number].error for number in set(numbers)):
            errors = {i: error for i, number in enumerate(numbers) if (error := self._asks[number].error)}
        contexts = self._contexts(requests, route, numbers)
        return Admitted(
            route=route,
            deadline_ms=requests.append_ms + self._ask_budget[ask],
            n_bytes=_sizes(requests),
            priority=self._ask_priority[ask],
            choice=self._choose(requests, route, mask, self._ask_without[ask], contexts),
            forced=mask != 0,
            without=self._ask_without[ask],
            ids=ids,
            traces=traces,
            errors=errors,
            contexts=contexts,
        )

    def _contexts(self, requests: Requests, route: I64, asks: list[int]) -> list[str]:
        """What each request is decided by, beside its route."""
        contexts = [GLOBAL] * len(asks)
        for index in distinct(route):
            rule = self._rule_of[index] if index >= 0 else None
            if rule is None:
                continue
            for row in indices(route == index).tolist():
                key = requests.keys[row]
                if rule.source == "header":
                    contexts[row] = rule.with_key(self._asks[asks[row]].context, key)
                elif rule.source == "key":
                    contexts[row] = rule.of_key(key)
                else:
                    contexts[row] = rule.with_key(rule.of_body(requests.values[row]), key)
        return contexts

    def _choose(self, requests: Requests, route: I64, mask: U64, without: U64, contexts: list[str]) -> Choice:
        n = len(requests)
        masked = without if some(without != 0) else None
        first = int(route[0]) if n else -1
        if first >= 0 and every(route == first) and not some(mask != 0):
            partition, offsets = self._places(requests, first)
            return self._epochs.choose(first, partition, offsets, requests.append_ms, contexts, without=masked)
        choice = Choice(
            chosen=mask.copy(),
            probability=np.full(n, PROBABILITY_ONE, np.int64),
            epoch=np.full(n, INITIAL_EPOCH, np.int64),
            stale=np.zeros(n, np.bool_),
        )
        for index in distinct(route):
            if index < 0:
                continue
            rows = indices((route == index) & (mask == 0))
            if not len(rows):
                continue
            partition, offsets = self._places(requests, index)
            part = self._epochs.choose(
                index,
                partition[rows],
                offsets[rows],
                requests.append_ms[rows],
                [contexts[row] for row in rows.tolist()],
                without=None if masked is None else masked[rows],
            )
            choice.chosen[rows] = part.chosen
            choice.probability[rows] = part.probability
            choice.epoch[rows] = part.epoch
            choice.stale[rows] = part.stale
        return choice

    def _places(self, requests: Requests, route: int) -> tuple[I64, I64]:
        """Partition and offset by which each request's choice is drawn."""
        if self._sticky[route]:
            return sticky_places(requests.partition, requests.offsets, requests.keys)
        return requests.partition, requests.offsets

    def _look_up(self, headers: Headers) -> tuple[int, str | None, bytes | None]:
        own = {name: value for name, value in headers if name in _OWN_HEADERS}
        asking = tuple(pair for pair in headers if pair[0] in self._asking)
        number = self._asked.get(asking, -1)
        is_small = headers_bytes(headers) <= _MEMO_BYTES
        if number < 0:
            number = len(self._asks)
            if is_small:
                self._asked[asking] = number
            self._asks.append(self._parse(asking))
        if is_small and not own:
            self._memo[headers] = number
        trace = own.get("traceparent") or own.get("ce_traceparent")
        event_id = own.get("ce_id")
        return number, event_id.decode("utf-8", "replace") if event_id else None, trace

    def _arrange(self) -> None:
        """Columns of what was asked for the first time."""
        new = self._asks[len(self._ask_route) :]
        if new:
            self._ask_route = np.append(self._ask_route, np.array([ask.route for ask in new], np.int64))
            self._ask_budget = np.append(self._ask_budget, np.array([ask.budget_ms for ask in new], np.int64))
            self._ask_mask = np.append(self._ask_mask, np.array([ask.mask for ask in new], np.uint64))
            self._ask_priority = np.append(self._ask_priority, np.array([ask.priority for ask in new], np.int64))
            self._ask_without = np.append(self._ask_without, np.array([ask.without for ask in new], np.uint64))

    def _forget(self) -> None:
        self._memo.clear()
        self._asked.clear()
        self._asks.clear()
        self._ask_route, self._ask_budget = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._ask_mask, self._ask_priority = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._ask_without = np.zeros(0, np.uint64)

    def _parse(self, headers: Headers) -> _Ask:
        named = dict(headers)
        words: dict[str, str] = {}
        for name in (_ROUTE, _MODEL, _BUDGET, _PRIORITY, _WITHOUT, _CONTEXT):
            value = named.get(name)
            try:
                words |= {} if value is None else {name: value.decode("utf-8")}
            except UnicodeDecodeError as error:
                return self._refuse(-1, Reason.BAD_HEADER, f"header {name} is {error.object[:40]!r}: not UTF-8")
        ask = self._route_of(words)
        if not ask.error and _BUDGET in words:
            ask = self._with_budget(ask, words[_BUDGET])
        if not ask.error and _PRIORITY in words:
            ask = self._with_priority(ask, words[_PRIORITY])
        if not ask.error and _WITHOUT in words:
            ask = self._with_mask(ask, words[_WITHOUT])
        if not ask.error and _CONTEXT in words:
            ask = self._with_context(ask, words[_CONTEXT])
        return ask

    def _route_of(self, words: Mapping[str, str]) -> _Ask:
        name = words.get(_ROUTE)
        if name is None:
            if _MODEL in words:
                return self._by_model(words[_MODEL])
            if len(self._route) == 1:
                only, route = next(iter(self._route.items()))
                return _Ask(route=only, budget_ms=route.deadline_ms)
            return self._refuse(-1, Reason.UNKNOWN_ROUTE, f"header ss-route is needed: one of {self._names()}")
        index = self._routes.get(name)
        if index is None:
            return self._refuse(-1, Reason.UNKNOWN_ROUTE, f"no route {name[:80]!r}; there is {self._names()}")
        return _Ask(route=index, budget_ms=self._route[index].deadline_ms)

    def _by_model(self, name: str) -> _Ask:
        """MLServer's header: a route, else one model that then answers alone."""
        if name in self._routes:
            index = self._routes[name]
            return _Ask(route=index, budget_ms=self._route[index].deadline_ms)
        for index, route in self._route.items():
            for bit, model in enumerate(route.models):
                if name in (model, model.partition("@")[0]):
                    return _Ask(route=index, budget_ms=route.deadline_ms, mask=1 << bit)
        return self._refuse(-1, Reason.UNKNOWN_MODEL, f"no route or model {name[:80]!r}; routes: {self._names()}")

    def _with_budget(self, ask: _Ask, text: str) -> _Ask:
        limit = self._rules.max_deadline_ms
        digits = text.strip()
        budget = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < _MOST_DIGITS else 0
        if not 1 <= budget <= limit:
            words = f"ss-deadline-ms must be a whole number of milliseconds from 1 to {limit}, not {text[:40]!r}"
            return self._refuse(ask.route, Reason.BAD_DEADLINE, words)
        return replace(ask, budget_ms=budget)

    def _with_priority(self, ask: _Ask, text: str) -> _Ask:
        if not _WHOLE.fullmatch(text.strip()) or abs(int(text)) > MOST_PRIORITY:
            words = f"ss-priority must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, not {text[:40]!r}"
            return self._refuse(ask.route, Reason.BAD_HEADER, words)
        return replace(ask, priority=int(text))

    def _with_mask(self, ask: _Ask, text: str) -> _Ask:
        """Models that this request is not given to, by id or by name, with commas. What was named alone stays."""
        models = self._route[ask.route].models
        without = 0
        for name in filter(None, (part.strip() for part in text.split(","))):
            bits = [bit for bit, model in enumerate(models) if name in (model, model.partition("@")[0])]
            if not bits:
                words = f"ss-without names {name[:80]!r}; the route has {', '.join(models)}"
                return self._refuse(ask.route, Reason.BAD_HEADER, words)
            without |= sum(1 << bit for bit in bits)
        if without == (1 << len(models)) - 1 or without & ask.mask:
            words = f"ss-without leaves no model to ask; the route has {', '.join(models)}"
            return self._refuse(ask.route, Reason.BAD_HEADER, words)
        return replace(ask, without=without)

    def _with_context(self, ask: _Ask, text: str) -> _Ask:
        rule = self._rule_of[ask.route]
        if rule is None or rule.source != "header":
            return ask
        fault = rule.fault_of(text)
        if fault:
            return self._refuse(ask.route, Reason.BAD_HEADER, f"ss-context {text[:40]!r}: {fault}")
        return replace(ask, context=text)

    def _refuse(self, route: int, reason: Reason, words: str) -> _Ask:
        return _Ask(route=route, budget_ms=0, error=(reason, words))

    def _names(self) -> str:
        return ", ".join(self._routes)


def _sizes(requests: Requests) -> I64:
    """`[n]`"""
    keys, values, headers = requests.keys, requests.values, requests.headers
    sizes = np.array([len(value or b"") for value in values], np.int64)
    if any(keys):
        sizes += np.array([len(key or b"") for key in keys], np.int64)
    if any(headers):
        sizes += np.array(list(map(headers_bytes, headers)), np.int64)
    return sizes


def _merged(n: int, parts: list[tuple[I64, Admitted]]) -> Admitted:
    """One of several that are of these rows of n requests."""

    def column(of: Callable[[Admitted], AnyArray]) -> Any:
        whole = np.empty(n, of(parts[0][1]).dtype)
        for rows, part in parts:
            whole[rows] = of(part)
        return whole

    def entries(of: Callable[[Admitted], list[Any]]) -> list[Any]:
        whole: list[Any] = [None] * n
        for rows, part in parts:
            for row, entry in zip(rows.tolist(), of(part), strict=True):
                whole[row] = entry
        return whole

    return Admitted(
        route=column(lambda part: part.route),
        deadline_ms=column(lambda part: part.deadline_ms),
        n_bytes=column(lambda part: part.n_bytes),
        priority=column(lambda part: part.priority),
        choice=Choice(
            chosen=column(lambda part: part.choice.chosen),
            probability=column(lambda part: part.choice.probability),
            epoch=column(lambda part: part.choice.epoch),
            stale=column(lambda part: part.choice.stale),
        ),
        forced=column(lambda part: part.forced),
        without=column(lambda part: part.without),
        ids=entries(lambda part: part.ids),
        traces=entries(lambda part: part.traces),
        errors={int(rows[i]): error for rows, part in parts for i, error in part.errors.items()},
        contexts=entries(lambda part: part.contexts),
    )
