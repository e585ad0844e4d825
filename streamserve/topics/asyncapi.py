"""The topics as an AsyncAPI 3.0.0 document: channels, operations and messages with their Kafka bindings."""

from __future__ import annotations

from typing import Any

from streamserve.topics.catalogue import JSON, Header, Topic, TopicSpec, catalogue
from streamserve.topics.examples import EXAMPLES
from streamserve.topics.names import VERSION, Kind
from streamserve.topics.schemas import schema_file

_APP = "digits"
_PARTITIONS = 4
_REPLICATION = 3
_BINDING = "0.5.0"
_SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"
_ANYONE = "anyone"

_DESCRIPTION = f"""\
Predictions of machine-learning models over Kafka. Produce a record to the requests topic; its one terminal record \
comes on the predictions topic; tell what really happened on the feedback topic.

`{{app}}` is the name of an app and prefixes its topics. Partitions are chosen once per app (here: {_PARTITIONS}), the \
same for every topic; replicas are {_REPLICATION} where the cluster has as many brokers."""


def document() -> dict[str, Any]:
    """The document, as plain JSON values. Schemas are referred to by their place in the published folder."""
    topics = catalogue(_APP, _PARTITIONS, _REPLICATION)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "streamserve",
            "version": f"{VERSION}.0.0",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": JSON,
        "channels": {topic.spec.kind.value: _channel(topic) for topic in topics},
        "operations": {name: operation for topic in topics for name, operation in _operations(topic.spec).items()},
        "components": {"messages": {topic.spec.kind.value: _message(topic.spec) for topic in topics}},
    }


def _channel(topic: Topic) -> dict[str, Any]:
    kind = topic.spec.kind.value
    return {
        "address": topic.name.replace(_APP, "{app}", 1),
        "title": kind,
        "summary": topic.spec.purpose,
        "description": f"Written by {_names(topic.spec.written_by)}; read by {_names(topic.spec.read_by)}.",
        "parameters": {"app": {"description": "Name of the app.", "examples": [_APP]}},
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"}},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions,
                "replicas": topic.replication,
                "topicConfiguration": _configuration(topic),
                "bindingVersion": _BINDING,
            }
        },
    }


def _configuration(topic: Topic) -> dict[str, Any]:
    configs = topic.configs() | topic.tuning()
    typed: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in configs.items()}
    return {**typed, "cleanup.policy": topic.spec.cleanup.split(",")}


def _operations(spec: TopicSpec) -> dict[str, Any]:
    """What the app itself does with a topic: it sends what a role writes and receives what a role reads."""
    kind = spec.kind.value
    channel = {"$ref": f"#/channels/{kind}"}
    messages = [{"$ref": f"#/channels/{kind}/messages/{kind}"}]
    operations: dict[str, Any] = {}
    for action, roles in (("receive", spec.read_by), ("send", spec.written_by)):
        ours = [role for role in roles if role != _ANYONE]
        if ours:
            operations[f"{action}{kind.capitalize()}"] = {
                "action": action,
                "channel": channel,
                "summary": f"By {_names(tuple(ours))}.",
                "messages": messages,
            }
    if spec.kind is Kind.REQUESTS:
        answer = Kind.PREDICTIONS.value
        operations["receiveRequests"]["reply"] = {
            "channel": {"$ref": f"#/channels/{answer}"},
            "messages": [{"$ref": f"#/channels/{answer}/messages/{answer}"}],
        }
    return operations


def _message(spec: TopicSpec) -> dict[str, Any]:
    message: dict[str, Any] = {
        "name": spec.kind.value,
        "title": spec.kind.value,
        "summary": spec.purpose,
        "contentType": spec.content_type,
    }
    if spec.notes:
        message["description"] = spec.notes
    if spec.headers:
        message["headers"] = _headers(spec.headers)
    if any(header.name == "ss-ref" for header in spec.headers):
        message["correlationId"] = {"location": "$message.header#/ss-ref", "description": "The request's identity."}
    if spec.content_type == JSON:
        message["payload"] = {"schemaFormat": _SCHEMA_FORMAT, "schema": {"$ref": schema_file(spec.kind)}}
    if spec.key:
        key = {"type": "string", "description": f"The record key: {spec.key}."}
        message["bindings"] = {"kafka": {"key": key, "bindingVersion": _BINDING}}
    example = EXAMPLES.get(spec.kind)
    if example is not None:
        message["examples"] = [{"headers": dict(example.headers), "payload": example.value}]
    return message


def _headers(headers: tuple[Header, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {header.name: {"type": "string", "description": header.meaning} for header in headers},
        "required": [header.name for header in headers if header.always],
    }


def _names(roles: tuple[str, ...]) -> str:
    return ", ".join(roles)
