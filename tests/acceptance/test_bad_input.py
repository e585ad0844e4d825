"""Bad input and bad models on a real broker: each request gets one terminal record, and its neighbours are answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, Headers, Seen, foreign_client, oip
from tests.acceptance.handmade import produce_by_hand
from tests.acceptance.running import PATIENCE, Up, metric, project, serving

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

MAX_BYTES = 100_000
KEPT_BYTES = 65_536
YEARS_MS = str(10 * 365 * 86_400_000).encode()
BUDGET_MS = 2_000
MODEL = """
import threading
import numpy as np

def numbers(batch):
    if batch.ndim != 2 or batch.shape[1] != 3:
        raise ValueError(f"takes rows of 3 numbers, not {batch.shape[1:]}")
    if batch.dtype == object or not np.isfinite(batch).all():
        raise ValueError("takes finite numbers only")
    return batch.sum(axis=1).astype(np.int64)

def length(batch):
    if any("\\x00" in text for text in batch):
        raise ValueError("takes no control characters")
    return np.array([len(text) for text in batch])

def raises(batch):
    raise RuntimeError("the disk of this model is full")

def miscounts(batch):
    return np.zeros(len(batch) + 1, np.int64)

def nan(batch):
    return np.full(len(batch), np.nan)

def huge(batch):
    return np.full((len(batch), 1_100_000), 10**17)

def hangs(batch):
    threading.Event().wait()
"""
BAD_MODELS = ("raises", "miscounts", "nan", "huge", "hangs")
CODECS = ("oip", "rows", "raw", "text")
POOLS = {
    "fused": f"[pools.main]\nmodels = {json.dumps(['numbers', 'length', *BAD_MODELS])}",
    "split": f'[pools.good]\nmodels = ["numbers", "length"]\n\n[pools.bad]\nmodels = {json.dumps(BAD_MODELS)}',
}


def config_of(form: str) -> str:
    parts = [
        f'[app]\nname = "APP"\npartitions = 2\nmax_request_bytes = {MAX_BYTES}',
        POOLS[form],
        *(f'[models.{name}]\nsource = "acceptance_models:{name}"' for name in ("numbers", "length", *BAD_MODELS)),
    ]
    for codec in CODECS:
        model = "length" if codec == "text" else "numbers"
        parts.append(f'[routes.{codec}]\nmodels = ["{model}"]\ninput = "{codec}"\ndeadline_ms = 20000')
    for model in BAD_MODELS:
        rest = f"decide_early = false\ndeadline_ms = {BUDGET_MS}"
        parts.append(f'[routes.alone-{model}]\nmodels = ["{model}"]\n{rest}')
        parts.append(f'[routes.default-{model}]\nmodels = ["{model}"]\ndefault = -1\n{rest}')
        parts.append(f'[routes.beside-{model}]\nmodels = ["numbers", "{model}"]\n{rest}')
    return "\n\n".join(parts)


@pytest.fixture(scope="module", params=["fused", "split"])
def up(
    request: pytest.FixtureRequest, broker: BrokerForTests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    config = project(folder, config=config_of(request.param), model=MODEL, servers=broker.bootstrap_servers)
    with serving(config, "--no-spares", state=folder / "state") as app:
        yield app
        print(f"{request.param}: stopped after {app.stop():.1f} s, a model hanging")


@pytest.fixture
def client(up: Up) -> Iterator[Foreign]:
    with foreign_client(up.ready) as foreign:
        yield foreign


def answering_port(up: Up) -> int:
    """Of the process that writes terminal records."""
    (port,) = [role["metrics_port"] for role in up.ready["roles"] if role["name"] in ("worker-main-0", "aggregate-0")]
    return int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request, and what is to become of it."""

    value: bytes | None
    headers: Headers = ()
    reason: str = ""
    """Empty: it is answered."""
    label: int | None = None
    id: str | None = None
    """As the value or a header says it."""
    outcome: str = "error"
    is_dead: bool = True


def json_tensor(data: str, shape: str = "[1,3]", datatype: str = "FP64") -> bytes:
    return f'{{"id":"known","inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'.encode()


def tensor(array: np.ndarray, **other: bytes) -> tuple[bytes, Headers]:
    told = {"ss-dtype": array.dtype.name.encode(), "ss-shape": ",".join(map(str, array.shape)).encode()}
    told |= {f"ss-{name}": content for name, content in other.items()}
    return array.tobytes(), list(told.items())


