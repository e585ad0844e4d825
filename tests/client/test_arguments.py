"""Every argument of every public method: what cannot be used is an `UnusableInput`, and nothing is sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamserve.client import Client, RouteHint, SyncClient, UnusableInput
from streamserve.client.arguments import MOST_MS
from tests.client.conftest import APP, FEEDBACK, REQUESTS, MemoryApp

TIMEOUT_S = 10.0


class Odd:
    """An object whose every face is broken."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("no array of mine")


TEXT: list[object] = [5, b"r", ["r"], 1.5, "\ud800", Odd()]
WHOLE: list[object] = [0, -1, 1.5, "5", True, float("nan"), float("inf"), Odd()]
BUDGET: list[object] = [*WHOLE, MOST_MS + 1, 10**400]
REQUEST: dict[str, list[object]] = {
    "route": TEXT,
    "deadline_ms": BUDGET,
    "priority": [10, -10, 1.5, "5", True, float("nan"), Odd()],
    "key": [5, 1.5, ["k"], "\ud800", bytearray(b"k"), Odd()],
    "context": TEXT,
}
ONE: dict[str, list[object]] = REQUEST | {"x": [5, None, {}, [], [[1, 2], [3]], object(), Odd()], "id": TEXT}
WRONG: dict[str, dict[str, list[object]]] = {
    "submit": ONE,
    "predict": ONE,
    "predict_many": REQUEST
    | {
        "xs": [5, None, "word", b"bytes", np.float64(1), np.array(1), [[1], Odd()], Odd()],
        "ids": [5, "a", b"a", ["a", "b"], [5], [None], [b"a"], [Odd()], Odd()],
    },
    "predictions": {"mine": [5, "yes", None, Odd()], "max_waiting": WHOLE},
    "feedback": {
        "prediction": [5, None, b"2-9", ["2-9"], "2-", Odd()],
        "label": [object(), [[1], [float("nan")]], {"a": float("inf")}, ["a", float("nan")], Odd(), "\ud800"],
        "reward": [-0.1, 1.1, "1", True, float("nan"), [0.5], Odd()],
        "model": TEXT,
        "key": REQUEST["key"],
    },
    "start": {},
    "close": {},
}
GOOD: dict[str, dict[str, Any]] = {
    "submit": {"x": [1.0]},
    "predict": {"x": [1.0]},
    "predict_many": {"xs": [[1.0]]},
    "predictions": {},
    "feedback": {"prediction": "2-9", "label": 1},
}
CASES = [
    pytest.param(method, name, value, id=f"{method}-{name}-{number}")
    for method, arguments in WRONG.items()
    for name, values in arguments.items()
    for number, value in enumerate(values)
]
SET_UP: dict[str, list[object]] = {
    "bootstrap_servers": [5, b"host:9", ["host:9"]],
    "deadline_ms": BUDGET,
    "grace_ms": [-1, 1.5, None, "5", True, float("nan"), 10**400],
    "max_outstanding": [0, -1, 1.5, None, "5", True],
    "codec": [5, "json", "", ["raw"]],
    "routes": [
        5, ["a"], {5: RouteHint(deadline_ms=1, input="raw")}, {"a": 5}, {"a": RouteHint(deadline_ms=0, input="raw")},
        {"a": RouteHint(deadline_ms=1, input="json")},  # type: ignore[arg-type]
    ],
    "security": [5, "SSL", {5: 5}],
}  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_every_argument_of_every_method_is_tried(kind: type) -> None:
    assert public(kind) == WRONG.keys()
    for method, arguments in WRONG.items():
        assert inspect.signature(getattr(kind, method)).parameters.keys() - {"self"} == arguments.keys()
    made = set(inspect.signature(kind).parameters) - {"app", "log"}
    assert made == SET_UP.keys()


@pytest.mark.parametrize(("method", "name", "value"), CASES)
async def test_what_cannot_be_used_is_refused_in_words(app: MemoryApp, method: str, name: str, value: object) -> None:
    async with Client(app=APP, log=app, deadline_ms=50, grace_ms=0) as client, asyncio.timeout(TIMEOUT_S):
        with pytest.raises(UnusableInput):
            result = getattr(client, method)(**GOOD[method] | {name: value})
            if inspect.isawaitable(result):
                await result
        await client.feedback("2-9", label=1)  # whatever it was, others are not held up
        await client.submit([1]).acknowledged()
    assert [len(records) for records in app.log.records(FEEDBACK).values()] == [0, 0, 1]
    assert sum(map(len, app.log.records(REQUESTS).values())) == 1


def test_the_sync_client_refuses_the_same(app: MemoryApp) -> None:
    with SyncClient.of(Client(app=APP, log=app, deadline_ms=50, grace_ms=0)) as client:
        for case in CASES:
            method, name, value = case.values
            with pytest.raises(UnusableInput):
                getattr(client, str(method))(**GOOD[str(method)] | {str(name): value})
        client.feedback("2-9", label=1)


@pytest.mark.parametrize("make", [Client, SyncClient])
def test_what_a_client_cannot_be_made_with_is_refused(make: Callable[..., object]) -> None:
    for name, values in SET_UP.items():
        for value in values:
            with pytest.raises(UnusableInput, match=name):
                make(**{"bootstrap_servers": "host:9", "app": APP, name: value})


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_config_is_a_path(kind: type[Client] | type[SyncClient]) -> None:
    with pytest.raises(UnusableInput, match="config = 5: expected the path of a config file"):
        kind.from_config(5)  # type: ignore[arg-type]


def test_a_sync_face_is_of_a_client() -> None:
    with pytest.raises(UnusableInput, match="client = 'host:9': expected a Client"):
        SyncClient.of("host:9")  # type: ignore[arg-type]


@pytest.mark.parametrize("accept", [5, "ok", None])
async def test_accepted_outcomes_are_several(app: MemoryApp, accept: Any) -> None:
    async with Client(app=APP, log=app) as client:
        sent = client.submit([1])
        await sent.acknowledged()
        app.answer(sent.partition, sent.offset)
        with pytest.raises(UnusableInput, match="accept = "):
            (await sent.prediction()).raise_for_outcome(accept)


async def test_numbers_and_texts_of_numpy_are_as_good_as_ours(app: MemoryApp) -> None:
    async with Client(app=APP, log=app) as client:
        sent = client.submit(
            [1], route=np.str_("r"), deadline_ms=np.int32(5), priority=np.int8(2), id=np.str_("a"), key=np.str_("k")
        )  # type: ignore[call-overload,arg-type,unused-ignore]
        await sent.acknowledged()
        await client.feedback("2-9", reward=np.float32(0.5), model=np.str_("m@1"))  # type: ignore[arg-type]
    ((_, request),) = app.requests()
    assert dict(request.headers) == {"ss-route": b"r", "ss-deadline-ms": b"5", "ss-priority": b"2"}


async def test_of_many_none_is_sent_where_one_cannot_be(app: MemoryApp) -> None:
    async with Client(app=APP, log=app, deadline_ms=50, grace_ms=0) as client:
        with pytest.raises(UnusableInput):
            await client.predict_many([[1], [2], None])  # type: ignore[list-item]
    assert app.requests() == []
