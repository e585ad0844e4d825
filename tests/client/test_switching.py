"""Models switched off and on: what the command writes, what roles read of it, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.client import UnusableInput
from streamserve.client.switching import check_model
from streamserve.core.switches import SwitchRecord
from streamserve.kafka import intake
from streamserve.kafka.codecs.hosts import encode_hosts
from streamserve.kafka.codecs.switches import encode_switch
from streamserve.kafka.ports import At, Chunk, Record
from tests.core.kit import route

ROUTES = (route(("a@1", "a@2", "b@1"), name="first"), route(("a@2",), name="second"))


def fetched(*records: Record) -> Chunk:
    n = len(records)
    return Chunk(
        at=At("app.models.v1", 1),
        offsets=np.arange(10, 10 + n),
        append_ms=np.full(n, 7_000),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers=[()] * n,
        next_offset=10 + n,
    )


def test_a_switch_is_read_as_it_was_written_and_what_is_none_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    records = (
        encode_hosts("main", "0", ["a@1"]),
        encode_switch("a@1", disabled=True, why="it leaks"),
        Record(key=b"clock", value=None),
        Record(key=b"a@1", value=b'{"v":1,"kind":"swi'),
        Record(key=b"a@1", value=b'{"v":9,"kind":"switch","model":"a@1","disabled":false}'),
        encode_switch("b", disabled=False),
    )
    found = intake.switches_of(fetched(*records))
    assert found.states == ()
    assert found.switches == (
        SwitchRecord(model="a@1", disabled=True, append_ms=7_000, offset=11),
        SwitchRecord(model="b", disabled=False, append_ms=7_000, offset=15),
    )
    assert caplog.text.count("switches nothing") == 2


def test_a_model_is_named_by_id_or_by_name() -> None:
    assert check_model("b", ROUTES, disabled=True) == ("first",)
    assert check_model("a@1", ROUTES, disabled=True) == ("first",)
    assert check_model("a@2", ROUTES, disabled=False) == ("first", "second")


def test_what_would_leave_a_route_without_a_model_is_refused_in_words() -> None:
    for name in ("a", "a@2"):
        with pytest.raises(UnusableInput, match="is all that route second has"):
            check_model(name, ROUTES, disabled=True)
    with pytest.raises(UnusableInput, match=r"there is no model c; the routes have a@1, a@2, b@1"):
        check_model("c", ROUTES, disabled=True)