def good(codec: str, number: int) -> tuple[bytes, Headers, int]:
    """A value that can be used, its headers and its label; no two are alike, so that none comes from the cache."""
    last = 1_000 * CODECS.index(codec) + number
    match codec:
        case "oip":
            return oip([1.0, 2.0, float(last)], [1, 3], id="good"), (), 3 + last
        case "rows":
            return f"[1, 2, {last}]".encode(), (), 3 + last
        case "raw":
            return (*tensor(np.array([[1.0, 2.0, float(last)]])), 3 + last)
        case _:
            return ("ß" * number).encode(), (), number


def own_cases(codec: str) -> dict[str, Case]:
    """What is wrong in the value, by codec."""
    if codec == "oip":
        return {
            "not JSON": Case(value=b'{"inputs": [', reason="not_json"),
            "NaN": Case(value=json_tensor("[1,2,NaN]"), reason="not_json"),
            "crafted to close its neighbour": Case(value=b'{"x":"}', reason="not_json"),
            "not UTF-8": Case(value=b"\xff\xfe\x00", reason="not_json"),
            "a list": Case(value=b"[1,2,3]", reason="wrong_form"),
            "no inputs": Case(value=b'{"id":"known"}', reason="wrong_form", id="known"),
            "wrong datatype": Case(value=json_tensor("[1,2,3]", datatype="FP99"), reason="wrong_datatype", id="known"),
            "words for numbers": Case(value=json_tensor('["a","b","c"]'), reason="wrong_datatype", id="known"),
            "a number too large": Case(value=json_tensor("[1,2,1e999]"), reason="wrong_datatype"),
            "wrong shape": Case(value=json_tensor("[1,2,3]", shape="[2,3]"), reason="wrong_shape", id="known"),
            "a negative shape": Case(value=json_tensor("[1,2,3]", shape="[-1,3]"), reason="wrong_shape", id="known"),
            "no rows": Case(value=json_tensor("[]", shape="[0,3]"), reason="no_rows", id="known"),
            "wrong column count": Case(value=json_tensor("[1,2,3,4]", shape="[1,4]"), reason="refused", id="known"),
        }
    if codec == "rows":
        return {
            "not JSON": Case(value=b"[1, 2,", reason="not_json"),
            "NaN": Case(value=b"[[1, 2, NaN]]", reason="not_json"),
            "crafted to shift rows": Case(value=b"[1,2,3]],[[4,5,6]", reason="not_json"),
            "words": Case(value=b'{"id": "known", "rows": [["a", "b", "c"]]}', reason="wrong_datatype", id="known"),
            "rows of unequal length": Case(value=b"[[1, 2, 3], [4]]", reason="wrong_shape"),
            "objects": Case(value=b'[{"a": 1}]', reason="wrong_form"),
            "no rows": Case(value=b"[]", reason="no_rows"),
            "wrong column count": Case(value=b"[1, 2, 3, 4]", reason="refused"),
        }
    if codec == "raw":
        one = np.array([[1.0, 2.0, 3.0]])
        value, headers = tensor(one)
        return {
            "no headers": Case(value=value, reason="bad_header"),
            "unknown dtype": Case(value=value, headers=tensor(one, dtype=b"float99")[1], reason="wrong_datatype"),
            "too few bytes": Case(value=value[:-1], headers=headers, reason="wrong_shape"),
            "a shape that is none": Case(value=value, headers=tensor(one, shape=b"a,b")[1], reason="bad_header"),
            "a shape not UTF-8": Case(value=value, headers=tensor(one, shape=b"\xff")[1], reason="bad_header"),
            "NaN": _refused(np.array([[1.0, np.nan, 3.0]])),
            "wrong column count": _refused(np.array([[1.0, 2.0]])),
        }
    return {
        "not UTF-8": Case(value=b"\xff\xfe", reason="wrong_form"),
        "what the model refuses": Case(value=b"a\x00b", reason="refused"),
    }


def _refused(array: np.ndarray) -> Case:
    value, headers = tensor(array)
    return Case(value=value, headers=headers, reason="refused")


