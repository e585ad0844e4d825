"""What pools say that they hold: read from the models topic, the newest record of each process."""

from __future__ import annotations

from streamserve.client.connection import ClientLog
from streamserve.client.scanning import scanning
from streamserve.errors import ContractError, TopicsDiffer
from streamserve.kafka.codecs.hosts import decode_hosts, is_gone
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name
from streamserve.topics.internal_values import HostsValue


async def hosted_plans(log: ClientLog, app: str) -> dict[str, dict[str, int]]:
    """Model -> bytes of its arrays by content hash, of the white-box plans of all processes that serve now.

    Raises BrokerError, TopicsDiffer where the app has no topics.
    """
    topic = topic_name(app, Kind.MODELS)
    newest: dict[bytes, tuple[HostsValue, int]] = {}
    now_ms = 0
    async with scanning(log) as scanner:
        partitions = await scanner.lookups.partition_count(topic)
        if not partitions:
            raise TopicsDiffer(f"{log.address} has no topic {topic}: the app has never been started there")
        for at in (At(topic, number) for number in range(partitions)):
            async for record in scanner.read(at, *await scanner.bounds(at)):
                now_ms = max(now_ms, record.append_ms)
                try:
                    hosts = decode_hosts(record.value, f"{topic} {at.partition}-{record.offset}")
                except ContractError:
                    continue  # of another version or form: roles say so, a proposal goes without
                newest.pop(record.key or b"", None)
                if hosts is not None:
                    newest[record.key or b""] = hosts, record.append_ms
    there = [hosts for hosts, said_ms in newest.values() if not is_gone(hosts, said_ms, now_ms)]
    return {model: arrays for hosts in there for model, arrays in hosts.plans.items()}
