"""Lazy decoding: the rows of a request exist from the moment it is first put into a batch, once for all its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamserve.core.codec import InputCodec
from streamserve.core.fast import distinct
from streamserve.core.messages import I64, AnyArray
from streamserve.core.reasons import Reason
from streamserve.core.routes import Route
from streamserve.core.rows import RowStore
from streamserve.core.table import Table

UNDECODED = -1
UNUSABLE_INPUT = -2
_MOST_STORES = 16


class InputRows:
    """Fills the columns `group`, `first_row`, `n_rows` and `ids` of a table of open requests.

    Requests whose rows have the same dtype and trailing shape are one group: only they can share a batch.
    """

    def __init__(self, table: Table, routes: Sequence[Route], codecs: Mapping[str, InputCodec]) -> None:
        self._table = table
        self._routes, self._codecs = routes, codecs
        self._stores: dict[int, RowStore] = {}
        self._next_store = 0

    def decode(self, handles: I64) -> dict[int, tuple[Reason, str]]:
        """Read those not read yet; returns handle -> reason and words for the values that cannot be used."""
        table = self._table
        at = table.at(handles)
        new = at[table["group"][at] == UNDECODED]
        errors: dict[int, tuple[Reason, str]] = {}
        if not len(new):
            return errors
        routes = table["route"][new]
        for route in distinct(routes):
            self._decode_route(int(route), new[routes == route], errors)
        return errors

    def _decode_route(self, route: int, at: I64, errors: dict[int, tuple[Reason, str]]) -> None:
        table, values, headers = self._table, self._table.lists["values"], self._table.lists["headers"]
        rows = at.tolist()
        decoded = self._codecs[self._routes[route].input].decode([values[i] for i in rows], [headers[i] for i in rows])
        ids = np.empty(len(rows), np.object_)
        ids[:] = decoded.ids
        table["ids"][at] = ids
        table["n_rows"][at] = decoded.n_rows
        table["group"][at] = UNUSABLE_INPUT
        for number, found in enumerate(decoded.groups):
            store_number = self._store_for(found.array)
            start = self._stores[store_number].append(found.array)
            mine = decoded.group == number
            table["group"][at[mine]] = store_number
            table["first_row"][at[mine]] = decoded.first_row[mine] + start
        for index, error in decoded.errors.items():
            errors[table.base + rows[index]] = error

    def _store_for(self, rows: AnyArray) -> int:
        for number, store in self._stores.items():
            if store.takes(rows):
                return number
        if len(self._stores) >= _MOST_STORES:
            self._drop_unused()
        number = self._next_store
        self._next_store += 1
        self._stores[number] = RowStore(rows, lambda: self._oldest_needed(number))
        return number

    def _drop_unused(self) -> None:
        """Requests of ever new widths must not leave a store each behind."""
        table = self._table
        used = set(distinct(table["group"][~table["done"]]))
        self._stores = {number: store for number, store in self._stores.items() if number in used}

    def _oldest_needed(self, number: int) -> int:
        table = self._table
        needed = table["first_row"][(table["group"] == number) & ~table["done"]]
        return int(needed.min()) if len(needed) else self._stores[number].end

    def rows(self, group: int, first_rows: I64, n_rows: I64) -> AnyArray:
        """The rows of several requests of one group, one after the other."""
        return self._stores[group].take(first_rows, n_rows)
