"""The aggregator's window: requests that have no terminal record yet, and what their members have said.

Long since every rule here is one about the same columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamserve.core.admission import Admitted
from streamserve.core.bounds import Fill
from streamserve.core.combining import MemberRows
from streamserve.core.fast import every, has_bit, indices, some
from streamserve.core.masks import bits, in_order_of
from streamserve.core.member_store import MemberStore
from streamserve.core.messages import I64, NO_HEAD, U64, Answers, AnyArray, Failure, Flags, Requests, request_keys
from streamserve.core.presence import is_present
from streamserve.core.reasons import PRESENT, Missing
from streamserve.core.route_versions import Routes
from streamserve.core.table import NEVER_MS, Table
from streamserve.core.values import unchanging

_Row = TypeVar("_Row", bound=np.generic)
_LISTS = ("keys", "values", "headers", "ids", "traces", "contexts")
NO_ERROR = -1
_FEW = 1024


class Window:
    """Columns of open requests, found by (partition, offset), and one store of rows per member of each route."""

    def __init__(self, routes: Routes, max_deadline_ms: int, most_bytes: int) -> None:
        self.routes = routes
        self._max_deadline_ms = max_deadline_ms
        self._most_bytes = most_bytes
        self.width = 0
        self._turns = -1
        self._asking: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """Route and model -> index and bit of the model in each version of the route that asks it."""
        self._follow_widths()
        self.table = Table(self._columns(), lists=_LISTS)
        self._keys: I64 = np.zeros(0, np.int64)
        """`request_keys` of what is open, increasing, and of some that are gone; `_handles` says which they are."""
        self._handles: I64 = np.zeros(0, np.int64)
        self._stores: dict[tuple[int, int], MemberStore] = {}
        self._forms: dict[tuple[Any, ...], int] = {}
        self._classes: dict[Hashable, AnyArray] = {}
        self.words: dict[int, dict[int, str]] = {}
        """Handle -> bit -> why that member failed; bit -1: why the request cannot be used."""
        self.failures: dict[int, Failure] = {}
        """Handle -> how the first member that refused it failed."""
        self.heads: dict[int, dict[int, int]] = {}
        """Handle -> bit -> rows that the head which answered had learnt from; of heads that learn as they serve."""

    def _follow_widths(self) -> None:
        self._turns = self.routes.turns
        self.width = max(self.width, *(len(route.models) for route in self.routes.live.values()))
        self._asking = {}
        for index, route in self.routes.live.items():
            for bit, model in enumerate(route.models):
                self._asking.setdefault((route.name, model), []).append((index, bit))

    def _follow(self) -> None:
        """Versions of routes have come or gone."""
        if self._turns == self.routes.turns:
            return
        self._follow_widths()
        for name in ("missing", "row_at"):
            self.table.widen(name, self.width)
        live = self.routes.live
        self._stores = {
            member: store for member, store in self._stores.items() if member[0] in live or self._in_use(member)
        }

    @property
    def has_room(self) -> bool:
        """For the bodies, keys and headers of more requests."""
        return self.table.held_bytes < self._most_bytes

    def fill(self) -> Fill:
        """Of the bytes that the requests take."""
        return Fill(self.table.held_bytes, self._most_bytes)

    def asks(self, answers: Answers) -> bool:
        """Whether any version of the route has the model that answers. In the middle of a rolling restart, and before a
        version is known here, there are answers that none has."""
        self._follow()
        return (answers.route, answers.model) in self._asking

    def __len__(self) -> int:
        """Requests without an acknowledged terminal record."""
        return len(self.table) - int(np.count_nonzero(self.table["done"]))

    def _columns(self) -> dict[str, DTypeLike | tuple[DTypeLike, int]]:
        columns: dict[str, DTypeLike | tuple[DTypeLike, int]] = dict.fromkeys(
            ("partition", "offset", "append_ms", "deadline_ms", "route", "probability", "epoch", "n_rows", "form"),
            np.int64,
        )
        columns["n_bytes"] = np.int64
        columns |= dict.fromkeys(("chosen", "present", "failed"), np.uint64)
        columns |= dict.fromkeys(("stale", "off_epoch", "late_on_arrival", "settled", "done"), np.bool_)
        columns |= {"error": np.int64, "answer_offset": np.int64, "queue_ms": np.int32, "inference_ms": np.int32}
        columns |= {"reach": np.float64, "early_ms": np.int64}
        columns |= {"missing": (np.uint8, self.width), "row_at": (np.int64, self.width)}
        return columns

    def add(self, requests: Requests, admitted: Admitted, rows: I64, now_ms: int) -> I64:
        """Open these requests of a fetch; their handles."""
        self._follow()
        choice = admitted.choice
        pick = rows.tolist()
        lists: dict[str, list[Any]] = {
            "keys": requests.keys,
            "values": requests.values,
            "headers": requests.headers,
            "ids": admitted.ids,
            "traces": admitted.traces,
            "contexts": admitted.contexts,
        }
        whole = len(rows) == len(requests)
        handles = self.table.append(
            len(rows),
            {
                "partition": requests.partition[rows],
                "offset": requests.offsets[rows],
                "append_ms": requests.append_ms[rows],
                # A client's clock (CreateTime) may run ahead: nobody waits longer than the app allows.
                "deadline_ms": np.minimum(admitted.deadline_ms[rows], now_ms + self._max_deadline_ms),
                "route": admitted.route[rows],
                "chosen": choice.chosen[rows],
                "probability": choice.probability[rows],
                "epoch": choice.epoch[rows],
                "stale": choice.stale[rows],
                "off_epoch": admitted.forced[rows],
                "n_bytes": admitted.n_bytes[rows],
                "error": NO_ERROR,
                "answer_offset": NEVER_MS,
            },
            {name: values if whole else [values[i] for i in pick] for name, values in lists.items()},
        )
        if admitted.errors:
            self._refuse(handles, pick, admitted)
        self._remember(request_keys(requests.partition[rows], requests.offsets[rows]), handles)
        return handles

    def _refuse(self, handles: I64, rows: list[int], admitted: Admitted) -> None:
        for handle, row in zip(handles.tolist(), rows, strict=True):
            if row in admitted.errors:
                reason, words = admitted.errors[row]
                self.table["error"][handle - self.table.base] = reason
                self.words.setdefault(handle, {})[-1] = words

    def _remember(self, keys: I64, handles: I64) -> None:
        if not every(keys[1:] > keys[:-1]):
            order = np.argsort(keys, kind="stable")
            keys, handles = keys[order], handles[order]
        if len(self._keys) > 2 * len(self.table) + _FEW:
            live = self._handles >= self.table.base
            self._keys, self._handles = self._keys[live], self._handles[live]
        if not len(self._keys) or keys[0] > self._keys[-1]:
            self._keys = np.concatenate((self._keys, keys))
            self._handles = np.concatenate((self._handles, handles))
            return
        at = self._keys.searchsorted(keys)
        # Read again after its partition was lost and came back: the new handle takes the old one's place.
        again = self._keys[np.minimum(at, len(self._keys) - 1)] == keys
        if some(again):
            self._handles[at[again]] = handles[again]
            at, keys, handles = at[~again], keys[~again], handles[~again]
        if len(at) and at[0] == at[-1]:  # one gap takes all of them: a tenth of the price at small sizes
            gap = int(at[0])
            self._keys = np.concatenate((self._keys[:gap], keys, self._keys[gap:]))
            self._handles = np.concatenate((self._handles[:gap], handles, self._handles[gap:]))
            return
        self._keys = np.insert(self._keys, at, keys)
        self._handles = np.insert(self._handles, at, handles)

    def find(self, partition: I64, offsets: I64) -> tuple[I64, Flags]:
        """Handles of open requests, and which of these have one; the others' handles mean nothing."""
        if not len(self._keys):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
        keys = request_keys(partition, offsets)
        at = np.minimum(self._keys.searchsorted(keys), len(self._keys) - 1)
        handles = self._handles[at]
        found = (self._keys[at] == keys) & (handles >= self.table.base)
        found[found] = ~self.table["settled"][self.table.at(handles[found])]
        return handles, found

    def forget_partition(self, partition: int) -> None:
        """Ownership has gone: its requests are nobody's business here."""
        table = self.table
        gone = table["partition"] == partition
        table["settled"][gone] = True
        table["done"][gone] = True

    def drop_done(self) -> None:
        """Forget requests at the front whose terminal record is acknowledged."""
        self.table.release_done(self._most_bytes)
        done = self.table["done"]
        if not len(done) or not done[0]:
            return
        n = len(done) if every(done) else int(done.argmin())
        if self.words or self.heads:
            for handle in range(self.table.base, self.table.base + n):
                self.words.pop(handle, None)
                self.failures.pop(handle, None)
                self.heads.pop(handle, None)
        self.table.drop_front(n)
        if len(self._forms) > _FEW and not len(self.table):  # a model whose outputs have ever new lengths
            self._forms.clear()

    # -- answers -------------------------------------------------------------------------------------------------

    def apply(self, together: Sequence[Answers], rows: Flags) -> list[I64]:
        """Take those answers that `rows` marks, of blocks of the same requests; the handles that they reached. The
        first answer of a member wins.

        Each is read under the version of the route that its request has: a block's bits are put in that one's order.
        """
        handles, found = self.find(together[0].partition, together[0].offsets)
        found &= rows
        if not some(found):
            return []
        at, mine = self.table.at(handles), indices(found)
        self._note_places(together, at, mine)
        reached = self._apply_together(together, handles, mine) if len(together) > 1 else None
        if reached is not None:
            return [reached]
        return [
            self._apply(answers, handles, mine, member)
            for answers in together
            if self.asks(answers)
            for member in self._asking[answers.route, answers.model]
        ]

    def _note_places(self, together: Sequence[Answers], at: I64, mine: I64) -> None:
        first = self.table["answer_offset"]
        for answers in together:
            if answers.log_offset is not None:  # of what is not known here too: who takes over may know it
                first[at[mine]] = np.minimum(first[at[mine]], answers.log_offset[mine])

    def _apply_together(self, together: Sequence[Answers], handles: I64, mine: I64) -> I64 | None:
        """What several members say of the same requests, in one step: one look at each column for all of them.

        None, and nothing done, where anything is unlike: an answer is missing, has been given, or has another form.
        """
        members = self._members_of(together)
        if members is None:
            return None
        table, first = self.table, together[0]
        (route, _), bits_ = members[0], [bit for _, bit in members]
        mask = np.uint64(sum(1 << bit for bit in bits_))
        at = table.at(handles)[mine]
        heard = table["present"][at] | table["failed"][at]
        if some(table["route"][at] != route) or some(heard & mask != 0):
            return None
        form, n_rows = self._form_of(first, route), np.diff(first.row_starts)[mine]
        known, form_known = table["n_rows"][at], table["form"][at]
        fits = ((known == 0) | (known == n_rows)) & (n_rows > 0) & ((form_known == 0) | (form_known == form))
        blocks = list(zip(together, members, strict=True))
        if not every(fits) or not all(self._is_like(answers, first, form, member) for answers, member in blocks):
            return None
        self._adopt(first, at, mine, route)
        new = heard == 0
        if some(new):
            self._take_ids(first, at[new], mine[new])
        self._take_times(together, at, mine)
        begin = np.array([self._store_of(answers, member).append(answers) for answers, member in blocks])
        table["row_at"][at[:, None], bits_] = begin + first.row_starts[:-1][mine, None]
        table["n_rows"][at] = n_rows
        table["form"][at] = form
        table["present"][at] |= mask
        for answers, (_, bit) in blocks:
            self._note_head(answers, at, bit)
        reached: I64 = handles[mine]
        return reached

    def _members_of(self, together: Sequence[Answers]) -> list[tuple[int, int]] | None:
        """Of one version of one route, each another; None: they are not."""
        self._follow()
        members = []
        for answers in together:
            asking = self._asking.get((answers.route, answers.model), ())
            if len(asking) != 1:
                return None
            members.append(asking[0])
        alike = len({route for route, _ in members}) == 1 and len(set(members)) == len(members)
        return members if alike else None

    def _is_like(self, answers: Answers, first: Answers, form: int, member: tuple[int, int]) -> bool:
        """Every request is answered, in rows like those of the first, which go on where the member's are kept."""
        store = self._stores.get(member)
        return (
            answers.models == first.models
            and is_present(answers.missing)
            and (answers.row_starts is first.row_starts or np.array_equal(answers.row_starts, first.row_starts))
            and self._form_of(answers, member[0]) == form
            and (store is None or store.takes(answers))
        )

    def _take_times(self, together: Sequence[Answers], at: I64, rows: I64) -> None:
        """The longest of each."""
        table = self.table
        queued = {id(answers.queue_ms): answers.queue_ms for answers in together}
        for column in queued.values():
            table["queue_ms"][at] = np.maximum(table["queue_ms"][at], column[rows])
        slowest = np.maximum.reduce([answers.inference_ms for answers in together])
        table["inference_ms"][at] = np.maximum(table["inference_ms"][at], slowest[rows])

    def _apply(self, answers: Answers, handles: I64, mine: I64, member: tuple[int, int]) -> I64:
        """Of the requests that have this version of the route."""
        table, (route, bit) = self.table, member
        at = table.at(handles)
        mine = mine[table["route"][at[mine]] == route]
        heard = table["present"][at[mine]] | table["failed"][at[mine]]
        fresh = mine[~has_bit(heard, bit)]
        if not len(fresh):
            return handles[:0]
        self._adopt(answers, at[fresh], fresh, route)
        first = mine[heard == 0]
        if len(first):
            self._take_ids(answers, at[first], first)
        self._take_times((answers,), at[fresh], fresh)
        good = answers.missing[fresh] == PRESENT
        if not every(good):
            self._note_missing(answers, at, fresh[~good], bit)
        if some(good):
            self._store(answers, at, fresh[good], (route, bit))
        reached: I64 = handles[fresh]
        return reached

    def _adopt(self, answers: Answers, at: I64, rows: I64, route: int) -> None:
        """Where an answer was made under another choice: the one not stale counts, else the higher epoch.

        Not where it names a model that is not known here: nobody could wait for that.
        """
        table, theirs = self.table, answers.choice
        epoch, chosen, stale = theirs.epoch[rows], theirs.chosen[rows], theirs.stale[rows]
        ours = self.routes[route].models
        known: Flags | bool = True
        if answers.models and answers.models != ours:
            chosen, known = in_order_of(ours, answers.models, chosen)
        second = np.uint64(self.routes[route].second_mask)
        asked = chosen & second  # whether it is to be waited for is no part of the choice
        chosen = chosen & ~second
        self._take_choice(answers, at, rows, (chosen, epoch, stale, known), second)
        if some(asked != 0):
            same = (table["chosen"][at] & ~second) == chosen
            table["chosen"][at[same]] |= asked[same]

    def _take_choice(
        self, answers: Answers, at: I64, rows: I64, said: tuple[U64, I64, Flags, Flags | bool], second: np.uint64
    ) -> None:
        table, theirs = self.table, answers.choice
        chosen, epoch, stale, known = said
        differs = known & ((epoch != table["epoch"][at]) | (chosen != table["chosen"][at] & ~second))
        if not some(differs):
            return
        ours_stale = table["stale"][at]
        better = (ours_stale & ~stale) | ((ours_stale == stale) & (epoch > table["epoch"][at]))
        adopt = differs & better
        to = at[adopt]
        table["epoch"][to] = epoch[adopt]
        table["chosen"][to] = chosen[adopt]
        table["probability"][to] = theirs.probability[rows][adopt]
        table["stale"][to] = stale[adopt]
        table["off_epoch"][to] = True
        table["reach"][to] = 0.0
        table["early_ms"][to] = 0

    def _take_ids(self, answers: Answers, at: I64, rows: I64) -> None:
        ids, said = self.table.lists["ids"], answers.ids
        n = len(at)
        if n == len(said) and None not in said and at[-1] - at[0] == n - 1 and every(at[1:] > at[:-1]):
            ids[int(at[0]) : int(at[0]) + n] = said  # all of them, side by side
            return
        for i, row in zip(at.tolist(), rows.tolist(), strict=True):
            if said[row] is not None:
                ids[i] = said[row]

    def _note_missing(self, answers: Answers, at: I64, rows: I64, bit: int) -> None:
        table = self.table
        table["failed"][at[rows]] |= np.uint64(1 << bit)
        table["missing"][at[rows], bit] = answers.missing[rows]
        for row in rows.tolist():
            handle = int(at[row]) + table.base
            if row in answers.errors and table["error"][at[row]] == NO_ERROR:
                reason, words = answers.errors[row]
                table["error"][at[row]] = reason
                self.words.setdefault(handle, {})[-1] = words
            elif row in answers.details:
                self.words.setdefault(handle, {})[bit] = answers.details[row]
            if row in answers.failures:
                self.failures.setdefault(handle, answers.failures[row])

    def _store(self, answers: Answers, at: I64, rows: I64, member: tuple[int, int]) -> None:
        table, bit = self.table, member[1]
        n_rows = np.diff(answers.row_starts)[rows]
        known = table["n_rows"][at[rows]]
        form, form_known = self._form_of(answers, member[0]), table["form"][at[rows]]
        fits = ((known == 0) | (known == n_rows)) & (n_rows > 0) & ((form_known == 0) | (form_known == form))
        store = self._store_of(answers, member)
        if not store.takes(answers):
            fits[:] = False
        elif not every(fits):
            odd = indices(~fits & (n_rows > 0))
            fits[odd[self._prevails(at[rows[odd]], bit)]] = True
        if not every(fits):
            self._incompatible(at[rows[~fits]], bit, member[0])
            rows, n_rows = rows[fits], n_rows[fits]
        if not len(rows):
            return
        first = store.append(answers)
        table["row_at"][at[rows], bit] = first + answers.row_starts[:-1][rows]
        table["n_rows"][at[rows]] = n_rows
        table["form"][at[rows]] = form
        table["present"][at[rows]] |= np.uint64(1 << bit)
        self._note_head(answers, at[rows], bit)

    def _store_of(self, answers: Answers, member: tuple[int, int]) -> MemberStore:
        """Where the member's rows are kept: a new one where these do not fit and nobody needs the old one."""
        store = self._stores.get(member)
        if store is None or (not store.takes(answers) and not self._in_use(member)):
            classes = self._known_classes(answers.classes)
            store = self._stores[member] = MemberStore(answers, classes, lambda: self._oldest_needed(member))
        return store

    def _note_head(self, answers: Answers, at: I64, bit: int) -> None:
        if answers.head != NO_HEAD:
            for row in at.tolist():
                self.heads.setdefault(row + self.table.base, {})[bit] = answers.head

    def _prevails(self, at: I64, bit: int) -> Flags:
        """Where answers differ in form, the member that the route names first decides, whoever was quicker.

        Those that have answered in another form, all of them later in the route, are then taken back.
        """
        table = self.table
        present = table["present"][at]
        prevails: Flags = (present != 0) & ((present & np.uint64((1 << bit) - 1)) == 0)
        for row in at[prevails].tolist():
            for other in indices(bits(table["present"][row : row + 1], self.width)[0]).tolist():
                self._incompatible(np.array([row]), other, int(table["route"][row]), by=bit)
        to = at[prevails]
        table["present"][to] = 0
        table["reach"][to] = 0.0
        table["early_ms"][to] = 0
        return prevails

    def _incompatible(self, at: I64, bit: int, route: int, by: int | None = None) -> None:
        table, models = self.table, self.routes[route].models
        table["failed"][at] |= np.uint64(1 << bit)
        table["missing"][at, bit] = Missing.INCOMPATIBLE
        for row in at.tolist():
            rival = by
            if rival is None and table["present"][row]:
                present = int(table["present"][row])
                rival = (present & -present).bit_length() - 1
            than = "than its own before" if rival is None else f"than that of {models[rival]}"
            self.words.setdefault(row + table.base, {})[bit] = f"its answer has another form {than}"

    def _form_of(self, answers: Answers, route: int) -> int:
        """Number of the labels' form. A request's first answer fixes it: other forms cannot be combined with it."""
        if answers.labels is None:
            return 0
        shape = answers.labels.shape[1:]
        numbers = self.routes[route].combine == "mean" and answers.labels.dtype.kind in "iufb"
        return self._forms.setdefault((shape, numbers), len(self._forms) + 1)

    def _needed_rows(self, member: tuple[int, int]) -> I64:
        table, (route, bit) = self.table, member
        live = ~table["settled"] & (table["route"] == route)
        live &= (table["present"] >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        needed: I64 = np.asarray(table["row_at"][live, bit], np.int64)
        return needed

    def _in_use(self, member: tuple[int, int]) -> bool:
        return len(self._needed_rows(member)) > 0

    def _oldest_needed(self, member: tuple[int, int]) -> int:
        needed = self._needed_rows(member)
        return int(needed.min()) if len(needed) else self._stores[member].end

    def members(self, at: I64, route: int, row_starts: I64) -> list[tuple[int, MemberRows]]:
        """What each member that answered any of these requests said of their rows, by its bit."""
        table, width = self.table, len(self.routes[route].models)
        n, total = len(at), int(row_starts[-1])
        there = bits(table["chosen"][at] & table["present"][at], width)
        row_at, n_rows = table["row_at"][at], table["n_rows"][at]
        # All in one step: sixteen members would be asked one by one otherwise, at every decision.
        follow = (row_at[1:] - row_at[:-1] == 1).all(axis=0).tolist()
        everybody = np.ones(total, np.bool_)
        found = []
        for bit, answered in enumerate(np.count_nonzero(there, axis=0).tolist()):
            if not answered:
                continue
            store = self._stores[route, bit]
            if answered == n:
                if total == n and follow[bit]:
                    labels, probabilities = store.slice(int(row_at[0, bit]), n)
                else:
                    labels, probabilities = store.take(row_at[:, bit], n_rows)
                rows = MemberRows(present=everybody, labels=labels, probabilities=probabilities, classes=store.classes)
            else:
                has = there[:, bit]
                labels, probabilities = store.take(row_at[has, bit], n_rows[has])
                present = has if total == n else has.repeat(n_rows)
                rows = MemberRows(
                    present=present,
                    labels=_spread(labels, present),
                    probabilities=None if probabilities is None else _spread(probabilities, present),
                    classes=store.classes,
                )
            found.append((bit, rows))
        return found

    def _known_classes(self, classes: AnyArray | None) -> AnyArray | None:
        """One array for all members that name the same classes: they are then known to be alike at a glance."""
        if classes is None:
            return None
        if len(self._classes) > _FEW:  # a model that names other classes in every answer
            self._classes.clear()
        return self._classes.setdefault((classes.dtype.str, tuple(classes.tolist())), classes)


def _spread(rows: NDArray[_Row], present: Flags) -> NDArray[_Row]:
    spread = np.zeros((len(present), *rows.shape[1:]), rows.dtype)
    spread[present] = rows
    return spread


@unchanging(eq=False)
class Due:
    """Requests to be settled now, and whether each was decided before all members had answered."""

    at: I64
    early: Flags


def member_words(words: Mapping[int, str], models: tuple[str, ...]) -> str:
    """One sentence of why members failed."""
    return "; ".join(f"{models[bit]}: {text}" for bit, text in sorted(words.items()) if bit >= 0)


def head_words(heads: Mapping[int, int], present: int, models: tuple[str, ...]) -> str:
    """Which heads answered: of those members that are present."""
    return ",".join(f"{models[bit]}={rows}" for bit, rows in sorted(heads.items()) if present >> bit & 1)
