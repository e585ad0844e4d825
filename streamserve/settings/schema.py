"""What the config allows, read from the models' JSON Schema: the words of errors and of the reference page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from streamserve.settings.fields import WORDS
from streamserve.settings.lines import KeyPath
from streamserve.settings.models import Settings

Node = Mapping[str, Any]

_FORMATS = {"path": "a path in quotes", "password": "text in quotes"}
_JSON_NUMBERS = {"integer": "a whole number", "number": "a number"}


@cache
def root() -> Node:
    """The JSON Schema of the whole config, references resolved as they are met."""
    return Settings.model_json_schema(mode="validation")


def resolve(node: Node) -> Node:
    """A node without reference, and without the null of a key that may be left out."""
    if "$ref" in node:
        target: Node = root()["$defs"][str(node["$ref"]).rpartition("/")[2]]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return {**resolve(target), **rest}
    choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return {**resolve(choices[0]), **rest}
    return node


def node_at(path: KeyPath, policy: str | None = None) -> Node | None:
    """The schema of one place of the config; `policy` is the name of the policy that the path runs through."""
    node = root()
    for key in path:
        node = _variant(resolve(node), policy)
        inner = _step(node, key)
        if inner is None:
            return None
        node = inner
    return _variant(resolve(node), policy)


def _step(node: Node, key: str | int) -> Node | None:
    if isinstance(key, int):
        items: Node | None = node.get("items")
        return items
    properties: Mapping[str, Node] = node.get("properties", {})
    if key in properties:
        return properties[key]
    named: Node | None = next(iter(node.get("patternProperties", {}).values()), None)
    if named is not None:
        return named
    other = node.get("additionalProperties")
    return other if isinstance(other, Mapping) else None


def _variant(node: Node, policy: str | None) -> Node:
    """Of several policies the one that is meant; the node itself everywhere else."""
    for choice in node.get("oneOf", ()):
        variant = resolve(choice)
        if resolve(variant["properties"]["name"]).get("const") == policy and policy is not None:
            return variant
    return node


def keys_of(node: Node) -> tuple[str, ...]:
    """The keys that a table may hold, in the order of the models."""
    return tuple(node.get("properties", {}))


def allowed(node: Node) -> str:
    """In words, which values a place may hold."""
    node = resolve(node)
    if WORDS in node:
        return str(node[WORDS])
    choices = node.get("enum", [node["const"]] if "const" in node else [])
    if choices:
        return ", ".join(json.dumps(choice) for choice in choices)
    return _allowed_type(node)


def _allowed_type(node: Node) -> str:
    kind = str(node.get("type"))
    if kind in _JSON_NUMBERS:
        return _number(node, _JSON_NUMBERS[kind])
    if kind == "string":
        return _FORMATS.get(str(node.get("format")), "text in quotes")
    if kind == "array":
        return _array(node)
    return {"boolean": "true or false", "object": "a table"}.get(kind, "a value")


def _number(node: Node, noun: str) -> str:
    # Pydantic leaves its own names (`ge`, ...) in the schema of a key that may be left out.
    low, high = node.get("minimum", node.get("ge")), node.get("maximum", node.get("le"))
    above, below = node.get("exclusiveMinimum", node.get("gt")), node.get("exclusiveMaximum", node.get("lt"))
    limits = [
        f"above {_digits(above)}" if above is not None else "",
        f"from {_digits(low)}" if low is not None else "",
        "on" if low is not None and high is None and below is None else "",
        f"up to {_digits(high)}" if high is not None else "",
        f"and below {_digits(below)}" if below is not None else "",
    ]
    return " ".join([noun, *filter(None, limits)])


def _digits(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _array(node: Node) -> str:
    least, most = node.get("minItems"), node.get("maxItems")
    return "a list of texts" + (f", {least} or more" if least else "") + (f", at most {most}" if most else "")
