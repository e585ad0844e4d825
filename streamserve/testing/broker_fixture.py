"""A pytest plugin: a real Kafka for tests. Load it with `-p streamserve.testing.broker_fixture`.

`--broker=own` (the default) starts Apache Kafka on the loopback address, in a temporary folder;
`--broker=testcontainers` starts the official image where a Docker engine answers and skips, saying why, where none
does; `--broker=HOST:PORT` uses a running one. Fixtures: `broker` (one for the session) and `broker_cluster` (three
nodes of our own, one per module).
"""

from __future__ import annotations

import gc
import importlib
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest

from streamserve.kafka.brokers.jars import KAFKA_VERSION
from streamserve.kafka.brokers.options import BrokerOptions
from streamserve.kafka.brokers.own import OwnBroker
from streamserve.kafka.brokers.ports import HOST, free_ports
from streamserve.kafka.brokers.probe import live_brokers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
_KINDS = ("own", "testcontainers")
_CONTAINER_TIMEOUT_S = 120.0
_ENGINE_TIMEOUT_S = 5
_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerForTests:
    """A broker that answers. `own` is there when the test run started it itself, for killing nodes and the like."""

    bootstrap_servers: str
    kind: Literal["own", "testcontainers", "address"]
    own: OwnBroker | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--broker`."""
    parser.addoption(
        "--broker",
        default="own",
        metavar="own|testcontainers|ADDRESS",
        help="the Kafka that tests use: one of our own (default), a container, or a running one at HOST:PORT",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a `--broker` that means nothing, before any test runs."""
    wanted = str(config.getoption("--broker"))
    if wanted not in _KINDS and ":" not in wanted:
        message = f"--broker={wanted}: use own, testcontainers, or the HOST:PORT of a running broker"
        raise pytest.UsageError(message)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerForTests]:
    """A real broker for the whole session; tests keep apart by topic names."""
    wanted = str(request.config.getoption("--broker"))
    if wanted == "own":
        own = OwnBroker(BrokerOptions(state_dir=tmp_path_factory.mktemp("broker")))
        with own:
            yield BrokerForTests(bootstrap_servers=own.bootstrap_servers, kind="own", own=own)
    elif wanted == "testcontainers":
        with _container() as address:
            yield BrokerForTests(bootstrap_servers=address, kind="testcontainers")
    else:
        yield BrokerForTests(bootstrap_servers=wanted, kind="address")


@pytest.fixture(scope="module")
def broker_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerForTests]:
    """Three brokers that replicate each other and may be killed one by one (`.own.kill_node(1)`)."""
    wanted = str(request.config.getoption("--broker"))
    if wanted != "own":
        pytest.skip(f"three brokers to kill are only started with --broker=own, not with --broker={wanted}")
    own = OwnBroker(BrokerOptions(state_dir=tmp_path_factory.mktemp("cluster"), nodes=3))
    own.start()
    try:
        yield BrokerForTests(bootstrap_servers=own.bootstrap_servers, kind="own", own=own)
    finally:
        own.stop(timeout_s=0.5)  # the last two wait 5 s for a majority that is gone; nobody reads this data again


@contextmanager
def _container() -> Iterator[str]:
    """Kafka's official image; skips where no engine answers."""
    _skip_without_engine()
    containers = importlib.import_module("testcontainers.core.container")
    (port,) = free_ports(1)
    # The address that clients are told must be known before the start: so the port is chosen here, not by the engine.
    container = containers.DockerContainer(_IMAGE).with_bind_ports(port, port)
    for key, value in _container_settings(port).items():
        container = container.with_env(key, value)
    with container:
        until = time.monotonic() + _CONTAINER_TIMEOUT_S
        while live_brokers(HOST, port, 1.0) is None:
            if time.monotonic() >= until:
                pytest.fail(f"the container of {_IMAGE} does not answer after {_CONTAINER_TIMEOUT_S:.0f} s")
            time.sleep(_LOOK_AGAIN_S)
        yield f"{HOST}:{port}"


def _container_settings(port: int) -> dict[str, str]:
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://localhost:29093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{HOST}:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:29093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_MESSAGE_MAX_BYTES": str(9 * 1024 * 1024),
        "KAFKA_REPLICA_FETCH_MAX_BYTES": str(9 * 1024 * 1024),
    }


def _skip_without_engine() -> None:
    try:
        docker = importlib.import_module("docker")
        importlib.import_module("testcontainers.core.container")
    except ImportError as failure:
        pytest.skip(f"--broker=testcontainers: {failure.name} is not installed")
    with warnings.catch_warnings():
        # Docker's client leaves its socket to the garbage collector when nobody answers.
        warnings.simplefilter("ignore", ResourceWarning)
        trouble = _engine_trouble(docker)
        gc.collect()
    if trouble:
        pytest.skip(f"--broker=testcontainers: no Docker engine answers ({trouble})")


def _engine_trouble(docker: ModuleType) -> str:
    """Why no engine can be used; empty when one answers."""
    try:
        client = docker.from_env(timeout=_ENGINE_TIMEOUT_S)
    except (OSError, docker.errors.DockerException) as failure:
        return str(failure)
    try:
        client.ping()
    except (OSError, docker.errors.DockerException) as failure:
        return str(failure)
    finally:
        client.close()
    return ""
