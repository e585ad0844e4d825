"""The load driver: its own process, confluent-kafka, so it shares no client code with us or with any Python peer.

It speaks JSON lines with `benchmarks.measure`: the task is its argument; it says `ready` when the peer may start, reads
the pids to watch from standard input, and ends with one `result` line.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from numpy.typing import NDArray

from benchmarks import job, stats, usage

FIRST_ANSWER_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 15.0
DUPLICATES_WAIT_S = 0.5
CHECKED_ANSWERS = 2_000
WARM_RATE_PER_S = 200
#: An open loop above this sends with a linger of 5 ms, below with 1 ms, as in the published baseline.
BUSY_RATE_PER_S = 5_000
#: Requests due within this time are sent together: a wake-up each would cost the broker's core more than it tells.
SEND_SLICE_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An open loop of one rate; the first `skip_s` are played, but not counted."""

    rate_per_s: float
    seconds: float
    skip_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the driver is asked to do: drain `requests`, or play `steps` where there are any."""

    bootstrap_servers: str
    requests_topic: str
    answers_topic: str
    partitions: int
    seed: int
    requests: int
    steps: tuple[Step, ...]
    model_files: tuple[str, ...]
    """Empty for loops that copy: then an answer must equal its request."""
    deadline_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    peer_pids: list[int]
    broker_pids: list[int]

    def sample(self) -> usage.Usage:
        return usage.sample(self.peer_pids, self.broker_pids)


@dataclass(slots=True)
class Received:
    """Answers in the order of arrival, kept raw: reading them would disturb what is being measured."""

    messages: list[Message] = field(default_factory=list)
    arrivals: list[stats.Arrival] = field(default_factory=list)

    def add(self, batch: list[Message]) -> None:
        good = [message for message in batch if message.error() is None]
        if good:
            self.messages.extend(good)
            self.arrivals.append(stats.Arrival(at_s=time.perf_counter(), count=len(self.messages)))

    def values(self) -> list[bytes]:
        return [message.value() or b"" for message in self.messages]

    def times_s(self) -> NDArray[np.float64]:
        """Arrival of each message."""
        counts = np.array([each.count for each in self.arrivals])
        return np.repeat([each.at_s for each in self.arrivals], np.diff(counts, prepend=0))


def say(event: str, **details: object) -> None:
    sys.stdout.buffer.write(orjson.dumps({"event": event, **details}) + b"\n")
    sys.stdout.buffer.flush()


def read_watched() -> Watched:
    return Watched(**orjson.loads(sys.stdin.buffer.readline()))


def open_producer(task: Task, linger_ms: int) -> Producer:
    return Producer(
        {
            "bootstrap.servers": task.bootstrap_servers,
            "linger.ms": linger_ms,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
        }
    )


def open_consumer(task: Task) -> Consumer:
    """Reads every answer from the start of the topic, without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap_servers,
            "group.id": "benchmark-driver",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(task.answers_topic, partition, 0) for partition in range(task.partitions)])
    return consumer


