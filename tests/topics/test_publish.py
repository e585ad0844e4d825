"""The published contract: up to date, valid by AsyncAPI's own schema, and without a dangling reference."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from streamserve.topics import TOPICS, catalogue
from streamserve.topics.asyncapi import document
from streamserve.topics.publish import files, main, out_of_date

PUBLISHED = Path(__file__).parents[2] / "topics"
#: `schemas/3.0.0-without-$id.json` of the npm package @asyncapi/specs 6.11.1 (Apache-2.0, AsyncAPI Initiative),
#: unchanged; kept here so that the test needs neither npm nor a network.
ASYNCAPI_SCHEMA = Path(__file__).with_name("asyncapi-3.0.0.json.gz")


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    return Draft7Validator(json.loads(gzip.decompress(ASYNCAPI_SCHEMA.read_bytes())))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def resolves(pointer: str, root: Any) -> bool:
    for part in pointer.removeprefix("#/").split("/"):
        if part not in root:
            return False
        root = root[part]
    return True


def test_the_published_folder_is_up_to_date() -> None:
    assert out_of_date(PUBLISHED) == [], "run: python -m streamserve.topics.publish topics"


def test_the_document_is_valid_by_asyncapis_own_schema(validator: Draft7Validator) -> None:
    assert [error.message for error in validator.iter_errors(document())] == []


def test_the_document_describes_every_topic_with_its_kafka_settings() -> None:
    channels = document()["channels"]
    assert {channel["address"] for channel in channels.values()} == {f"{{app}}.{spec.kind}.v1" for spec in TOPICS}
    for topic in catalogue("a", 4, 3):
        binding = channels[topic.spec.kind]["bindings"]["kafka"]
        assert (binding["partitions"], binding["replicas"]) == (4, 3)
        configuration = binding["topicConfiguration"]
        assert configuration["cleanup.policy"] == topic.spec.cleanup.split(",")
        assert configuration["message.timestamp.type"] == "LogAppendTime"
        assert configuration.get("retention.ms") == topic.retention_ms


def test_a_fault_in_a_document_would_be_found(validator: Draft7Validator) -> None:
    faults = [
        lambda d: d["operations"]["receiveRequests"].update(action="consume"),
        lambda d: d["channels"]["requests"].update(adress="x"),
        lambda d: d["channels"]["requests"]["bindings"]["kafka"].update(partitions=0),
        lambda d: d["channels"]["requests"]["bindings"]["kafka"]["topicConfiguration"].update(
            {"cleanup.policy": "compact"}
        ),
        lambda d: d["components"]["messages"]["requests"]["headers"].update(type="map"),
        lambda d: d["info"].pop("version"),
    ]
    for fault in faults:
        broken = document()
        fault(broken)
        assert not validator.is_valid(broken)


def test_every_reference_leads_somewhere() -> None:
    texts = files()
    for path in (name for name in texts if name.endswith(".json")):
        root = json.loads(texts[path])
        for reference in references(root):
            local, _, pointer = reference.partition("#")
            assert local in {"", *texts}
            assert not pointer or resolves(f"#{pointer}", json.loads(texts[local]) if local else root), reference


def test_the_page_explains_every_topic_and_links_to_what_exists() -> None:
    page = files()["README.md"]
    for spec in TOPICS:
        assert f"\n## {spec.kind}\n" in page
        assert all(f"`{header.name}`" in page for header in spec.headers)
        assert f"(schemas/{spec.kind}.v1.json)" in page or f"schemas/{spec.kind}.v1.json" not in files()


def test_check_names_what_is_out_of_date_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 0
    (tmp_path / "README.md").write_text("old")
    (tmp_path / "schemas" / "gone.v1.json").write_text("{}")
    (tmp_path / "asyncapi.json").unlink()
    assert main([str(tmp_path), "--check"]) == 1
    words = capsys.readouterr().err
    assert "README.md, asyncapi.json, schemas/gone.v1.json" in words
    assert f"python -m streamserve.topics.publish {tmp_path}" in words
    assert (tmp_path / "README.md").read_text() == "old"
    assert main([str(tmp_path)]) == 0
    assert out_of_date(tmp_path) == []


def test_writing_leaves_other_files_of_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
