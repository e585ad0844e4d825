"""Sends texts and labels with a client that knows nothing of streamserve, and reads back what comes of them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import orjson
from confluent_kafka import KafkaError, Message

from examples.common.kafka import MOST_WAIT_S, AppEndedError, Kafka, place_of
from examples.sentiment.record import CEILING, CONTEXTS, ROUTES, Recording, Ref, Text

LABEL_DELAY_MEAN_S = 1.0
#: After the last text: so long for the last answers and for what was learnt last.
GRACE_S = 30.0
_KINDS = ("predictions", "outcomes", "epochs")
_LOOK_AT_APP_S = 0.5


class Planned:
    """Texts in the order of sending: every domain as often, none of them seen in training."""

    def __init__(
        self, texts: Sequence[str], labels: Sequence[int], domains: Sequence[str], n: int, seed: int = 0
    ) -> None:
        """All held-out texts; where n needs more of a domain than there are, they come again."""
        random = np.random.default_rng(seed)
        self.texts: list[tuple[str, str, int]] = []
        """Text, domain, label."""
        names = sorted(set(domains))
        by_domain = {name: [i for i, domain in enumerate(domains) if domain == name] for name in names}
        rounds = {name: iter(()) for name in names}
        for turn in range(n):
            if turn % len(names) == 0:
                order = [names[i] for i in random.permutation(len(names))]
            name = order[turn % len(names)]
            index = next(rounds[name], None)
            if index is None:
                rounds[name] = iter([by_domain[name][i] for i in random.permutation(len(by_domain[name]))])
                index = next(rounds[name])
            self.texts.append((texts[index], name, int(labels[index])))


class Load:
    """One run: sends each text to three routes, and the label of each answer a while after it."""

    def __init__(
        self,
        planned: Planned,
        run: Recording,
        *,
        per_second: float,
        bootstrap_servers: str,
        topics: Mapping[str, str],
        seed: int = 0,
    ) -> None:
        self._texts = planned.texts
        self._run = run
        self._random = np.random.default_rng(seed + 1)
        self._at_s = self._random.exponential(1 / per_second, len(self._texts)).cumsum()
        self._kafka = Kafka(bootstrap_servers, topics, _KINDS)
        self._due: list[tuple[float, Ref]] = []
        self._answered: dict[Ref, int | None] = {}
        self._learnt: set[tuple[int, int]] = set()

    def opened(self) -> AbstractContextManager[None]:
        """Read while the run goes on."""
        return self._kafka.opened()

    def go(self, tell: Callable[[float], None], app_lives: Callable[[], bool]) -> None:
        """Send everything, then wait for what is missing, `GRACE_S` at most.

        `tell`: called about ten times a second with the seconds since the start. Raises `AppEndedError`.
        """
        run, start_s, told_s, looked_s, index = self._run, time.monotonic(), -1.0, 0.0, 0
        last_s = float(self._at_s[-1])
        until_s = last_s + GRACE_S
        while (now_s := time.monotonic() - start_s) < until_s and not (now_s > last_s and self._all_read()):
            while index < len(self._texts) and self._at_s[index] <= now_s:
                self._send(index, now_s)
                index += 1
            self._send_labels(now_s)
            if now_s - told_s >= 0.1:
                tell(now_s)
                told_s = now_s
            if now_s - looked_s >= _LOOK_AT_APP_S:
                looked_s = now_s
                if not app_lives():
                    raise AppEndedError
            wait_s = self._at_s[index] - now_s if index < len(self._texts) else MOST_WAIT_S
            self._read(min(MOST_WAIT_S, max(0.001, wait_s)), now_s)
        run.refused = len(ROUTES) * len(run.texts) - len(run.refs)
        run.labels_learnt = len(self._learnt)
        for ref, answer in self._answered.items():
            number, route = run.refs.get(ref, (-1, ""))
            if number >= 0:
                run.texts[number].answers[route] = answer

    def _send(self, index: int, now_s: float) -> None:
        text, domain, label = self._texts[index]
        self._run.texts.append(Text(domain=domain, truth=label, sent_s=now_s))
        for route in ROUTES:
            headers = [("ss-route", route.encode()), ("ss-context", domain.encode())]

            def acknowledged(error: KafkaError | None, message: Message, route: str = route) -> None:
                if error is None:
                    self._run.refs[place_of(message)] = (index, route)

            self._kafka.send("requests", text.encode(), headers=headers, on_delivery=acknowledged)

    def _send_labels(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            _, ref = heapq.heappop(self._due)
            if ref not in self._run.refs:  # its prediction was read before its acknowledgement: look again
                heapq.heappush(self._due, (now_s + MOST_WAIT_S, ref))
                break
            index, route = self._run.refs[ref]
            if route == CEILING:  # learns nothing
                continue
            name = f"{ref[0]}-{ref[1]}"
            self._kafka.send(
                "feedback",
                orjson.dumps({"id": name, "label": self._run.texts[index].truth}),
                headers=[("ss-ref", name.encode())],
                partition=ref[0],
            )
            self._run.labels_sent += 1

    def _read(self, wait_s: float, now_s: float) -> None:
        for kind, message in self._kafka.read(wait_s):
            self._take(kind, message, now_s)

    def _take(self, kind: str, message: Message, now_s: float) -> None:
        value = message.value() or b""
        if kind == "epochs":
            key = (message.key() or b"").decode()
            self._run.states[key] = self._run.states.get(key, 0) + 1
        elif kind == "outcomes":
            body = orjson.loads(value)
            if body["primary"]:
                self._learnt.add((body["feedback"][0], body["feedback"][1]))
                index, route = self._run.refs.get((body["ref"][0], body["ref"][1]), (-1, ""))
                if route == CONTEXTS:
                    self._run.texts[index].losses = body["losses"]
        else:
            headers: Any = dict(message.headers() or ())
            partition, _, offset = headers["ss-ref"].decode().partition("-")
            self._answer((int(partition), int(offset)), orjson.loads(value), now_s)

    def _answer(self, ref: Ref, body: Any, now_s: float) -> None:
        if ref in self._answered:
            self._run.repeated += 1
            return
        labels = next((output["data"] for output in body["outputs"] if output["name"] == "label"), [None])
        self._answered[ref] = labels[0]
        heapq.heappush(self._due, (now_s + self._random.exponential(LABEL_DELAY_MEAN_S), ref))

    def _all_read(self) -> bool:
        run = self._run
        return not self._due and run.labels_sent <= len(self._learnt) and run.refs.keys() <= self._answered.keys()