def fill(task: Task, values: list[bytes]) -> None:
    producer = open_producer(task, linger_ms=20)
    for index, value in enumerate(values):
        while True:
            try:
                producer.produce(task.requests_topic, value, key=job.request_key(index), headers=job.REQUEST_HEADERS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def check(
    task: Task, rows: NDArray[np.float64], requests: list[bytes], answers: list[bytes], first: int = 0
) -> stats.Correctness:
    """Check the answers to `requests`, whose ids count from `first`; labels are compared for a sample of them."""
    if not task.model_files:
        return stats.check_copies(answers, requests)
    models = job.load_models([Path(file) for file in task.model_files])
    sampled = np.unique(np.linspace(0, len(rows) - 1, CHECKED_ANSWERS).astype(int))
    labels = job.predict_labels(models, rows[sampled])
    right = dict(zip((sampled + first).tolist(), labels.tolist(), strict=True))
    return stats.check_labels(answers, len(requests), right)


def _cpu_s_per_1000(before: usage.Usage, after: usage.Usage, answers: int) -> float:
    return 1_000 * (after.peer_cpu_s - before.peer_cpu_s) / max(answers, 1)


def drain(task: Task) -> dict[str, Any]:
    """Fill the topic, let the peer start, time its answers between the 10 % and the 90 % one."""
    rows = job.request_rows(task.requests, task.seed)
    requests = job.encode_requests(rows)
    fill(task, requests)
    say("ready")
    watched = read_watched()
    consumer = open_consumer(task)
    received = Received()
    samples: list[tuple[int, usage.Usage]] = []
    marks = [int(stats.DRAIN_FROM * task.requests), int(stats.DRAIN_TO * task.requests)]
    gives_up_at = time.perf_counter() + FIRST_ANSWER_TIMEOUT_S
    while len(received.messages) < task.requests and time.perf_counter() < gives_up_at:
        batch = consumer.consume(10_000, 0.02)
        if batch:
            received.add(batch)
            gives_up_at = time.perf_counter() + STALL_TIMEOUT_S
            if len(samples) < len(marks) and len(received.messages) >= marks[len(samples)]:
                samples.append((len(received.messages), watched.sample()))
    rss_mib = watched.sample().peer_rss_mib
    received.add(consumer.consume(10_000, DUPLICATES_WAIT_S))
    consumer.close()
    result: dict[str, Any] = {
        "requests": task.requests,
        "answers": len(received.messages),
        "rss_mib": rss_mib,
        "rate_per_s": stats.drained_rate_per_s(received.arrivals, task.requests),
        **asdict(check(task, rows, requests, received.values())),
    }
    if len(samples) == len(marks):
        (first, before), (last, after) = samples
        result["cpu_s_per_1000"] = _cpu_s_per_1000(before, after, last - first)
        result["foreign_cores"] = usage.foreign_cores(before, after)
    return result


class OpenLoop:
    """Sends at Poisson times that never wait for answers; another thread notes when answers come in."""

    def __init__(self, task: Task, watched: Watched, values: list[bytes]) -> None:
        self._task = task
        self._watched = watched
        self._values = values
        self._consumer = open_consumer(task)
        self._producers = {linger_ms: open_producer(task, linger_ms) for linger_ms in (1, 5)}
        self._random = np.random.default_rng(task.seed)
        self._stop = threading.Event()
        self._receiver = threading.Thread(target=self._receive, name="receiver", daemon=True)
        self.received = Received()
        self.sent_at_s: NDArray[np.float64] = np.zeros(len(values))
        self.sent = 0
        self.late_s = 0.0
        self._receiver.start()

    def _receive(self) -> None:
        while not self._stop.is_set():
            first = self._consumer.poll(0.1)
            if first is not None:
                self.received.add([first, *self._consumer.consume(10_000, 0)])

    def _send_next(self, producer: Producer) -> None:
        index = self.sent
        self.sent_at_s[index] = time.perf_counter()
        producer.produce(
            self._task.requests_topic,
            self._values[index],
            key=job.request_key(index),
            headers=job.REQUEST_HEADERS,
        )
        self.sent += 1

    def warm(self, seconds: float) -> None:
        """One request at a time until the peer has answered one well, then a slow open loop.

        Of several processes one may be there first: until the others are it can only say that a request expired.
        """
        producer = self._producers[1]
        gives_up_at = time.perf_counter() + FIRST_ANSWER_TIMEOUT_S
        while not any(stats.outcome_is_ok(orjson.loads(value)) for value in self.received.values()):
            if time.perf_counter() > gives_up_at:
                raise TimeoutError(f"no answer within {FIRST_ANSWER_TIMEOUT_S:.0f} s of the peer's start")
            self._send_next(producer)
            producer.poll(0)
            time.sleep(0.05)
        self.send(int(seconds * WARM_RATE_PER_S), WARM_RATE_PER_S)

    def send(self, count: int, rate_per_s: float) -> None:
        """Send the next `count` requests at Poisson times; `late_s` is the latest any of them went out."""
        producer = self._producers[5 if rate_per_s > BUSY_RATE_PER_S else 1]
        due_s = time.perf_counter() + 0.01 + np.cumsum(self._random.exponential(1 / rate_per_s, count))
        self.late_s = 0.0
        for due in due_s.tolist():
            now = time.perf_counter()
            if due - now > SEND_SLICE_S:
                producer.poll(0)
                time.sleep(max(due - time.perf_counter(), 0.0))
                now = time.perf_counter()
            self.late_s = max(self.late_s, now - due)
            self._send_next(producer)
        producer.flush()

    def settle(self) -> None:
        """Wait until everything sent is answered, or nothing has come in for a while."""
        seen, quiet_since = -1, time.perf_counter()
        while len(self.received.messages) < self.sent and time.perf_counter() - quiet_since < STALL_TIMEOUT_S:
            if len(self.received.messages) != seen:
                seen, quiet_since = len(self.received.messages), time.perf_counter()
            time.sleep(0.02)

    def play(self, step: Step) -> dict[str, Any]:
        """One rate; what it cost is counted from the end of `skip_s` to the last request sent."""
        begun = self.sent
        self.send(int(step.rate_per_s * step.skip_s), step.rate_per_s)
        before, first, answered = self._watched.sample(), self.sent, len(self.received.messages)
        self.send(int(step.rate_per_s * (step.seconds - step.skip_s)), step.rate_per_s)
        after, backlog = self._watched.sample(), self.sent - len(self.received.messages)
        answered = len(self.received.messages) - answered
        self.settle()
        return {
            "offered_per_s": step.rate_per_s,
            "begun": begun,
            "first": first,
            "last": self.sent,
            "requests": self.sent - first,
            "backlog_s": backlog / step.rate_per_s,
            "sent_late_ms": 1_000 * self.late_s,
            "cpu_s_per_1000": _cpu_s_per_1000(before, after, answered),
            "foreign_cores": usage.foreign_cores(before, after),
            "rss_start_mib": before.peer_rss_mib,
            "rss_mib": after.peer_rss_mib,
        }

    def close(self) -> None:
        time.sleep(DUPLICATES_WAIT_S)  # a duplicate cannot be awaited, only given the time to show up
        self._stop.set()
        self._receiver.join()
        self._consumer.close()


def live(task: Task) -> dict[str, Any]:
    """Play the steps one after the other on one run of the peer."""
    rows = job.request_rows(task.requests, task.seed)
    requests = job.encode_requests(rows)
    say("ready")
    loop = OpenLoop(task, read_watched(), requests)
    loop.warm(seconds=2.0)
    loop.settle()
    steps = [loop.play(step) for step in task.steps]
    loop.close()
    values = loop.received.values()
    bodies = [orjson.loads(value) for value in values]
    indices = np.array([int(body["id"]) for body in bodies])
    is_ok = [stats.outcome_is_ok(body) for body in bodies]
    arrived = zip(indices.tolist(), loop.received.times_s().tolist(), is_ok, strict=True)
    latencies = stats.counted_latencies_ms(loop.sent_at_s[: loop.sent], arrived, task.deadline_ms)
    for step in steps:
        begun, first, last = step.pop("begun"), step.pop("first"), step.pop("last")
        own = latencies[first:last]
        own = own[~np.isnan(own)]
        step["answers"] = len(own)
        step["p50_ms"], step["p99_ms"], step["p999_ms"] = stats.percentiles_ms(own)
        step["growth"] = stats.growth(own)
        answers = [values[at] for at in np.flatnonzero((indices >= begun) & (indices < last))]
        step.update(asdict(check(task, rows[begun:last], requests[begun:last], answers, begun)))
    return {"steps": steps}


def read_task(text: str) -> Task:
    fields = orjson.loads(text)
    fields["steps"] = tuple(Step(**step) for step in fields["steps"])
    fields["model_files"] = tuple(fields["model_files"])
    return Task(**fields)


def main() -> None:
    # Nothing here makes cycles, and a collection in the middle would be charged to the peer.
    gc.disable()
    sys.setswitchinterval(0.0005)
    task = read_task(sys.argv[1])
    say("result", **(live(task) if task.steps else drain(task)))


if __name__ == "__main__":
    main()
