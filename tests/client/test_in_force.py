"""The config that an app runs by: that of the log, once there is one."""

from __future__ import annotations

import pytest

from streamserve.assembly import app_rules, sections_of
from streamserve.client import UnusableInput
from streamserve.client.in_force import settings_in_force
from streamserve.client.scanning import scanning
from streamserve.kafka.codecs.configs import config_place, encode_config
from streamserve.kafka.ports import Columns, Record
from streamserve.settings import Settings
from streamserve.testing.log import ManualClock, MemoryLog
from streamserve.topics import Kind, topic_name
from tests.client.conftest import APP, PARTITIONS, MemoryApp
from tests.client.test_deploying import MODELS, settings_of

FILE = settings_of()
FIRST = settings_of(pools={"p": ["a", "c"]}, routes={"r": ["a", "c"]})
SECOND = settings_of(pools={"p": ["c"]}, routes={"r": ["c"]})


def app_with(*records: Record) -> MemoryApp:
    log = MemoryLog({topic_name(APP, kind): PARTITIONS for kind in Kind}, epoch=ManualClock().epoch)
    for record in records:
        log.append(config_place(MODELS, PARTITIONS), Columns.of([record]))
    return MemoryApp(log)


def config(settings: Settings, number: int, *, in_force: bool = True) -> Record:
    return encode_config(sections_of(settings), number, in_force=in_force)


async def models_of(app: MemoryApp) -> tuple[str, ...]:
    async with scanning(app) as scanner:
        return app_rules(await settings_in_force(scanner, FILE)).routes[0].models


async def test_without_one_in_the_log_the_file_counts() -> None:
    assert await models_of(app_with()) == ("a@1", "b@1")
    assert await models_of(app_with(config(FIRST, 1, in_force=False))) == ("a@1", "b@1")


async def test_the_newest_in_force_counts() -> None:
    records = (config(FIRST, 1), config(SECOND, 2), config(FIRST, 3, in_force=False))
    assert await models_of(app_with(*records)) == ("c@1",)


async def test_one_of_another_release_is_told() -> None:
    later = Record(key=b"@9", value=b'{"v":99,"kind":"config"}')
    with pytest.raises(UnusableInput, match="this release cannot read"):
        await models_of(app_with(config(FIRST, 1), later))