def shared_cases(codec: str) -> dict[str, Case]:
    """What is wrong in every codec alike."""
    value, headers, label = good(codec, 1)
    known = [*headers, ("ce_id", b"event-7")]

    def with_budget(budget: bytes) -> Case:
        return Case(value=value, headers=[*known, ("ss-deadline-ms", budget)], reason="bad_deadline", id="event-7")

    return {
        "empty": Case(value=b"", headers=known, reason="empty_value", id="event-7"),
        "tombstone": Case(value=None, headers=known, reason="empty_value", id="event-7"),
        "too large": Case(value=b" " * (MAX_BYTES + 1), headers=known, reason="too_large", id="event-7"),
        "budget of 0": with_budget(b"0"),
        "budget below 0": with_budget(b"-5"),
        "budget not a number": with_budget(b"soon"),
        "budget of 10 years": with_budget(YEARS_MS),
        "budget not UTF-8": Case(value=value, headers=[*known, ("ss-deadline-ms", b"\xff")], reason="bad_header"),
        "another header not UTF-8": Case(value=value, headers=[*headers, ("x-other", b"\xff\xfe")], label=label),
        "an id not UTF-8": Case(value=value, headers=[*headers, ("ce_id", b"\xff\xfe")], label=label),
        "late on arrival": Case(
            value=value, headers=[*headers, ("ss-deadline-ms", b"1")], reason="", outcome="expired", is_dead=False
        ),
    }


def check(case: Case, answer: Seen, name: str) -> None:
    told = answer.parameters
    if case.label is not None:
        assert (answer.outcome, answer.label) == ("ok", [case.label]), (name, told)
        return
    assert answer.outcome == case.outcome, (name, told)
    if case.reason:
        assert answer.reason == case.reason, (name, told)
        assert len(told["detail"]) > 10, (name, told)
    else:
        assert answer.reason in ("late_on_arrival", "deadline_passed", "shed"), (name, told)
    assert answer.json["outputs"] == []
    if case.id is not None:
        assert answer.json["id"] == answer.headers["ss-id"].decode() == case.id, name


@pytest.mark.parametrize("codec", CODECS)
def test_each_bad_request_gets_one_record_and_its_neighbours_are_answered(up: Up, client: Foreign, codec: str) -> None:
    cases = own_cases(codec) | shared_cases(codec)
    route = ("ss-route", codec.encode())
    before = {
        reason: metric(answering_port(up), "streamserve_requests_total", reason=reason) for reason in _reasons(cases)
    }
    for number, (name, case) in enumerate(cases.items(), 2):
        value, headers, _ = good(codec, number)
        client.send(case.value, tag=name, headers=[route, *case.headers], key=b"k", partition=0)
        client.send(value, tag=(name, "neighbour"), headers=[route, *headers], key=b"k", partition=0)
    answers = client.answers([*cases, *((name, "neighbour") for name in cases)])
    for number, (name, case) in enumerate(cases.items(), 2):
        check(case, answers[name], name)
        value, _, label = good(codec, number)
        check(Case(value=value, label=label), answers[name, "neighbour"], f"neighbour of {name}")
    for reason, count in _reasons(cases).items():
        assert metric(answering_port(up), "streamserve_requests_total", reason=reason) >= before[reason] + count
    check_one_record_each(client)
    check_dead_letters(client, cases)


def _reasons(cases: dict[str, Case]) -> Counter[str]:
    return Counter(case.reason for case in cases.values() if case.reason)


def check_one_record_each(client: Foreign) -> None:
    counted = Counter(record.ref for record in client.read("predictions"))
    assert {client.ref(tag): counted[client.ref(tag)] for tag in client.acknowledged} == dict.fromkeys(
        map(client.ref, client.acknowledged), 1
    )


def check_dead_letters(client: Foreign, cases: dict[str, Case]) -> None:
    """One for each value that could not be used, as it came, and none for any other."""
    mine = {client.ref(tag) for tag in client.acknowledged}
    found: dict[str, list[Seen]] = {}
    for letter in client.read("dlq"):
        place = letter.headers["__connect.errors.partition"] + b"-" + letter.headers["__connect.errors.offset"]
        if place.decode() in mine:
            found.setdefault(place.decode(), []).append(letter)
    dead = {client.ref(name): case for name, case in cases.items() if case.reason and case.is_dead}
    assert found.keys() == dead.keys()
    for ref, (letter, *more) in found.items():
        case = dead[ref]
        assert more == []
        assert letter.headers["ss-reason"].decode() == case.reason
        assert letter.headers["__connect.errors.exception.message"]
        assert (letter.key, letter.value) == (b"k", None if case.value is None else case.value[:KEPT_BYTES])
        assert ("ss-sha256" in letter.headers) == (len(case.value or b"") > KEPT_BYTES)


