"""Addresses of Kafka brokers, as the config, `--bootstrap-servers` and clients take them. Standard library only."""

from __future__ import annotations

import re

from streamserve.errors import ConfigError

ALLOWED = "`host:port`, several with commas; ports from 1 to 65535"
_HOST = r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS = rf"\s*{_HOST}:{_PORT}\s*"
#: What the Kafka client can make sense of; from anything else it raises whatever its parts do. A user or a password in
#: it would be shown in logs, so `@` is refused.
PATTERN = rf"^{_ADDRESS}(,{_ADDRESS})*$"


def check_addresses(text: str) -> None:
    """Raises `ConfigError` for what names no brokers; without the text, since a password may be in it."""
    if not re.fullmatch(PATTERN, text):
        raise ConfigError(f"the bootstrap servers given are not possible; allowed: {ALLOWED}")
