"""Models in processes of their own: real children that crash, hang, leak, multiply and talk."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelAway, ModelError, ModelRaised
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes import ModelSpec, load, system
from streamserve.runtimes.isolated import IsolatedRuntime
from streamserve.runtimes.isolation import Limits
from streamserve.runtimes.plain import plain_outputs
from tests.acceptance.running import PATIENCE
from tests.processes import alive

MIB = 1 << 20
BACK_S = 2.0
WAIT_S = 20.0
# A good call must not take so long, on a machine that has other work, too.
LIMITS = Limits(memory_bytes=256 * MIB, call_timeout_ms=1_500)
MODEL = """
    import ctypes, os, signal, subprocess, sys, threading, time
    import numpy as np
    from streamserve.runtimes import RowError, report_metric

    held = []

    def threads():
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    def leak():
        while True:
            held.append(np.ones(1 << 17))

    def loop():
        while True:
            pass

    def escape():
        # a grandchild that leaves the group and outlives its parent
        subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
        os._exit(0)

    def shrink():
        for fd in os.listdir("/proc/self/fd"):
            try:
                if "memfd" in os.readlink(f"/proc/self/fd/{fd}"):
                    os.ftruncate(int(fd), 0)
            except OSError as error:
                held.append(error)

    def talk():
        print("on standard output")
        os.write(1, b"past the interpreter\\n")
        print("on standard error", file=sys.stderr)

    DO = {
        1: lambda: ctypes.string_at(0),
        2: lambda: os._exit(3),
        3: loop,
        4: leak,
        5: threads,
        6: talk,
        7: lambda: [print("line", i) for i in range(20_000)],
        8: escape,
        9: lambda: sys.exit(4),
        10: shrink,
        11: lambda: os.write(int(sys.argv[1]), b"what nobody asked for" * 10),
        12: lambda: held.append(open("/etc/shadow").read()),
        14: lambda: [threading.Thread(target=loop, daemon=True).start() for _ in range(os.cpu_count() + 1)],
    }

    def model(batch):
        DO.get(int(batch[0, 0]), lambda: None)()
        report_metric("rows", len(batch))
        return {"labels": batch[:, 0].astype(np.int64), "probabilities": np.full((len(batch), 2), 0.5),
                "classes": np.array(["no", "yes"])}

    model.sample = lambda: np.zeros((1, 2), np.float32)

    def user(batch):
        return np.full(len(batch), os.getuid())

    def rows(batch):
        return [RowError("no such row") if value < 0 else str(value) for value in batch[:, 0]]

    def echo(batch):
        return batch

    def upper(batch):
        return [text.upper() for text in batch]

    def writes(batch):
        batch[:] = 0
        return batch[:, 0]

    def strange(batch):
        return np.full(len(batch), 1j)

    def environment(batch):
        return np.array([[int(os.environ["OMP_NUM_THREADS"]), os.nice(0)]] * len(batch))

    class Closing:
        def __call__(self, batch):
            return batch[:, 0]
        def close(self):
            open("closed", "w").close()
    closing = Closing()

    def broken(batch):
        raise KeyError("column")
    broken.sample = lambda: np.zeros((1, 2))

    def never():
        time.sleep(600)
"""
TROUBLE = {
    "a segmentation fault": (1, r"was ended by signal 11 \(SIGSEGV\)"),
    "os._exit": (2, r"ended by itself with code 3"),
    "an endless loop": (3, r"a call took longer than 1500 ms \(call_timeout_ms\)"),
    "a leak": (4, r"it had \d+ MiB of memory, 256 MiB are allowed \(memory_bytes\)"),
    "a thread bomb": (5, r"it had \d+ threads, 64 are allowed \(most_threads\)"),
    "nonsense on the channel": (11, r"did not speak as agreed"),
}
QUICK = ("a segmentation fault", "an endless loop")
"""Part of the fast tests; a child costs a tenth of a second and more."""
needs_proc = pytest.mark.skipif(not system.CAN_WATCH, reason="needs /proc")
needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs affinity and two cores"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "isolated_app.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def isolated() -> Iterator[Callable[..., IsolatedRuntime]]:
    made: list[IsolatedRuntime] = []

    def make(function: str = "model", limits: Limits = LIMITS, name: str = "m") -> IsolatedRuntime:
        runtime = load(replace(spec(function, limits), name=name))
        assert isinstance(runtime, IsolatedRuntime)
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.close()


def spec(function: str, limits: Limits | None = LIMITS) -> ModelSpec:
    return ModelSpec(name="m", version="1", source=f"isolated_app:{function}", isolation=limits)


def batch(first: float = 0, rows: int = 3) -> AnyArray:
    return np.full((rows, 2), first, np.float32)


def until(true: Callable[[], object], within_s: float = WAIT_S) -> float:
    """Seconds until it is true."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < within_s
        time.sleep(0.002)
    return time.monotonic() - started


