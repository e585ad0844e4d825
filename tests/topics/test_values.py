"""The types of the values: what they accept, and that they agree with the core's words."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from jsonschema import Draft202012Validator

from streamserve.core import reasons
from streamserve.topics import TOPICS, Kind, spec_of
from streamserve.topics import values as v
from streamserve.topics.examples import EXAMPLES
from streamserve.topics.schemas import schema, schemas

JSON_KINDS = list(schemas())


def test_outcomes_and_reasons_are_those_of_the_core() -> None:
    assert set(get_args(v.Outcome)) == {str(outcome) for outcome in reasons.Outcome}
    assert set(get_args(v.Reason)) == {str(reason) for reason in reasons.Reason}


def test_every_topic_with_json_values_has_an_example() -> None:
    assert set(EXAMPLES) == set(JSON_KINDS)


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_a_schema_is_valid_by_its_own_dialect(kind: Kind) -> None:
    Draft202012Validator.check_schema(schema(kind))


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_an_example_is_what_type_and_schema_say(kind: Kind) -> None:
    example = EXAMPLES[kind].value
    Draft202012Validator(schema(kind)).validate(example)
    value = msgspec.json.decode(msgspec.json.encode(example), type=spec_of(kind).value)
    assert msgspec.json.decode(msgspec.json.encode(value)) == example


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_an_example_uses_only_fields_and_headers_that_are_declared(kind: Kind) -> None:
    strict = schema(kind)
    for definition in strict["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    Draft202012Validator(strict).validate(EXAMPLES[kind].value)
    headers = {header.name: header.always for header in spec_of(kind).headers}
    assert set(EXAMPLES[kind].headers) <= set(headers)
    assert {name for name, always in headers.items() if always} <= set(EXAMPLES[kind].headers)


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_unknown_fields_are_ignored_so_that_a_field_may_be_added(kind: Kind) -> None:
    example = {**EXAMPLES[kind].value, "a_field_of_tomorrow": [1]}
    Draft202012Validator(schema(kind)).validate(example)
    msgspec.json.decode(msgspec.json.encode(example), type=spec_of(kind).value)


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_a_value_without_a_required_field_is_refused_by_type_and_schema(kind: Kind) -> None:
    example = dict(EXAMPLES[kind].value)
    required = {Kind.REQUESTS: "inputs", Kind.PREDICTIONS: "parameters", Kind.FEEDBACK: "label"}.get(kind, "v")
    del example[required]
    assert not Draft202012Validator(schema(kind)).is_valid(example)
    if kind is not Kind.FEEDBACK:  # "a label or a reward" is the schema's to say; the codec reports it with a reason
        with pytest.raises(msgspec.ValidationError, match=required):
            msgspec.json.decode(msgspec.json.encode(example), type=spec_of(kind).value)


@pytest.mark.parametrize("kind", [kind for kind in JSON_KINDS if "v" in EXAMPLES[kind].value])
def test_another_version_is_refused(kind: Kind) -> None:
    example = {**EXAMPLES[kind].value, "v": 2}
    assert not Draft202012Validator(schema(kind)).is_valid(example)
    with pytest.raises(msgspec.ValidationError, match="v"):
        msgspec.json.decode(msgspec.json.encode(example), type=spec_of(kind).value)


def test_a_null_label_is_a_label() -> None:
    validator = Draft202012Validator(schema(Kind.FEEDBACK))
    assert validator.is_valid({"id": "a", "label": None})
    assert validator.is_valid({"id": "a", "reward": 0.5})
    assert not validator.is_valid({"id": "a"})
    assert msgspec.json.decode(b'{"label": null}', type=v.FeedbackValue).label is None
    assert msgspec.json.decode(b'{"id": "a"}', type=v.FeedbackValue).label is msgspec.UNSET


def test_every_field_of_a_users_value_is_explained() -> None:
    obvious = {
        "OutputTensor.datatype",
        "PredictionValue.parameters",
        "RequestedOutput.name",
        "RequestedOutput.parameters",
    }
    for kind in (Kind.REQUESTS, Kind.PREDICTIONS, Kind.FEEDBACK):
        for name, definition in schema(kind)["$defs"].items():
            bare = {f"{name}.{field}" for field, of in definition["properties"].items() if not of.get("description")}
            assert bare <= obvious


def test_a_topic_of_bytes_is_described_by_its_headers() -> None:
    assert [spec.kind for spec in TOPICS if spec.value is None] == [Kind.DLQ]
    assert {"__connect.errors.topic", "ss-reason"} <= {header.name for header in spec_of(Kind.DLQ).headers}
