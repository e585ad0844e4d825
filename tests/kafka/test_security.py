from __future__ import annotations

import asyncio
import importlib.util
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streamserve.errors import ConfigError
from streamserve.kafka.security import connection_options
from streamserve.settings import ClientSettings


def settings(**values: object) -> ClientSettings:
    return ClientSettings.model_validate(values)


def test_a_plain_broker_needs_no_security() -> None:
    assert connection_options(settings(client_id="me")) == {"client_id": "me", "security_protocol": "PLAINTEXT"}


def test_passwords_reach_the_client_in_clear() -> None:
    options = connection_options(
        settings(
            security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password="p"
        )
    )
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert "ssl_context" not in options


def test_tls_checks_the_brokers_name_unless_told_not_to() -> None:
    strict = connection_options(settings(security_protocol="SSL"))["ssl_context"]
    assert strict.check_hostname
    assert strict.verify_mode is ssl.CERT_REQUIRED
    loose = connection_options(settings(security_protocol="SSL", ssl_check_hostname=False))["ssl_context"]
    assert not loose.check_hostname
    assert loose.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile"])
def test_a_file_that_is_no_pem_or_is_not_there_is_named_without_the_password(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for file in ("bad.pem", "missing.pem"):
        wrong = settings(security_protocol="SSL", ssl_password="hunter2", **{name: tmp_path / file})
        with pytest.raises(ConfigError, match=f"{name} = '{tmp_path / file}'") as refused:
            connection_options(wrong)
        assert "hunter2" not in str(refused.value)


@pytest.mark.skipif(importlib.util.find_spec("gssapi") is not None, reason="the package is installed")
def test_kerberos_without_its_package_is_said() -> None:
    with pytest.raises(ConfigError, match="gssapi"):
        connection_options(settings(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI"))


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in the working folder."""
    (tmp_path / "tokens_of_ours.py").write_text("def good(): return 'abc'\ndef bad(): return 1 / 0\ndef none(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def oauth(function: str) -> dict[str, Any]:
    return connection_options(
        settings(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_token_function=function)
    )


@pytest.mark.usefixtures("tokens")
def test_a_token_is_what_the_users_function_returns() -> None:
    assert asyncio.run(oauth("tokens_of_ours:good")["sasl_oauth_token_provider"].token()) == "abc"


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(("name", "why"), [("bad", "raised ZeroDivisionError"), ("none", "returned no text")])
def test_a_function_without_a_token_is_named_and_asked_again(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    function = f"tokens_of_ours:{name}"
    with pytest.raises(KafkaError, match=f"sasl_token_function = '{function}' {why}"):  # others end the client's tasks
        asyncio.run(oauth(function)["sasl_oauth_token_provider"].token())
    assert f"'{function}' {why}" in caplog.text


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("function", ["tokens_of_ours:missing", "no_such_module:good"])
def test_a_function_that_is_not_there_is_named(function: str) -> None:
    with pytest.raises(ConfigError, match=f"sasl_token_function = '{function}' cannot be imported"):
        oauth(function)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    "mechanism",
    [
        {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_token_function": "tokens_of_ours:good"},
    ],
)
def test_every_client_takes_the_options(mechanism: dict[str, str]) -> None:
    options = connection_options(settings(security_protocol="SASL_SSL", **mechanism))

    async def build() -> None:
        for client in (AIOKafkaConsumer(**options), AIOKafkaAdminClient(**options)):
            stop = client.stop if isinstance(client, AIOKafkaConsumer) else client.close
            await stop()

    asyncio.run(build())
