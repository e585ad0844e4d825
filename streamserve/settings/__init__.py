"""The config file, read once at the edge: `load_settings(path)` gives frozen `Settings` or one `ConfigError`."""

from __future__ import annotations

from streamserve.settings.bounds import BoundsSettings
from streamserve.settings.load import load_settings, parse_settings
from streamserve.settings.models import (
    AggregatorSettings,
    AppSettings,
    BrokerSettings,
    ClientSettings,
    GroupSettings,
    InsightsSettings,
    LearnSettings,
    MetricsSettings,
    ModelSettings,
    PoolSettings,
    RouteSettings,
    Settings,
)

__all__ = [
    "AggregatorSettings",
    "AppSettings",
    "BoundsSettings",
    "BrokerSettings",
    "ClientSettings",
    "GroupSettings",
    "InsightsSettings",
    "LearnSettings",
    "MetricsSettings",
    "ModelSettings",
    "PoolSettings",
    "RouteSettings",
    "Settings",
    "load_settings",
    "parse_settings",
]
