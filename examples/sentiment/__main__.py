"""Run the sentiment demo; exit code 0 where every check passed, 1 where one was missed, 130 on Ctrl-C."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from examples.demo.app import AppFailedError, running
from examples.sentiment import report
from examples.sentiment.load import GRACE_S, AppEndedError, Load, Planned
from examples.sentiment.record import CONTEXTS, Recording
from examples.sentiment.score import score
from streamserve.datasets import sentiment_split
from streamserve.errors import StreamserveError
from streamserve.settings import load_settings

PROJECT = Path(__file__).resolve().parents[2]
CONFIG = PROJECT / "examples" / "sentiment.toml"
_SPARE_S = 60.0
_EVERY_S = 5.0
_INTERRUPTED = 130


def main() -> int:
    """The command line."""
    options = _options()
    # A width of its own where nothing says one: a report in a log file is not cut at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 130)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _demo(console, options)
    except (StreamserveError, AppFailedError, AppEndedError) as trouble:
        console.print(f"[bold red]the demo failed:[/] {escape(str(trouble))}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return _INTERRUPTED


def _demo(console: Console, options: argparse.Namespace) -> int:
    results: Path = options.results
    results.mkdir(parents=True, exist_ok=True)
    settings = load_settings(CONFIG)
    models = tuple(settings.model_id(model) for model in settings.routes[CONTEXTS].models)
    run = Recording(seconds=options.seconds, models=models)
    with tempfile.TemporaryDirectory(prefix="streamserve-sentiment-", ignore_cleanup_errors=True) as state:
        _run(console, options, run, Path(state))
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
    return 0 if judged.passed else 1


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
        # A Kafka of its own, in a folder that is removed afterwards: every run begins with nothing learnt.
        environment={"STREAMSERVE_STATE": str(state)},
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.sentiment", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long texts are sent (default 90)")
    parser.add_argument("--rate", type=float, default=50.0, help="texts a second, on average (default 50)")
    parser.add_argument(
        "--results", type=Path, default=PROJECT / "results" / "sentiment", help="folder of report and picture"
    )
    parser.add_argument("--seed", type=int, default=0, help="another order of texts and arrivals")
    options = parser.parse_args()
    if not 3 <= options.seconds <= 86_400:
        parser.error(f"--seconds {options.seconds:g}: allowed are 3 to 86400")
    if not 1 <= options.rate <= 1_000:
        parser.error(f"--rate {options.rate:g}: allowed are 1 to 1000")
    return options


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
