"""Run the sentiment demo; exit code 0 where every check passed, 1 where one was missed, 130 on Ctrl-C."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from examples.common.app import AppFailedError, running
from examples.common.command import PROJECT, exit_code, read_options
from examples.common.kafka import AppEndedError
from examples.common.kept import STATE_VARIABLE, emptied, tell
from examples.sentiment import report
from examples.sentiment.load import GRACE_S, Load, Planned
from examples.sentiment.record import CONTEXTS, Recording
from examples.sentiment.score import score
from streamserve.datasets import sentiment_split
from streamserve.settings import load_settings

CONFIG = PROJECT / "examples" / "sentiment.toml"
_SPARE_S = 60.0
_EVERY_S = 5.0


def main() -> int:
    """The command line."""
    options = read_options("sentiment", __doc__, what="texts", rate=50.0, most_rate=1_000.0)
    return exit_code(lambda console: _demo(console, options))


def _demo(console: Console, options: argparse.Namespace) -> int:
    results: Path = options.results
    results.mkdir(parents=True, exist_ok=True)
    settings = load_settings(CONFIG)
    models = tuple(settings.model_id(model) for model in settings.routes[CONTEXTS].models)
    run = Recording(seconds=options.seconds, models=models)
    state = emptied(results, settings.app.name)
    began = _iso(time.time())
    _run(console, options, run, state)
    ended = _iso(time.time() + 1)
    judged = score(run)
    report.show(console, judged, run)
    files = [results / "sentiment.json"]
    report.write_json(files[0], judged, run)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no picture: matplotlib is not installed", style="dim")
    else:
        files.append(results / "sentiment.png")
        report.write_png(files[1], judged, run)
    console.print("written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)
    tell(console, state, settings.app.name, questions(str(CONFIG.relative_to(PROJECT)), began, ended))
    return 0 if judged.passed else 1


def questions(config: str, began: str, ended: str) -> list[str]:
    """What the topics of a run can be asked; times are ISO 8601."""
    route = f"{config} --route {CONTEXTS}"
    return [
        f"streamserve bandit states {config}",
        f"streamserve bandit evaluate {route} --policy hedge --from {began} --to {ended}",
        f"streamserve bandit evaluate {route} --policy films",
        f"streamserve replay {route} --model all --disagreements results/other.jsonl --plot results/replay.png",
        f"streamserve outcomes export {route} --format parquet --out results/outcomes.parquet",
    ]


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _run(console: Console, options: argparse.Namespace, run: Recording, state: Path) -> None:
    data = sentiment_split()
    texts, labels = data.texts[data.held_out].tolist(), data.labels[data.held_out].tolist()
    n = max(1, int(options.rate * options.seconds))
    planned = Planned(texts, labels, data.domains[data.held_out].tolist(), n, options.seed)
    console.print(
        f"{len(run.models)} pipelines, each trained on one domain, answer {options.rate:.0f} texts a second of all "
        "four; the labels come back about 1 s later. Starting Kafka and the app ...",
        highlight=False,
    )
    started_s = time.monotonic()
    with running(
        CONFIG,
        log=options.results / "up.log",
        # A Kafka of its own, in a folder that was emptied: every run begins with nothing learnt.
        environment={STATE_VARIABLE: str(state)},
        folder=PROJECT,
        most_s=options.seconds + GRACE_S + _SPARE_S,
    ) as app:
        console.print(f"ready after {time.monotonic() - started_s:.1f} s: Kafka at {app.bootstrap_servers}")
        load = Load(
            planned,
            run,
            per_second=options.rate,
            bootstrap_servers=app.bootstrap_servers,
            topics=app.topics,
            seed=options.seed,
        )
        try:
            with load.opened():
                load.go(_teller(console, run), lambda: app.lives)
        except AppEndedError as ended:
            raise AppFailedError(f"streamserve up ended while it served ({ended}):\n{app.last_words()}") from None
        app.stop()


def _teller(console: Console, run: Recording) -> Callable[[float], None]:
    """A line every few seconds."""
    next_s = _EVERY_S

    def tell(now_s: float) -> None:
        nonlocal next_s
        if now_s >= next_s:
            next_s = now_s + _EVERY_S
            states = ", ".join(f"{name} {count}" for name, count in sorted(run.states.items()))
            console.print(
                f"{now_s:5.0f} s  {len(run.texts):6,} texts  {run.labels_sent:6,} labels  states published: {states}",
                highlight=False,
                soft_wrap=True,
            )

    return tell


if __name__ == "__main__":
    sys.exit(main())
