"""From `[broker.client]` of a config to the keyword arguments of aiokafka's clients."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import ssl
import sys
from importlib.metadata import EntryPoint
from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import SaslAuthenticationFailed

from streamserve.errors import ConfigError
from streamserve.settings import ClientSettings

_log = logging.getLogger(__name__)


def connection_options(client: ClientSettings) -> dict[str, Any]:
    """Keyword arguments of every aiokafka client, but the address. Holds secrets: never for a log.

    Raises `ConfigError`, without quoting a secret, where a certificate or its key cannot be read, Kerberos lacks its
    package, or the function for tokens cannot be imported.
    """
    options: dict[str, Any] = {"client_id": client.client_id, "security_protocol": client.security_protocol}
    if client.security_protocol.startswith("SASL"):
        if client.sasl_mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
            raise ConfigError('[broker.client] sasl_mechanism = "GSSAPI" needs the Python package gssapi: install it')
        options |= {
            "sasl_mechanism": client.sasl_mechanism,
            "sasl_plain_username": client.sasl_username,
            "sasl_plain_password": client.sasl_password and client.sasl_password.get_secret_value(),
            "sasl_kerberos_service_name": client.sasl_kerberos_service_name,
            "sasl_kerberos_domain_name": client.sasl_kerberos_domain_name,
        }
        if client.sasl_mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _Tokens(client.sasl_token_function or "")
    if client.security_protocol.endswith("SSL"):
        options["ssl_context"] = _tls(client)
    return options


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of a function of the user's."""

    def __init__(self, path: str) -> None:
        self._named = f"[broker.client] sasl_token_function = {path!r}"
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            self._function = EntryPoint(name="", value=path, group="").load()
        except Exception as broken:
            raise ConfigError(f"{self._named} cannot be imported: {broken!r}") from broken

    async def token(self) -> str:
        """Raises SaslAuthenticationFailed where there is none: after that the client tries again."""
        try:
            token = await asyncio.to_thread(self._function)
            if isinstance(token, str) and token:
                return token
            why = f"returned no text, but {type(token).__name__}"
        except Exception as error:  # noqa: BLE001  (anything but an error of Kafka would end the client's tasks)
            why = f"raised {error!r}"
        _log.warning("%s %s: no connection to the broker without a token", self._named, why)
        raise SaslAuthenticationFailed(f"{self._named} {why}")


def _tls(client: ClientSettings) -> ssl.SSLContext:
    # A function, never None: with None, OpenSSL asks for the password on the terminal.
    password = client.ssl_password.get_secret_value() if client.ssl_password else ""
    try:
        context = ssl.create_default_context(cafile=client.ssl_cafile)
        context.check_hostname = client.ssl_check_hostname
        if client.ssl_certfile:
            context.load_cert_chain(client.ssl_certfile, client.ssl_keyfile, lambda: password)
    except OSError as error:
        files = {
            "ssl_cafile": client.ssl_cafile,
            "ssl_certfile": client.ssl_certfile,
            "ssl_keyfile": client.ssl_keyfile,
        }
        named = ", ".join(f"{name} = {str(file)!r}" for name, file in files.items() if file)
        raise ConfigError(
            f"[broker.client] {named}: cannot be read ({error}). PEM files are allowed; check paths and ssl_password"
        ) from error
    return context
