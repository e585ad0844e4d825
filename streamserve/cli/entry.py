"""The table of commands, and what every command has in common: exit codes, words instead of tracebacks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from streamserve.errors import StreamserveError

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command whose module is imported only when it is called."""

    module: str
    attribute: str
    """A function, or a `typer.Typer` of sub-commands."""
    summary: str
    """One line for `streamserve --help`."""


COMMANDS = {
    "check": Lazy("check", "check", "Load and try each model; look at config and topics."),
    "init": Lazy("init", "init", "Write a project that serves at once."),
    "up": Lazy("up", "up", "Run an app: a Kafka of its own, the topics and every role."),
    "topics": Lazy("topics", "app", "The app's topics on its Kafka: create, plan, check."),
    "broker": Lazy("broker", "app", "A real Kafka of our own: start, stop, status."),
    "policies": Lazy("policies", "policies", "The policies that a route may have, and when to use each."),
    "models": Lazy("models", "app", "How models stand; switch one off at once, deploy others."),
    "worker": Lazy("roles", "worker", "One worker process of a pool."),
    "aggregate": Lazy("roles", "aggregate", "One aggregator process."),
    "learn": Lazy("roles", "learn", "One learner process."),
    "learn-head": Lazy("learn_head", "learn_head", "The head of a white-box plan, learnt while it serves."),
    "insights": Lazy("insights", "insights", "Windowed figures of routes and models: one process."),
    "send": Lazy("client", "send", "Send requests and show their predictions."),
    "feedback": Lazy("client", "feedback", "Say what a prediction should have been."),
    "tail": Lazy("client", "tail", "Follow a topic."),
    "show": Lazy("client", "show", "One request's story across the topics."),
    "dlq": Lazy("dlq", "app", "Dead letters: list, show, redrive, purge."),
    "bandit": Lazy("bandit", "app", "What a policy would have earned, from the log."),
    "replay": Lazy("replay", "replay", "A candidate model over recorded requests."),
    "outcomes": Lazy("outcomes", "app", "Decisions and what was really so: export a data set."),
    "plan": Lazy("plan", "app", "White-box plans: pack, verify, explain, bench; their store."),
    "simulate": Lazy("simulate", "simulate", "Play an app through faults drawn from seeds."),
    "chaos": Lazy("chaos", "chaos", "Do faults to an app under load and check its promises."),
}


def load_command(name: str) -> Any:
    """The command itself, its module imported: an object of typer's, whose class differs between its versions."""
    lazy = COMMANDS[name]
    target = getattr(importlib.import_module(f"streamserve.cli.{lazy.module}"), lazy.attribute)
    if isinstance(target, typer.Typer):
        target.rich_markup_mode = None
        app = target
    else:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(name)(target)
    app._add_completion = False
    command = typer.main.get_command(app)
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """Shows one line per command without importing it; imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, lazy in COMMANDS.items():
            self.add_command(TyperCommand(name, help=lazy.summary, rich_markup_mode=None), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and known else known, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error that a person can mend is told in its own words."""
        try:
            return super().invoke(ctx)
        except StreamserveError as error:
            typer.echo(f"streamserve: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415  (only this option needs it)

        typer.echo(f"streamserve {version('streamserve')}")
        raise typer.Exit


@app.callback()
def _streamserve(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Machine-learning predictions over Kafka: adaptive batches, ensembles that answer by the deadline, learning from
    feedback.

    Exit codes: 0 all well, 1 other errors, 2 config or command line, 3 a model, 4 broker, 5 topics differ, 6 a record
    of another version, 130 broken off by Ctrl-C.
    """


def run(args: Sequence[str] | None = None) -> None:
    """Run the command line on `args` (None: the process's own) and exit."""
    typer.main.get_command(app)(args, prog_name="streamserve")
