"""The page that explains the topics to people: generated, so that it says what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from streamserve.topics.catalogue import JSON, Topic, catalogue
from streamserve.topics.examples import EXAMPLES
from streamserve.topics.names import VERSION
from streamserve.topics.schemas import schema_file

_DAY_MS = 86_400_000
_SCALAR_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
_PARTITIONS = 4
_REPLICATION = 3

_HEAD = f"""\
# Topics

This folder is the contract between streamserve and other programs, in any language. It is generated from
`streamserve/topics/`; change it there and run `python -m streamserve.topics.publish topics`.

* [`asyncapi.json`](asyncapi.json): an AsyncAPI 3 document of every topic.
* `schemas/`: a JSON Schema (draft 2020-12) of each value that is JSON.

An app's topics are named `<app>.<kind>.v{VERSION}`. `streamserve topics plan CONFIG` shows how a Kafka differs from
what is said here, `streamserve topics create CONFIG` mends it, `streamserve topics check CONFIG` only says so; a
role refuses to start where they differ.

**What holds for all.** Every topic of an app has the same number of partitions, and a request's answers, prediction
and placed feedback stay in its partition. Times are the broker's (`LogAppendTime`). A request is known by its ref,
`<partition>-<offset>`, which is always unique; ids need not be. Header values are UTF-8 text. A reader ignores
fields and headers that it does not know. A topic may be kept longer, be replicated more and take larger records than
is said here.
"""


def page() -> str:
    """The page, as Markdown."""
    topics = catalogue("app", _PARTITIONS, _REPLICATION)
    parts = [_HEAD, _table(topics), *("\n".join(_section(topic)) for topic in topics)]
    return "\n".join(parts)


def _table(topics: tuple[Topic, ...]) -> str:
    lines = [
        "| topic | key | cleanup | kept | largest record | written by | read by |",
        "|---|---|---|---|---|---|---|",
    ]
    for topic in topics:
        spec = topic.spec
        cells = (
            f"[`<{topic.name.replace('.', '>.', 1)}`](#{spec.kind})",
            spec.key or "none",
            spec.cleanup,
            _kept(topic),
            f"{spec.max_message_bytes >> 20} MiB",
            ", ".join(spec.written_by),
            ", ".join(spec.read_by),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _kept(topic: Topic) -> str:
    return "newest of each key" if topic.retention_ms is None else f"{topic.retention_ms // _DAY_MS} days"


def _section(topic: Topic) -> Iterator[str]:
    spec = topic.spec
    yield f"## {spec.kind}\n\n{spec.purpose}\n"
    if spec.notes:
        yield f"{spec.notes}\n"
    if spec.headers:
        yield "| header | meaning |\n|---|---|"
        for header in spec.headers:
            yield f"| `{header.name}`{' (always)' if header.always else ''} | {header.meaning} |"
        yield ""
    if spec.value is None:
        return
    link = f" ([schema]({schema_file(spec.kind)}))" if spec.content_type == JSON else ""
    yield f"Value: `{spec.content_type}`{link}.\n"
    yield from _fields(spec.value)
    example = EXAMPLES.get(spec.kind)
    if example is not None:
        yield _example(example.key, example.headers, example.value)


def _fields(value: Any) -> Iterator[str]:
    schema = msgspec.json.schema(value)
    for name, definition in schema["$defs"].items():
        yield f"**{name}**: {definition.get('description', '')}\n"
        if "properties" not in definition:
            yield from _items(definition)
            continue
        required = definition.get("required", [])
        yield "| field | type | meaning |\n|---|---|---|"
        for field, of in definition["properties"].items():
            optional = "" if field in required else " (optional)"
            yield f"| `{field}`{optional} | {_type(of)} | {of.get('description', '')} |"
        yield ""


def _items(definition: dict[str, Any]) -> Iterator[str]:
    """The parts of a value that is written as a list."""
    yield "| place | type | meaning |\n|---|---|---|"
    for place, of in enumerate(definition["prefixItems"]):
        yield f"| {place} | {_type(of)} | {of.get('description', '')} |"
    yield ""


def _type(of: dict[str, Any]) -> str:
    """A JSON Schema type in a few words."""
    if "$ref" in of:
        words = str(of["$ref"]).rsplit("/", 1)[-1]
    elif "anyOf" in of:
        words = " or ".join(_type(one) for one in of["anyOf"])
    elif "enum" in of:
        words = "one of " + ", ".join(f"`{one}`" for one in of["enum"])
    elif "contentEncoding" in of:  # msgspec's word for bytes; MessagePack has bytes of its own
        words = "bytes"
    elif of.get("type") == "array":
        words = f"list of {_type(of['items'])}" if of.get("items") else "list"
    elif of.get("type") == "object":
        words = f"map to {_type(of.get('additionalProperties') or {})}"
    else:
        words = str(of.get("type", "any"))
    return words


def _example(key: str | None, headers: Any, value: Any) -> str:
    lines = [f"key      {key}", *(f"header   {name}: {text}" for name, text in headers.items())]
    text = _SCALAR_LIST.sub(_on_one_line, json.dumps(value, indent=2, ensure_ascii=False))
    return "\n".join(["Example:\n", "```text", *lines, "```\n", "```json", text, "```", ""])


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"
