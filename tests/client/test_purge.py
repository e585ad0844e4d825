"""Removing dead letters from a log in memory: only the front of a partition can go."""

from __future__ import annotations

from typing import Any

import pytest

from streamserve.client import purge
from streamserve.client.dead_letters import Filter
from streamserve.client.letter_words import removal_lines, removal_plain
from streamserve.client.purge import Removal
from streamserve.client.scanning import scanning
from streamserve.errors import BrokerError
from streamserve.kafka.ports import At
from tests.client.lettered import DLQ, Lettered


@pytest.fixture
def app() -> Lettered:
    """Partition 0: refused, refused, not_json, refused; partition 1: not_json."""
    app = Lettered()
    for offset, reason in enumerate(("refused", "refused", "not_json", "refused")):
        app.letter(at=(0, offset), reason=reason)
    app.letter(at=(1, 9), reason="not_json")
    return app


async def planned(app: Lettered, **chosen: Any) -> list[Removal]:
    return purge.plan(await app.survey(Filter(**chosen), whole=True))


def told(removals: list[Removal]) -> list[tuple[int, int, list[str], list[str]]]:
    return [
        (
            removal.at.partition,
            removal.before,
            [letter.place for letter in removal.removed],
            [letter.place for letter in removal.kept],
        )
        for removal in removals
    ]


async def test_only_what_stands_before_the_first_that_is_not_meant_goes(app: Lettered) -> None:
    assert told(await planned(app, reasons=["refused"])) == [(0, 2, ["0-0", "0-1"], ["0-3"])]
    assert told(await planned(app, reasons=["not_json"])) == [(0, -1, [], ["0-2"]), (1, 1, ["1-0"], [])]
    assert told(await planned(app, up_to={0: 2})) == [(0, 3, ["0-0", "0-1", "0-2"], [])]
    assert told(await planned(app, until_ms=app.now_ms - 3000)) == [(0, 1, ["0-0"], [])]
    assert told(await planned(app)) == [(0, 4, ["0-0", "0-1", "0-2", "0-3"], []), (1, 1, ["1-0"], [])]
    assert await planned(app, reasons=["shed"]) == []


async def test_what_cannot_go_is_said(app: Lettered) -> None:
    (removal,) = await planned(app, reasons=["refused"])
    assert removal_lines(removal, dry_run=True) == [
        f"partition 0 of {DLQ}: 2 would be removed, up to 0-1; it begins at offset 2 then",
        f"partition 0 of {DLQ}: 1 cannot be removed singly, the first being 0-3: one that is not meant stands before "
        "them",
    ]
    assert removal_plain(removal, dry_run=True) == {
        "topic": DLQ,
        "partition": 0,
        "before": 2,
        "removed": 0,
        "to_remove": 2,
        "kept": ["0-3"],
        "error": "",
    }


async def test_marks_go_with_the_last_dead_letter_and_stay_while_one_is_left(app: Lettered) -> None:
    await app.redrive(Filter(partitions=[1]))
    await app.redrive(Filter(places={(0, 0)}))
    everything = await planned(app)
    assert [(removal.before, removal.not_redriven) for removal in everything] == [(6, 3), (3, 0)]
    (front,) = await planned(app, up_to={0: 1})
    assert (front.before, front.not_redriven) == (2, 1)


async def test_a_mark_before_one_that_is_not_meant_stays() -> None:
    app = Lettered()
    app.letter(at=(0, 1))
    await app.redrive()
    app.letter(at=(0, 1))  # its role was stopped between two commits: the mark speaks of this one too
    assert told(await planned(app, up_to={0: 0})) == [(0, 1, ["0-0"], [])]


async def test_it_is_done(app: Lettered) -> None:
    async with scanning(app.app) as scanner:
        (done,) = await purge.purge(scanner, await planned(app, reasons=["refused"]))
    assert [letter.place for letter in done.removed] == ["0-0", "0-1"]
    assert await app.places() == ["0-2", "0-3", "1-0"]


async def test_a_broker_that_refuses_one_partition_does_not_stop_the_next(
    app: Lettered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scanning(app.app) as scanner:
        remove = scanner.lookups.remove_before

        async def refuses(at: At, offset: int) -> int:
            if at.partition == 0:
                raise BrokerError("not allowed")
            return await remove(at, offset)

        monkeypatch.setattr(scanner.lookups, "remove_before", refuses)
        first, second = await purge.purge(scanner, await planned(app))
    assert removal_lines(first, dry_run=False) == [f"partition 0 of {DLQ}: nothing removed: not allowed"]
    assert [letter.place for letter in second.removed] == ["1-0"]
    assert await app.places() == ["0-0", "0-1", "0-2", "0-3"]
