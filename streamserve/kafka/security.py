"""From `[broker.client]` of a config to the keyword arguments of aiokafka's clients."""

from __future__ import annotations

import importlib.util
import ssl
from typing import Any

from streamserve.errors import ConfigError
from streamserve.settings import ClientSettings


def connection_options(client: ClientSettings) -> dict[str, Any]:
    """Keyword arguments of every aiokafka client, but the address. Holds secrets: never for a log.

    Raises `ConfigError`, without quoting a secret, where a certificate or its key cannot be read, or Kerberos lacks its
    package.
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
    if client.security_protocol.endswith("SSL"):
        options["ssl_context"] = _tls(client)
    return options


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
