"""Run the demo; exit code 0 where every check passed, 1 where one was missed, 130 on Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from examples.common.app import AppFailedError, running
from examples.common.command import PROJECT, exit_code, read_options
from examples.common.kafka import AppEndedError
from examples.common.kept import STATE_VARIABLE, emptied, short, tell
from examples.demo import plot, report
from examples.demo.config import Served, write_config
from examples.demo.faults import CONTROL_VARIABLE, Switch, Trouble
from examples.demo.load import Load, Watch, plan_load
from examples.demo.progress import Progress
from examples.demo.record import THIRDS, Recording
from examples.demo.score import Score, score
from streamserve.datasets import split
from streamserve.settings import load_settings

_SPARE_S = 60.0


def main() -> int:
    """The command line."""
    options = read_options("demo", __doc__, what="requests", rate=205.0, most_rate=5_000.0)
    return exit_code(lambda console: _demo(console, options))


def _demo(console: Console, options: argparse.Namespace) -> int:
    results: Path = options.results
    results.mkdir(parents=True, exist_ok=True)
    served = write_config(results)
    trouble = Trouble()
    _introduce(console, served, options)
    run = Recording(seconds=options.seconds, models=served.route.models, deadline_ms=served.route.deadline_ms)
    app = load_settings(served.config).app.name
    state = emptied(results, app)
    _run(console, options, served, run, Switch(control=state / "faults.json", trouble=trouble))
    judged = score(run)
    report.show(console, judged, run)
    _write(console, results, judged, run, trouble)
    tell(console, state, app, _questions(short(served.config)))
    return 0 if judged.passed else 1


def _run(console: Console, options: argparse.Namespace, served: Served, run: Recording, switch: Switch) -> None:
    data = split()
    load_plan = plan_load(
        data.test_images, data.test_labels, seconds=options.seconds, per_second=options.rate, seed=options.seed
    )
    switch.turn(0)
    # A Kafka of its own, in a folder that was emptied: every run begins with nothing learnt.
    environment = {STATE_VARIABLE: str(switch.control.parent), CONTROL_VARIABLE: str(switch.control)}
    started_s = time.monotonic()
    log = options.results / "up.log"
    with running(
        served.config, log=log, environment=environment, folder=PROJECT, most_s=options.seconds + _SPARE_S
    ) as app:
        console.print(
            f"ready after {time.monotonic() - started_s:.1f} s: Kafka at {app.bootstrap_servers}, every process serves"
        )
        progress = Progress(console=console, run=run)

        def begin(third: int) -> None:
            switch.turn(third)
            console.print(f"[bold]{THIRDS[third]} third:[/] {switch.trouble.words(third)}", highlight=False)

        load = Load(
            load_plan,
            run,
            served.route.policy,
            bootstrap_servers=app.bootstrap_servers,
            topics=app.topics,
            seed=options.seed,
        )
        try:
            with load.opened():
                load.go(Watch(third=begin, progress=progress.at, app_lives=lambda: app.lives))
        except AppEndedError as ended:
            raise AppFailedError(f"streamserve up ended while it served ({ended}):\n{app.last_words()}") from None
        run.restarts = app.restarts
        console.print("stopping")
        app.stop()


def _introduce(console: Console, served: Served, options: argparse.Namespace) -> None:
    names = ", ".join(report.name_of(model) for model in served.route.models)
    console.print(
        f"{len(served.route.models)} models ({names}) in {served.pools} pools answer {options.rate:.0f} images a "
        f"second, each within {served.route.deadline_ms} ms; the labels come back about 2 s later",
        highlight=False,
    )
    if not served.with_cnn:
        console.print("without the convolutional network: torch is not installed", style="dim")
    console.print(f"config: {short(served.config)}, made from examples/demo.toml; starting Kafka and the app ...")


def _questions(config: str) -> list[str]:
    """What the topics of a run can be asked."""
    return [
        f"streamserve bandit states {config}",
        f"streamserve bandit evaluate {config} --policy exp3 --policy kernel --policy linear",
        f"streamserve outcomes export {config} --out results/outcomes.csv",
    ]


def _write(console: Console, results: Path, judged: Score, run: Recording, trouble: Trouble) -> None:
    files = [results / "demo.json"]
    report.write_json(files[0], judged, run)
    if plot.can_plot():
        files.append(results / "demo.png")
        plot.write_png(files[1], judged, run, trouble=trouble.words(1))
    else:
        console.print("no picture: matplotlib is not installed", style="dim")
    console.print("written: " + ", ".join(short(file) for file in files))


if __name__ == "__main__":
    sys.exit(main())
