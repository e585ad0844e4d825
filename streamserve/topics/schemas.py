"""A JSON Schema (draft 2020-12) for each topic whose values are JSON, from the types of the values."""

from __future__ import annotations

from typing import Any

import msgspec

from streamserve.topics.catalogue import JSON, TOPICS, spec_of
from streamserve.topics.names import VERSION, Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = "schemas"


def schema_file(kind: Kind) -> str:
    """Where a topic's schema is, inside the published folder."""
    return f"{SCHEMAS}/{kind}.v{VERSION}.json"


def schemas() -> dict[Kind, dict[str, Any]]:
    """The published schemas. A MessagePack value has none: it is no JSON, and its fields are on the page."""
    return {spec.kind: schema(spec.kind) for spec in TOPICS if spec.content_type == JSON}


def schema(kind: Kind) -> dict[str, Any]:
    """The schema of one topic's values."""
    spec = spec_of(kind)
    title = f"Value of <app>.{kind}.v{VERSION}"
    return {"$schema": DIALECT, "title": title, "description": spec.purpose, **msgspec.json.schema(spec.value)}
