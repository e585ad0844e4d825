"""The Dockerfile and the compose file, checked without an engine; each service's exact command runs as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from streamserve.cli.entry import run
from streamserve.datasets import split
from streamserve.kafka.brokers.jars import KAFKA_VERSION
from streamserve.kafka.brokers.ports import free_ports
from streamserve.settings import load_settings
from tests.acceptance.foreign import foreign_client, oip
from tests.acceptance.running import ROOT, STOP_S, TIMEOUT_S

if TYPE_CHECKING:
    from streamserve.testing.broker_fixture import BrokerForTests

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name in SERVICES if name != "broker"]
ROLES = [name for name in OURS if name != "topics"]
BROKER_VARIABLE = "STREAMSERVE_BROKER__BOOTSTRAP_SERVERS"
PORT_VARIABLE = "STREAMSERVE_METRICS__PORT"

#: Kafka is an image of its own, torch fills 5 GB; the others serve nothing.
NOT_IN_THE_IMAGE = {"broker", "torch", "parquet", "chaos", "bench", "dev", "all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    """A service of the compose file as a process of this machine: for `subprocess`, in the folder `ROOT`."""

    command: list[str]
    environment: dict[str, str]


def local_service(name: str, bootstrap_servers: str, metrics_port: int = 0) -> LocalService:
    """The service's exact command with this interpreter, and its environment with another broker's address and another
    port of `/readyz`: here all have one loopback address."""
    service = SERVICES[name]
    program, *arguments = service["command"]
    assert program == "streamserve"
    others = {BROKER_VARIABLE: bootstrap_servers, PORT_VARIABLE: str(metrics_port)}
    environment = {**os.environ, **service["environment"], **others}
    return LocalService(command=[sys.executable, "-m", "streamserve.cli", *arguments], environment=environment)


def test_every_role_of_the_example_is_a_service() -> None:
    config = load_settings(ROOT / "examples" / "split.toml")
    commands = {tuple(SERVICES[name]["command"]) for name in ROLES}
    workers = {("streamserve", "worker", "examples/split.toml", "--pool", pool) for pool in config.pools}
    others = {("streamserve", role, "examples/split.toml") for role in ("aggregate", "learn")}
    assert commands == workers | others


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_an_existing_command_on_an_existing_config(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    program, *arguments = SERVICES[name]["command"]
    assert program == "streamserve"
    config = next(argument for argument in arguments if argument.endswith(".toml"))
    assert (ROOT / config).is_file()
    words = arguments[: arguments.index(config)]
    with pytest.raises(SystemExit) as left:
        run([*words, "--help"])
    told = capfd.readouterr()
    assert left.value.code == 0, told.err
    assert all(option in told.out for option in arguments if option.startswith("--"))


@pytest.mark.parametrize("name", OURS)
def test_a_service_speaks_to_the_broker_inside_and_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    listeners = dict(
        item.split("://") for item in SERVICES["broker"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )
    assert service["environment"][BROKER_VARIABLE] == listeners["INTERNAL"]
    needs = {"broker": "service_healthy"} if name == "topics" else {"topics": "service_completed_successfully"}
    assert {other: how["condition"] for other, how in service["depends_on"].items()} == needs


def test_the_broker_is_the_version_that_we_start_ourselves_and_hangs_together() -> None:
    broker = SERVICES["broker"]
    assert broker["image"] == f"apache/kafka:{KAFKA_VERSION}"
    settings = broker["environment"]
    listeners = dict(item.split("://") for item in settings["KAFKA_LISTENERS"].split(","))
    advertised = dict(item.split("://") for item in settings["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(item.split(":") for item in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols) == set(listeners)
    assert set(advertised) == set(listeners) - {settings["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert settings["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    assert broker["ports"] == ["127.0.0.1:9092:9092"]
    assert advertised["HOST"] == "localhost:9092"
    assert int(settings["KAFKA_MESSAGE_MAX_BYTES"]) > 8 * 1024 * 1024
    assert all(isinstance(value, str) for value in settings.values())
    assert broker["healthcheck"]["test"][-1] == advertised["INTERNAL"]


def test_named_volumes_are_declared() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_the_image_is_built_from_what_is_in_the_repository() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert [line[1] for line in lines if line[0] == "FROM"] == ["python:3.11-slim", "python:3.11-slim"]
    copied = [word for line in lines if line[0] == "COPY" and "--from=build" not in line for word in line[1:-1]]
    sources = [word for word in copied if not word.startswith("--") and "[" not in word]
    assert sources
    assert [word for word in sources if not (ROOT / word).exists()] == []
    (extras,) = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras.split(",")) == set(declared) - NOT_IN_THE_IMAGE
    assert ["USER", "streamserve"] in lines


def make_topics(servers: str) -> LocalService:
    service = local_service("topics", servers)
    run = subprocess.run(
        service.command,
        env=service.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return service


@pytest.mark.broker
@pytest.mark.beside
def test_the_topics_service_s_exact_command_makes_the_topics(broker: BrokerForTests) -> None:
    service = make_topics(broker.bootstrap_servers)
    check = [*service.command[:-2], "check", service.command[-1]]
    again = subprocess.run(check, env=service.environment, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert again.returncode == 0


@contextmanager
def running_service(name: str, servers: str, log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    service = local_service(name, servers, port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            service.command, env=service.environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def health(name: str, port: int) -> int:
    """The exit code of the service's health check, its exact command, asked at another port."""
    _, program, *arguments = SERVICES[name]["healthcheck"]["test"]
    assert program == "python"
    own_port = SERVICES[name]["environment"][PORT_VARIABLE]
    here = [argument.replace(f":{own_port}/", f":{port}/") for argument in arguments]
    assert here != arguments
    return subprocess.run([sys.executable, *here], timeout=60, capture_output=True, check=False).returncode


