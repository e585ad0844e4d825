"""What names a Kafka, and what does not: refused in words, wherever it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamserve import Client
from streamserve.addresses import check_addresses
from streamserve.cli import topics
from streamserve.errors import ConfigError

CONFIG = """
[app]
name = "digits"
[pools.main]
models = ["sum"]
[models.sum]
source = "workers.any:model"
[routes.numbers]
models = ["sum"]
"""
WRONG = (
    "",
    ",",
    "host",
    "host:",
    "host:0",
    "host:65536",
    "host:abc",
    "[::1",
    "a:1,,b:2",
    "kafka://a:1",
    "me:secret@a:1",
)


@pytest.mark.parametrize("text", ["a:1", "kafka-1.example:9092, kafka-2:65535", "[::1]:9092", "127.0.0.1:59999"])
def test_hosts_with_their_ports_are_taken(text: str) -> None:
    check_addresses(text)


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed: `host:port`") as refused:
        check_addresses(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["host:65536", "localhost:abc"])
def test_a_client_and_a_command_refuse_it_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allowed: `host:port`"):
        Client(text, app="digits")
    config = tmp_path / "app.toml"
    config.write_text(CONFIG, "utf-8")
    with pytest.raises(ConfigError, match="allowed: `host:port`"):
        topics.plan(config, text)