def answers(runtime: IsolatedRuntime) -> bool:
    try:
        return runtime.predict(batch()).labels.tolist() == [0, 0, 0]
    except ModelAway:
        return False


# -- answers


def same(one: Outputs, other: Outputs) -> None:
    assert one.labels.dtype == other.labels.dtype
    assert one.labels.tolist() == other.labels.tolist()
    assert dict(one.row_errors) == dict(other.row_errors)
    assert dict(one.metrics) == dict(other.metrics)
    for mine, theirs in ((one.probabilities, other.probabilities), (one.classes, other.classes)):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("function", ["model", "rows", "echo"])
def test_a_process_answers_as_a_thread_does(isolated: Callable[..., IsolatedRuntime], function: str) -> None:
    in_thread, in_process = load(spec(function, None)), isolated(function)
    for rows in (1, 3, 64):
        for first in (-1.0, 0.5, 40.0):
            same(in_process.predict(batch(first, rows)), plain_outputs(in_thread.predict(batch(first, rows))))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "i1", "u8", ">i4", "?", "U5", "M8[s]"])
def test_arrays_of_any_plain_type_go_and_come(isolated: Callable[..., IsolatedRuntime], dtype: str) -> None:
    sent = np.arange(24).reshape(6, 4).astype(dtype)[:, ::2]
    same(isolated("echo").predict(sent), plain_outputs(Outputs(labels=sent)))


def test_texts_go_and_come(isolated: Callable[..., IsolatedRuntime]) -> None:
    texts = np.array(["ä", "b" * 100_000, ""], dtype=object)
    assert isolated("upper").predict(texts).labels.tolist() == ["Ä", "B" * 100_000, ""]