def test_unknown_routes_and_models_and_ids_used_twice(up: Up, client: Foreign) -> None:
    value, _, label = good("oip", 1)
    cases = {
        "no route": Case(value=value, reason="unknown_route", id="good"),
        "unknown route": Case(value=value, headers=[("ss-route", b"nowhere")], reason="unknown_route", id="good"),
        "route not UTF-8": Case(value=value, headers=[("ss-route", b"\xff")], reason="bad_header", id="good"),
        "unknown model": Case(value=value, headers=[("mlserver-model", b"gone")], reason="unknown_model", id="good"),
        "a model alone": Case(value=value, headers=[("mlserver-model", b"numbers")], label=label),
        "once": Case(value=value, headers=[("ss-route", b"oip")], label=label),
        "twice": Case(value=good("oip", 9)[0], headers=[("ss-route", b"oip")], label=12),
    }
    for name, case in cases.items():
        client.send(case.value, tag=name, headers=case.headers, key=b"k", partition=1)
    answers = client.answers(cases)
    for name, case in cases.items():
        check(case, answers[name], name)
    assert answers["once"].json["id"] == answers["twice"].json["id"] == "good"
    check_one_record_each(client)
    check_dead_letters(client, cases)


def test_a_header_name_that_is_not_utf8_stops_nobody(up: Up, client: Foreign) -> None:
    value, _, label = good("oip", 1)
    client.send(value, tag="before", headers=[("mlserver-model", b"numbers")], partition=0)
    client.flush()
    offset = produce_by_hand(client.servers, client.topics["requests"], 0, value, (b"\xff\xfe-odd", b"x"))
    client.acknowledged["by hand"] = (0, offset)
    client.send(value, tag="after", headers=[("mlserver-model", b"numbers")], partition=0)
    answers = client.answers(["before", "by hand", "after"])
    # It names no route, which this app needs: the rest of its headers was read.
    check(Case(value=value, reason="unknown_route", id="good"), answers["by hand"], "by hand")
    for name in ("before", "after"):
        check(Case(value=value, label=label), answers[name], name)
    check_one_record_each(client)


REASONS = {
    "raises": ("model_error", "row_error"),
    "miscounts": ("wrong_row_count",),
    "nan": ("not_finite",),
    "huge": ("output_too_large", "incompatible"),
    "hangs": ("late", "shed"),
}


@pytest.mark.parametrize("model", BAD_MODELS)
def test_a_bad_model_is_left_out_and_the_request_answered_in_time(up: Up, client: Foreign, model: str) -> None:
    tags = [(kind, number) for number in range(2 if model == "huge" else 5) for kind in ("beside", "default", "alone")]
    for kind, number in tags:
        value = oip([1.0, 2.0, float(number)], [1, 3], id=f"{kind}-{number}")
        client.send(value, tag=(kind, number), headers=[("ss-route", f"{kind}-{model}".encode())])
    answers = client.answers(tags)
    for (kind, number), answer in answers.items():
        told = answer.parameters
        assert told["total_ms"] <= BUDGET_MS * PATIENCE
        assert answer.json["id"] == f"{kind}-{number}"
        if kind == "beside":
            assert (answer.outcome, answer.label) == ("partial", [3 + number]), str(told)
            assert told["missing"] in [f"{model}@1={reason}" for reason in REASONS[model]]
        elif answer.outcome == "default":
            assert (kind, answer.label) == ("default", [-1]), told
        else:
            # What may be the request's own fault (an answer that is NaN, or too large) is no case for the default.
            assert kind == "alone" or model in ("nan", "huge"), told
            assert answer.outcome in ("error", "expired"), told
            assert answer.json["outputs"] == []
    check_one_record_each(client)
    counted = metric(answering_port(up), "streamserve_ensemble_members_missing_total", member=f"{model}@1")
    assert counted >= sum(kind == "beside" for kind, _ in tags)
