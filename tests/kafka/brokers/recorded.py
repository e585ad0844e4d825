"""A broker of ours that is only written down, as another process finds it."""

from __future__ import annotations

import os
from pathlib import Path

from streamserve.kafka.brokers.process import start_mark
from streamserve.kafka.brokers.state import BrokerRecord, NodeRecord, write_record


def running(folder: Path, address: str) -> None:
    """As a broker of ours that runs would be found in `folder`; its process is this one."""
    folder.mkdir(parents=True)
    mark = start_mark(os.getpid())
    assert mark is not None
    node = NodeRecord(node_id=1, pid=os.getpid(), mark=mark, port=1, controller_port=2, log="")
    write_record(
        folder,
        BrokerRecord(
            bootstrap_servers=address,
            cluster_id="c",
            kafka_version="4",
            started_at_ms=1,
            detached=False,
            nodes=(node,),
        ),
    )
