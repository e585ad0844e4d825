"""Choice, prediction, feedback, outcome, state, choice: the loop closes without a broker."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from streamserve.core.effects import EmitOutcomes, EmitSnapshot, EmitState
from streamserve.core.epochs import EpochTable
from streamserve.core.events import Tick
from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import StateRecord
from streamserve.core.selection.base import Policy
from streamserve.core.selection.exp3 import Exp3
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.join import JoinOptions, JoinStage
from streamserve.kafka.intake import late_answers
from tests.core.stages.learning_case import (
    HOME,
    MODELS,
    NOW_MS,
    PARTITIONS,
    ack,
    assigned,
    decode,
    feedback,
    fetched,
    of_kind,
    outcomes,
    prediction,
    predictions,
    ready,
    rules_of,
    update_of,
)


@pytest.mark.parametrize("policy", [Hedge(), Exp3(eta=0.2, gamma=0.02)], ids=lambda policy: policy.name)
def test_feedback_moves_choices_to_the_model_that_is_right(policy: Policy) -> None:
    rules = rules_of(policy)
    table, join, update = (
        EpochTable(rules),
        JoinStage(rules, JoinOptions(partitions=PARTITIONS), decode, late_answers),
        update_of(policy),
    )
    join.handle(assigned(0), NOW_MS)
    ready(update)
    log: list[StateRecord] = []
    taught = 0
    for step in range(800):
        now_ms = NOW_MS + step * 10
        table.known_until(now_ms)
        choice = table.choose(0, np.zeros(1, np.int64), np.array([step]), np.array([now_ms]))
        chosen = [model for bit, model in enumerate(MODELS) if int(choice.chosen[0]) >> bit & 1]
        record = prediction(
            step, now_ms, chosen=chosen, members={model: [int(model == "a@1")] for model in chosen},
            probability=int(choice.probability[0]) / PROBABILITY_ONE, epoch=int(choice.epoch[0]),
        )  # fmt: skip
        join.handle(predictions(0, record, next_offset=step + 1), now_ms)
        for sent in of_kind(
            join.handle(fetched(feedback(step, ref=(0, step), append_ms=now_ms)), now_ms), EmitOutcomes
        ):
            join.handle(ack(sent), now_ms)
            place = {"partition": HOME, "append_ms": now_ms}
            placed = [dataclasses.replace(outcome, offset=taught, **place) for outcome in sent.outcomes]
            taught += len(placed)
            effects = [*update.handle(outcomes(*placed), now_ms), *update.handle(Tick(), now_ms)]
            for state in of_kind(effects, EmitState):
                log.append(dataclasses.replace(state.state, epoch=len(log), append_ms=now_ms))
                for snapshot in of_kind(update.handle(ack(state, len(log) - 1, now_ms), now_ms), EmitSnapshot):
                    update.handle(ack(snapshot), now_ms)
        table.apply(log[-1:])
    assert taught == 800
    assert 25 <= len(log) <= 40  # every 250 ms of 8 s
    last = table.choose(0, np.zeros(1_000, np.int64), np.arange(1_000), np.full(1_000, NOW_MS + 9_000))
    assert table.weights(0, last.epoch[:1])[0, 0] > 0.9
    assert int((last.chosen & np.uint64(1)).sum()) > 900
