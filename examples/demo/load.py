"""The application's side: images sent without waiting for answers, answers read, labels sent back some time later."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from confluent_kafka import KafkaError, Message

from examples.common.kafka import MOST_WAIT_S, AppEndedError, Kafka, place_of
from examples.demo.record import Recording, Ref, Request, Weights, header, read_ref, read_terminal, third_of
from streamserve.core.messages import I64, U8
from streamserve.core.selection.base import Policy

LABEL_DELAY_MEAN_S = 2.0
#: After the last request: so long for the last answers. A request's own deadline is far shorter.
GRACE_S = 5.0
_KINDS = ("requests", "predictions", "outcomes", "epochs")
_LEAST_WAIT_S = 0.001
_LOOK_AT_APP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told while the run goes on. Each call must be short: it runs between two requests."""

    third: Callable[[int], None]
    """A third of the run begins."""
    progress: Callable[[float], None]
    """Called about ten times a second, with the seconds since the start."""
    app_lives: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What is sent, and when."""

    bodies: Sequence[bytes]
    """One a request, in the order of sending."""
    truths: I64
    at_s: Sequence[float]
    """Seconds after the start; Poisson arrivals."""
    seconds: float


def plan_load(images: U8, labels: I64, *, seconds: float, per_second: float, seed: int = 0) -> Plan:
    """Poisson arrivals for so many seconds; images `[n, 784]` in random order, round after round."""
    random = np.random.default_rng(seed)
    n_gaps = int(per_second * seconds + 10 * math.sqrt(per_second * seconds) + 10)
    arrivals = random.exponential(1 / per_second, n_gaps).cumsum()
    at_s = arrivals[arrivals < seconds].tolist()
    rounds = -(-len(at_s) // len(images))
    order = np.concatenate([random.permutation(len(images)) for _ in range(max(1, rounds))])[: len(at_s)]
    bodies = [_body(image) for image in images]
    return Plan(
        bodies=[bodies[index] for index in order.tolist()],
        truths=labels[order],
        at_s=at_s,
        seconds=seconds,
    )


class Load:
    """One run: sends by plan, reads four topics, fills in the recording."""

    def __init__(
        self,
        plan: Plan,
        run: Recording,
        policy: Policy,
        *,
        bootstrap_servers: str,
        topics: Mapping[str, str],
        seed: int = 0,
    ) -> None:
        self._plan = plan
        self._run = run
        self._policy = policy
        self._random = np.random.default_rng(seed)
        self._kafka = Kafka(bootstrap_servers, topics, _KINDS)
        self._labels_due: list[tuple[float, Ref]] = []

    def opened(self) -> AbstractContextManager[None]:
        """Read while the run goes on."""
        return self._kafka.opened()

    def go(self, watch: Watch) -> None:
        """Send everything, then wait for what is still missing, `GRACE_S` at most.

        Raises `AppEndedError` when the app stops before that.
        """
        start_s = time.monotonic()
        self._run_loop(start_s, watch)
        self._kafka.flush(GRACE_S)
        until_s = time.monotonic() + GRACE_S
        while time.monotonic() < until_s and not self._all_read():
            self._read(MOST_WAIT_S)
        self._run.refused = len(self._run.requests) - len(self._run.refs)

    def _run_loop(self, start_s: float, watch: Watch) -> None:
        plan, third, told_s, looked_s = self._plan, -1, -1.0, 0.0
        next_index, n_requests = 0, len(plan.at_s)
        while (now_s := time.monotonic() - start_s) < plan.seconds or next_index < n_requests:
            if third_of(now_s, plan.seconds) != third:
                third = third_of(now_s, plan.seconds)
                watch.third(third)
            while next_index < n_requests and plan.at_s[next_index] <= now_s:
                self._send(next_index, now_s)
                next_index += 1
            self._send_labels(now_s)
            if now_s - told_s >= 0.1:
                watch.progress(now_s)
                told_s = now_s
            if now_s - looked_s >= _LOOK_AT_APP_S:
                looked_s = now_s
                if not watch.app_lives():
                    raise AppEndedError
            due_s = plan.at_s[next_index] if next_index < n_requests else plan.seconds
            wait_s = due_s - (time.monotonic() - start_s)
            self._read(min(MOST_WAIT_S, max(_LEAST_WAIT_S, wait_s)), now_s)

    def _send(self, index: int, now_s: float) -> None:
        run, at_s = self._run, self._plan.at_s[index]
        run.sent_late_ms = max(run.sent_late_ms, 1e3 * (now_s - at_s))
        truth = int(self._plan.truths[index])
        run.requests.append(Request(truth=truth, sent_s=now_s, third=third_of(now_s, self._plan.seconds)))

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is None:
                run.refs[place_of(message)] = index

        self._kafka.send("requests", self._plan.bodies[index], on_delivery=acknowledged)

    def _send_labels(self, now_s: float) -> None:
        while self._labels_due and self._labels_due[0][0] <= now_s:
            _, ref = heapq.heappop(self._labels_due)
            index = self._run.refs.get(ref)
            if index is None:  # its prediction was read before its acknowledgement: look again
                heapq.heappush(self._labels_due, (now_s + MOST_WAIT_S, ref))
                break
            name = f"{ref[0]}-{ref[1]}"
            self._kafka.send(
                "feedback",
                orjson.dumps({"id": name, "label": int(self._plan.truths[index])}),
                headers=[("ss-ref", name.encode())],
                partition=ref[0],
            )
            self._run.labels_sent += 1

    def _read(self, wait_s: float, now_s: float = math.inf) -> None:
        for kind, message in self._kafka.read(wait_s):
            self._take(kind, message, now_s)

    def _take(self, kind: str, message: Message, now_s: float) -> None:
        run = self._run
        append_ms, value = message.timestamp()[1], message.value() or b""
        if kind == "requests":
            run.appended_ms[place_of(message)] = append_ms
        elif kind == "predictions":
            headers: Any = message.headers()
            ref = read_ref(header(headers, "ss-ref")) or (-1, -1)
            known = run.terminals.setdefault(ref, [])
            known.append(read_terminal(value, append_ms))
            if len(known) == 1 and now_s < math.inf:
                heapq.heappush(self._labels_due, (now_s + self._random.exponential(LABEL_DELAY_MEAN_S), ref))
        elif kind == "outcomes":
            body = orjson.loads(value)
            run.losses.setdefault((body["ref"][0], body["ref"][1]), body["losses"])
        else:
            data = orjson.loads(value)["data"]
            state = self._policy.load(data, run.models)
            shares = self._policy.distribution(state, run.models).weights
            run.weights.append(Weights(append_ms=append_ms, shares=dict(zip(run.models, shares.tolist(), strict=True))))

    def _all_read(self) -> bool:
        run = self._run
        learnt = len(run.losses) >= run.labels_sent
        return learnt and all(ref in run.terminals and ref in run.appended_ms for ref in run.refs)


def _body(image: U8) -> bytes:
    pixels = {"name": "image", "shape": [1, image.size], "datatype": "FP64", "data": image.tolist()}
    return orjson.dumps({"inputs": [pixels]})
