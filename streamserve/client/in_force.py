"""The config that an app runs by: that of the log, once there is one, else that of the file."""

from __future__ import annotations

from streamserve.assembly import with_sections
from streamserve.client.failures import UnusableInput
from streamserve.client.scanning import Scanner
from streamserve.errors import ContractError
from streamserve.kafka.codecs.configs import ConfigRecord, config_place, decode_config
from streamserve.settings import Settings
from streamserve.topics import Kind, topic_name


async def settings_in_force(scanner: Scanner, settings: Settings) -> Settings:
    """`settings` with the models, pools and routes of the newest config in force, or about to be.

    Raises UnusableInput where another release has written it, or it does not fit the rest of the file.
    """
    topic = topic_name(settings.app.name, Kind.MODELS)
    partitions = await scanner.lookups.partition_count(topic)
    if not partitions:
        return settings
    place, newest = config_place(topic, partitions), None
    async for record in scanner.read(place, *await scanner.bounds(place)):
        try:
            found = decode_config(
                record.value, partition=place.partition, offset=record.offset, append_ms=record.append_ms
            )
        except ContractError as error:
            raise UnusableInput(f"the models topic has a record that this release cannot read: {error}") from None
        newest = found if _is_later(found, newest) else newest
    return settings if newest is None else with_sections(settings, newest.sections)


def _is_later(found: ConfigRecord | None, newest: ConfigRecord | None) -> bool:
    return found is not None and found.in_force and (newest is None or found.offset > newest.offset)
