"""What the records of our own topics become, the malformed ones too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamserve.core.desk import ModelRules
from streamserve.core.effects import EmitDeadLetters, EmitPredictions
from streamserve.core.epochs import EpochTable
from streamserve.core.events import (
    AnswersFetched,
    Assigned,
    OutcomesFetched,
    Produced,
    RawAnswersFetched,
    RequestsFetched,
    Resume,
)
from streamserve.core.messages import Answers, Choice, DeadLetters
from streamserve.core.reasons import Outcome
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.static import Static
from streamserve.core.stages.fused import FusedStage
from streamserve.errors import ContractError
from streamserve.kafka import intake
from streamserve.kafka.codecs import encode_answers, encode_epoch, input_codec
from streamserve.kafka.codecs.hosts import decode_hosts, encode_hosts
from streamserve.kafka.codecs.switches import encode_switch
from streamserve.kafka.ports import At, Chunk
from streamserve.kafka.rawfetch import UNREADABLE_HEADER
from streamserve.topics.internal_values import HostsValue

OTHER_VERSION = msgspec.json.encode({"v": 9})


def answers(offset: int) -> Answers:
    one = np.zeros(1, np.int64)
    return Answers(
        partition=one, route="r", model="a@1", offsets=one + offset, row_starts=np.arange(2), labels=one, classes=None,
        probabilities=None, missing=one.astype(np.uint8), ids=[None], queue_ms=one.astype(np.int32),
        choice=Choice(chosen=one.astype(np.uint64), probability=one, epoch=one, stale=one.astype(bool)),
        inference_ms=one.astype(np.int32),
    )  # fmt: skip


def chunk(topic: str, *values: bytes | None) -> Chunk:
    n = len(values)
    return Chunk(
        at=At(topic, 0), offsets=np.arange(10, 10 + n), append_ms=np.full(n, 5), keys=[None] * n,
        values=list(values), headers=[()] * n, next_offset=10 + n, lag=7,
    )  # fmt: skip


class Rejects(list[DeadLetters]):
    def __call__(self, letters: DeadLetters) -> None:
        self.append(letters)

    def only(self) -> dict[str, Any]:
        (letters,) = self
        return {"source": letters.source, "offsets": letters.offsets.tolist(), "reasons": letters.reasons}


def state_of(value: bytes | None, *_place: Any) -> StateRecord:
    return intake.epoch_of(value, At("epochs", 0), 0, 0)


def state() -> StateRecord:
    return StateRecord(route="r", context="", policy="hedge", data={}, includes={}, partition=0)


def test_requests_bring_the_lag_behind_them() -> None:
    event = intake.requests_event(chunk("requests", b"x"))
    assert isinstance(event, RequestsFetched)
    assert event.requests.lag == {0: 7}


@pytest.mark.parametrize("damaged", [None, b"", b"\xff\xfe", b"\x80", encode_answers(answers(1))[0][:-9]])
def test_malformed_answers_are_rejected_and_the_others_used(damaged: bytes | None) -> None:
    rejects = Rejects()
    event = intake.answers_event(chunk("answers", damaged, encode_answers(answers(3))[0]), rejects)
    assert isinstance(event, AnswersFetched)
    assert [block.offsets.tolist() for block in event.blocks] == [[3]]
    assert event.positions == {0: 12}
    assert [block.log_offset.tolist() for block in event.blocks if block.log_offset is not None] == [[11]]
    assert rejects.only() == {"source": "answers", "offsets": [10], "reasons": ["malformed"]}


def test_raw_answers_are_decoded_when_asked_for() -> None:
    rejects = Rejects()
    value = encode_answers(answers(3))[0]
    event = intake.raw_answers_event(chunk("answers", value, b"\xff"), rejects)
    assert isinstance(event, RawAnswersFetched)
    (raw,) = event.blocks
    assert (raw.model, raw.offsets.tolist()) == ("a@1", [3])
    assert rejects.only()["offsets"] == [11]
    late = intake.late_answers(raw.value, 0)
    assert late is not None
    assert late.offsets.tolist() == [3]


def test_late_answers_that_contradict_themselves_are_none() -> None:
    block = msgspec.msgpack.decode(encode_answers(answers(3))[0])
    assert intake.late_answers(msgspec.msgpack.encode(block | {"ids": []}), 0) is None


def test_malformed_outcomes_and_states_are_rejected() -> None:
    rejects = Rejects()
    event = intake.outcomes_event(chunk("outcomes", b"{}"), rejects)
    assert isinstance(event, OutcomesFetched)
    assert event.outcomes.records == ()
    assert rejects.only() == {"source": "outcomes", "offsets": [10], "reasons": ["malformed"]}
    rejects.clear()
    found = intake.states_of(chunk("epochs", b"[", encode_epoch(state())), state_of, "epochs", rejects).states
    assert [record.route for record in found] == ["r"]
    assert rejects.only() == {"source": "epochs", "offsets": [10], "reasons": ["malformed"]}


def test_another_version_stops_the_role_in_words() -> None:
    with pytest.raises(ContractError, match="its version is 9"):
        intake.outcomes_event(chunk("outcomes", OTHER_VERSION), Rejects())
    for event_of in (intake.answers_event, intake.raw_answers_event):
        with pytest.raises(ContractError, match="its version is 9"):
            event_of(chunk("answers", msgspec.msgpack.encode({"v": 9})), Rejects())


@pytest.mark.parametrize(
    ("value", "reason", "is_whole"),
    [
        (None, "malformed", False),
        (b"", "malformed", False),
        (encode_epoch(state())[:-9], "malformed", False),
        (OTHER_VERSION, "other_version", True),
    ],
)
def test_a_state_that_cannot_be_read_is_told_of_and_the_others_are_kept(
    value: bytes | None, reason: str, is_whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rejects, fetched = Rejects(), chunk("epochs", encode_epoch(state()), value)
    found = intake.states_of(replace(fetched, keys=[b"r", b"r/de"]), state_of, "epochs", rejects)
    assert [record.route for record in found.states] == ["r"]
    (unreadable,) = found.unreadable
    assert (unreadable.route, unreadable.context, unreadable.epoch, unreadable.is_whole) == ("r", "de", 11, is_whole)
    assert rejects.only() == {"source": "epochs", "offsets": [11], "reasons": [reason]}
    assert "the last good one is kept" in caplog.text


def test_a_worker_says_what_it_hosts() -> None:
    record = encode_hosts("main", "0", ["a@1", "b@2"])
    assert record.key == b"main/0"
    value = msgspec.json.decode(record.value or b"", type=HostsValue)
    assert value == HostsValue(v=1, pool="main", instance="0", models=["a@1", "b@2"])


def test_a_worker_says_which_arrays_its_plans_hold_and_small_ones_are_left_out() -> None:
    held = {"a@1": {"ab": 9_000, "cd": 8}, "b@2": {"ab": 9_000}}
    record = encode_hosts("main", "0", ["a@1", "b@2", "c@1"], held)
    hosts = decode_hosts(record.value, "here")
    assert hosts is not None
    assert hosts.plans == {"a@1": {"ab": 9_000}, "b@2": {"ab": 9_000}}
    assert decode_hosts(None, "here") is None
    assert decode_hosts(encode_switch("a@1", disabled=True).value, "here") is None
    assert intake.switches_of(chunk("models", record.value)).switches == ()


def test_each_offset_that_cannot_be_read_at_all_gets_one_terminal_record_and_a_dead_letter() -> None:
    route = Route(name="r", models=("a@1",), policy=Static(), combine="vote", deadline_ms=100)
    rules = AppRules(routes=(route,))
    stage = FusedStage(rules, {"a@1": ModelRules(model="a@1")}, {"oip": input_codec("oip", 1 << 20)}, EpochTable(rules))
    stage.handle(Assigned(partitions={0: Resume(position=10)}), 5)
    lost = replace(chunk("requests", None, None), headers=[((UNREADABLE_HEADER, b"its compression"),)] * 2)
    effects = stage.handle(intake.requests_event(lost), 6)
    (buried,) = (effect for effect in effects if isinstance(effect, EmitDeadLetters))
    assert buried.letters.offsets.tolist() == [10, 11]
    assert buried.letters.headers[0][0][0] == UNREADABLE_HEADER
    assert not any(isinstance(effect, EmitPredictions) for effect in effects)  # not before the dead letters are safe
    effects = stage.handle(Produced(token=buried.token, offsets={0: 3}), 7)
    (emitted,) = (effect.predictions for effect in effects if isinstance(effect, EmitPredictions))
    assert emitted.offsets.tolist() == [10, 11]
    assert {Outcome(code) for code in emitted.outcome.tolist()} == {Outcome.ERROR}
