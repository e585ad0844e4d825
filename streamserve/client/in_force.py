"""The config that an app runs by: that of the log, once there is one, else that of the file."""

from __future__ import annotations

from streamserve.assembly import with_sections
from streamserve.client.models_topic import read_models_topic
from streamserve.client.scanning import Scanner
from streamserve.kafka.codecs.configs import config_place
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
    in_force = (await read_models_topic(scanner, [config_place(topic, partitions)])).in_force
    return with_sections(settings, in_force[-1].sections) if in_force else settings