def test_the_health_check_of_a_role_that_is_not_there_fails() -> None:
    (closed,) = free_ports(1)
    assert health(ROLES[0], closed) == 1


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.slow
def test_the_services_exact_commands_serve_together_and_stop_in_order(broker: BrokerForTests, tmp_path: Path) -> None:
    make_topics(broker.bootstrap_servers)
    app = load_settings(ROOT / "examples" / "split.toml").app.name
    topics = {kind: f"{app}.{kind}.v1" for kind in ("requests", "predictions", "feedback", "outcomes")}
    ready = {"bootstrap_servers": broker.bootstrap_servers, "topics": topics}
    images = split()
    ports = dict(zip(ROLES, free_ports(len(ROLES)), strict=True))
    with ExitStack() as stack:
        client = stack.enter_context(foreign_client(ready))
        services = {
            name: stack.enter_context(running_service(name, broker.bootstrap_servers, tmp_path / f"{name}.log", port))
            for name, port in ports.items()
        }
        # Sent while they start: the topics keep the requests, and their budget is long enough.
        for number in range(0, len(images.test_images), 50):
            pixels = images.test_images[number].astype(float).tolist()
            client.send(oip(pixels, [1, 784]), tag=number, headers=[("ss-deadline-ms", b"60000")])
        answers = client.answers(range(0, len(images.test_images), 50), TIMEOUT_S)
        assert {answer.outcome for answer in answers.values()} == {"ok"}
        right = [answer.label == [int(images.test_labels[number])] for number, answer in answers.items()]
        assert sum(right) > 0.8 * len(right)
        number, prediction = next(iter(answers.items()))
        label = b'{"label": %d}' % images.test_labels[number]
        place = [("ss-ref", prediction.headers["ss-ref"])]
        client.send(label, tag="label", kind="feedback", headers=place, partition=prediction.partition)
        client.flush()
        while not any(
            tuple(record.json["feedback"]) == client.acknowledged["label"] for record in client.read("outcomes")
        ):
            pass
        assert {name: health(name, port) for name, port in ports.items()} == dict.fromkeys(ROLES, 0)
        for name, process in services.items():
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S + 5) == 0, (tmp_path / f"{name}.log").read_text("utf-8")
