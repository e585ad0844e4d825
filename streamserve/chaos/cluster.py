"""The Kafka that faults are done to: one of our own, in a folder of its own, with a second door for a proxy."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from streamserve.errors import BrokerError
from streamserve.kafka.brokers import BrokerOptions, OwnBroker
from streamserve.kafka.brokers.ports import HOST, free_ports


class Cluster:
    """One node that can also be reached through a proxy, or three. Its calls block, but for those that are `async`."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.nodes = nodes
        port, self.second_port, self.proxy_port, controller_port = free_ports(4)
        # Kafka tells its clients where to connect: those of the second listener are sent to the proxy.
        second = {
            "listeners": f"PLAINTEXT://{HOST}:{port},PROXIED://{HOST}:{self.second_port},"
            f"CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port},PROXIED://{HOST}:{self.proxy_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        }
        self._broker = OwnBroker(
            BrokerOptions(
                state_dir=folder, nodes=nodes, port=port if nodes == 1 else 0, extra=second if nodes == 1 else {}
            )
        )

    @property
    def servers(self) -> str:
        return self._broker.bootstrap_servers

    @property
    def proxied_servers(self) -> str:
        return f"{HOST}:{self.proxy_port}"

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop(timeout_s=0.5)  # nobody reads its data again

    async def kill(self, node: int = 1) -> None:
        await asyncio.to_thread(self._broker.kill_node, node)

    async def start_again(self, node: int = 1) -> None:
        await asyncio.to_thread(self._broker.start_node, node)

    def fill_disk(self) -> None:
        """From now on every write of the (one) broker fails, as on a full disk. It ends of it.

        A limit on the size of a file that the process may write: to Kafka any failed write is the same. Linux only.
        """
        if not sys.platform.startswith("linux"):
            raise BrokerError("a full disk can be imitated on Linux only")
        limits = resource.prlimit(self._broker.pids[1], resource.RLIMIT_FSIZE)
        resource.prlimit(self._broker.pids[1], resource.RLIMIT_FSIZE, (1, limits[1]))

    async def ended(self, timeout_s: float) -> bool:
        """Wait until a node has ended by itself."""
        return await asyncio.to_thread(self._broker.wait, timeout_s)