def test_batches_grow_and_shrink(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated("echo")
    for rows in (0, 0, 1, 100_000, 100_000, 0, 0, 3, 3, 1_000_000, 7, 1_000_000):
        sent = np.random.default_rng(rows).random((rows, 2))
        sent.flags.writeable = False
        assert np.array_equal(runtime.predict(sent).labels, sent)


def test_an_answer_stays_as_it_was_when_the_next_one_comes(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated("echo")
    first = runtime.predict(batch(1))
    runtime.predict(batch(2))
    assert (first.labels == 1).all()


def test_what_a_model_raises_is_told_and_ends_nothing(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated("writes")
    with pytest.raises(ModelRaised, match=r"^ValueError: .*read-only"):
        runtime.predict(batch(1))
    runtime = isolated()
    with pytest.raises(ModelRaised, match=r"^SystemExit: 4"):
        runtime.predict(batch(9))
    with pytest.raises(ModelRaised, match=r"^ModelError: the model answered labels of dtype complex128") as raised:
        isolated("strange").predict(batch())
    assert raised.value.exception == "streamserve.errors.ModelError"
    assert "Traceback" in raised.value.stack
    assert "plain.py" in raised.value.stack
    assert (runtime.restarts, runtime.away) == (0, "")


def test_a_batch_that_no_process_can_take_is_refused_here(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated()
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        runtime.predict(np.zeros(2, dtype=[("a", "i4")]))
    assert answers(runtime)


def test_its_own_sample_is_known(isolated: Callable[..., IsolatedRuntime]) -> None:
    sample = isolated().sample()
    assert sample is not None
    assert (sample.shape, sample.dtype) == ((1, 2), np.float32)
    assert isolated("echo").sample() is None


# -- trouble


@needs_proc
@pytest.mark.parametrize(
    "trouble", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TROUBLE]
)
def test_a_process_that_ends_is_told_of_and_is_back(isolated: Callable[..., IsolatedRuntime], trouble: str) -> None:
    what, words = TROUBLE[trouble]
    # On a busy machine a leak takes longer to reach its limit than a call may last.
    limits = replace(LIMITS, call_timeout_ms=60_000) if trouble == "a leak" else LIMITS
    runtime, other = isolated(limits=limits), isolated()
    with pytest.raises(ModelAway, match=rf"^model m@1: its process .*{words}"):
        runtime.predict(batch(what))
    assert answers(other)
    started = time.monotonic()
    with pytest.raises(ModelAway, match=words):
        runtime.predict(batch())
    assert time.monotonic() - started < 0.1 * PATIENCE  # at once: nobody waits for it
    assert "it is started again" in runtime.away or "its process" in runtime.away
    assert until(lambda: answers(runtime)) <= BACK_S * PATIENCE
    assert (runtime.restarts, other.restarts, runtime.away) == (1, 0, "")


@pytest.mark.slow
def test_it_is_back_in_time_however_often_it_ends(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated()
    for _ in range(6):
        with pytest.raises(ModelAway):
            runtime.predict(batch(2))
        assert until(lambda: answers(runtime)) <= BACK_S * PATIENCE
    assert runtime.restarts == 6


@pytest.mark.slow
def test_it_is_back_where_the_system_offers_less(
    isolated: Callable[..., IsolatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((os, "waitid"), (os, "sched_getaffinity"), (fcntl, "F_SETPIPE_SZ")):
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(system, "usage_of", lambda _pid: None)
    runtime = isolated()
    for what, words in TROUBLE["os._exit"], TROUBLE["an endless loop"]:
        assert answers(runtime)
        with pytest.raises(ModelAway, match=words):
            runtime.predict(batch(what))
        assert until(lambda: answers(runtime)) <= BACK_S * PATIENCE
    assert runtime.state().memory_bytes == 0


@needs_proc
@needs_root
def test_what_a_model_has_started_ends_with_it(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated()
    user = system.own_user_of(runtime.pid or 0)
    assert user is not None
    with pytest.raises(ModelAway, match="ended by itself with code 0"):
        runtime.predict(batch(8))

    def left() -> list[int]:
        processes = psutil.process_iter(["uids", "status"])
        return [p.pid for p in processes if p.info["uids"].real == user and p.info["status"] != psutil.STATUS_ZOMBIE]

    until(lambda: not left())


def test_what_it_prints_goes_to_the_log_under_its_name(
    isolated: Callable[..., IsolatedRuntime], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = isolated()
    with caplog.at_level(logging.INFO, "streamserve"):
        runtime.predict(batch(6))
        for line in ("on standard output", "past the interpreter", "on standard error"):
            until(lambda line=line: f"model m@1 says: {line}" in caplog.text)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_flood_of_lines_is_cut_and_counted(
    isolated: Callable[..., IsolatedRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    runtime = isolated(limits=Limits())
    with caplog.at_level(logging.INFO, "streamserve"):
        runtime.predict(batch(7))
        until(lambda: runtime.predict(batch(6)) and "says too much" in caplog.text)
    assert len(caplog.records) < 1_000


def test_what_is_alike_but_in_other_memory_is_read_anew(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated("rows")
    for first in (1.0, -1.0, 1.0, 2.0):  # texts, refused rows, and back
        outputs = runtime.predict(batch(first))
        assert len(outputs.row_errors) == (3 if first < 0 else 0)
        assert first < 0 or outputs.labels.tolist() == [str(first)] * 3
    runtime = isolated("echo")
    for dtype in ("f8", "i8", "f8", "f4"):
        assert runtime.predict(batch(7).astype(dtype)).labels.dtype == dtype


@needs_proc
def test_a_process_cannot_cut_off_what_its_worker_reads(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated()
    assert runtime.predict(batch(10)).labels.tolist() == [10] * 3
    assert answers(runtime)


@needs_proc
@pytest.mark.slow
def test_nothing_is_left_of_processes_that_have_ended(isolated: Callable[..., IsolatedRuntime]) -> None:
    def held() -> tuple[int, int, list[str]]:
        maps = Path("/proc/self/maps").read_text().count("memfd:streamserve")
        return len(os.listdir("/proc/self/fd")), maps, os.listdir("/dev/shm")

    runtime = isolated()
    runtime.predict(batch())
    before = held()
    for _ in range(3):
        with pytest.raises(ModelAway):
            runtime.predict(batch(2))
        until(lambda: answers(runtime))
    assert held() == before


@needs_proc
@pytest.mark.parametrize(
    "busy", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["idle", "in an endless loop"]
)
def test_no_process_survives_a_worker_that_is_killed(app: Path, *, busy: bool) -> None:
    program = f"""
        import numpy as np
        from streamserve.runtimes import ModelSpec, load
        from streamserve.runtimes.isolation import Limits
        limits = Limits(call_timeout_ms=600_000)
        runtime = load(ModelSpec(name="m", version="1", source="isolated_app:model", isolation=limits))
        print(runtime.pid, flush=True)
        runtime.predict(np.full((1, 2), {3 if busy else 0}, np.float32))
        print("done", flush=True)
        input()
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with worker:
        assert worker.stdout is not None
        child = psutil.Process(int(worker.stdout.readline()))
        if busy:
            until(lambda: child.cpu_times().user > 0.5 and child.status() == psutil.STATUS_RUNNING)
        else:
            worker.stdout.readline()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert alive([child], WAIT_S) == []


# -- in a worker


@pytest.mark.slow
def test_a_workers_runner_tells_who_is_away_and_blames_no_process(isolated: Callable[..., IsolatedRuntime]) -> None:
    asyncio.run(_away(isolated))


async def _away(isolated: Callable[..., IsolatedRuntime]) -> None:
    ends: asyncio.Queue[BatchFinished] = asyncio.Queue()
    # A good call must not take so long, on a machine that has other work, too.
    patient = replace(LIMITS, call_timeout_ms=3_000)
    runtime = isolated(limits=patient)
    runner = ModelRunner({"m@1": runtime, "n@1": isolated("echo", name="n", limits=patient)}, ends.put_nowait)
    assert runner.away() == []
    runner.submit(1, "m@1", batch(3))
    runner.submit(2, "n@1", batch(5))
    first = await asyncio.wait_for(ends.get(), WAIT_S)
    assert (first.batch, first.error, first.away) == (2, "", False)
    done = await asyncio.wait_for(ends.get(), WAIT_S)
    assert runner.called_meanwhile(400) == []  # it was called for 3 s, but holds nobody's lock
    assert done.error.startswith("model m@1: its process was ended: a call took longer than 3000 ms")
    (words,) = runner.away()
    assert words.startswith("model m@1: its process")
    metrics = RoleMetrics("worker", "a")
    metrics.processes(runner.processes())
    page = metrics.page().decode()
    assert 'streamserve_model_process_up{model="m@1"} 0.0' in page
    assert 'streamserve_model_process_up{model="n@1"} 1.0' in page
    await asyncio.to_thread(until, lambda: not runner.away())
    runner.submit(3, "m@1", batch(7, 1))
    done = await asyncio.wait_for(ends.get(), WAIT_S)
    assert done.outputs is not None
    metrics.processes(runner.processes())
    assert 'streamserve_model_process_restarts_total{model="m@1"} 1.0' in metrics.page().decode()
    runner.submit(4, "m@1", batch(2))
    done = await asyncio.wait_for(ends.get(), WAIT_S)
    assert (done.error, done.away) == ("model m@1: its process ended by itself with code 3", True)
    runner.close()


@pytest.mark.slow
def test_a_call_that_is_under_way_does_not_keep_a_worker_from_closing(
    isolated: Callable[..., IsolatedRuntime],
) -> None:
    asyncio.run(_closed_while_called(isolated))


async def _closed_while_called(isolated: Callable[..., IsolatedRuntime]) -> None:
    ends: asyncio.Queue[BatchFinished] = asyncio.Queue()
    runtime = isolated(limits=Limits(call_timeout_ms=600_000))
    runner = ModelRunner({"m@1": runtime}, ends.put_nowait)
    runner.submit(1, "m@1", batch(3))
    child = psutil.Process(runtime.pid)
    await asyncio.to_thread(until, lambda: child.cpu_times().user > 0.3)
    runner.close()
    assert not child.is_running()
    assert "did not close in time" in (await asyncio.wait_for(ends.get(), WAIT_S)).error


# -- limits


@needs_proc
@needs_root
def test_root_gives_up_what_it_may_to_a_user_of_its_own(isolated: Callable[..., IsolatedRuntime]) -> None:
    users = {int(isolated("user").predict(batch()).labels[0]) for _ in range(2)}
    assert len(users) == 2
    assert all(user in system.OWN_USERS for user in users)
    with pytest.raises(ModelRaised, match=r"PermissionError.*must be readable for others"):
        isolated().predict(batch(12))


def test_threads_and_weight_are_those_of_the_config(
    isolated: Callable[..., IsolatedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # what the environment says holds before the config
    runtime = isolated("environment", Limits(cpu_cores=3, niceness=4))
    assert runtime.predict(batch()).labels[0].tolist() == [3, min(19, os.nice(0) + 4)]


@needs_cores
@pytest.mark.slow
def test_one_that_uses_more_cores_than_it_may_is_confined(
    isolated: Callable[..., IsolatedRuntime], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a machine with little to spare gives enough.
    all_cores = os.sched_getaffinity(0)
    runtime = isolated()
    child = psutil.Process(runtime.pid)
    assert os.sched_getaffinity(child.pid) == all_cores
    monkeypatch.setattr("streamserve.runtimes.process._CPU_SLACK", -0.9)
    runtime.predict(batch(14))
    until(lambda: "it may use 1 (cpu_cores)" in caplog.text)
    threads = child.threads()
    assert len(threads) > len(all_cores)
    assert {len(os.sched_getaffinity(thread.id)) for thread in threads} == {1}
    assert answers(runtime)


@needs_cores
def test_cores_of_neighbours_differ_where_there_are_enough() -> None:
    assert Limits(cpu_cores=len(os.sched_getaffinity(0))).cores(0) == ()
    one, other = Limits().cores(4), Limits().cores(5)
    assert (len(one), len(other)) == (1, 1)
    assert one != other


@needs_proc
def test_its_state_is_known(isolated: Callable[..., IsolatedRuntime]) -> None:
    runtime = isolated()
    state = runtime.state()
    assert (state.model, state.up, state.restarts) == ("m@1", True, 0)
    assert 10 * MIB < state.memory_bytes < 256 * MIB
    assert state.threads >= 1
    with pytest.raises(ModelAway):
        runtime.predict(batch(2))
    assert runtime.state().up is False


# -- starting and closing


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("missing", r"model m@1: isolated_app has no attribute 'missing'"),
        ("broken", r"model m@1: it failed on its sample row: KeyError: 'column'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_as_in_a_thread(function: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load(spec(function))


def test_a_model_that_dies_while_it_loads_is_told_with_its_last_words(app: Path) -> None:
    (app / "dies.py").write_text("import os\nprint('farewell')\nos._exit(9)\n")
    with pytest.raises(
        ModelError, match=r"ended by itself with code 9 before it was ready; its last words:\s+farewell"
    ):
        load(ModelSpec(name="m", version="1", source="dies:model", isolation=LIMITS))


@pytest.mark.slow
def test_a_model_that_never_loads_is_given_up(app: Path) -> None:
    with pytest.raises(ModelError, match=r"it was not ready in 1000 ms \(load_timeout_ms\)"):
        load(spec("never()", Limits(load_timeout_ms=1_000)))


def test_options_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ModelError, match="options cannot be sent to its process"):
        load(ModelSpec(name="m", version="1", source="isolated_app:model", options={"x": object()}, isolation=LIMITS))


def test_closing_lets_the_model_close_and_ends_its_process(app: Path) -> None:
    app.chmod(0o777)  # the model's user writes there
    runtime = load(spec("closing"))
    assert isinstance(runtime, IsolatedRuntime)
    pid = runtime.pid or 0
    runtime.close()
    assert not psutil.pid_exists(pid)
    assert (app / "closed").exists()
    with pytest.raises(ModelAway, match="was closed"):
        runtime.predict(batch())
    runtime.close()
