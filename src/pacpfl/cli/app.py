"""The command line. JAX is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.markup import escape

from pacpfl.cli.common import console, say
from pacpfl.cli.own import check, compare, fit, init
from pacpfl.cli.predict import evaluate, personalize, predict, update, watch
from pacpfl.cli.run import certify, download, privacy, report, run
from pacpfl.cli.sites import GROUPS
from pacpfl.cli.tune import tune
from pacpfl.errors import InputError, Interrupted, reason

INTRODUCTION = """Personalised federated learning with honest uncertainty.

Many clients hold small, private, different data sets. pacpfl learns a distribution over priors from
their gradients; each client, also one who joins later, turns it into a calibrated model of its own.

[bold]Start here[/bold]

  pacpfl run polynomial                   a first run, in one minute
  pacpfl run polynomial --set particles=8 the same, with one setting changed
  pacpfl fit TABLES                       your own: one table, or one each
  pacpfl COMMAND --help                   what a command does, its options

Every run leaves a folder with config.toml (complete: edit it and pass it with --config), the numbers,
the figures and report.html. Ctrl-C saves, and the same command goes on.
"""


def prose(text: str) -> str:
    """Return help whose paragraphs are lines of their own, so that they are wrapped once: at the width
    of the terminal. Indented lines stay as they are."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(text))


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(asked: bool) -> None:
    if asked:
        from pacpfl.version import __version__

        print(__version__)
        raise typer.Exit


@app.callback(help=prose(INTRODUCTION))
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Take what stands before the command."""


# Commands that the package once had, and where they are now.
ELSEWHERE = {
    "version": "The version is told by `pacpfl --version`.",
    "reproduce": "The paper's studies are no part of the package: in a clone, run `python -m "
    "reproduction STUDY` or `make reproduce STUDY=regression`.",
    "audit": "The audit is no part of the package: in a clone, run `python -m reproduction audit MODE` "
    "(docs/audit.md).",
}


def elsewhere(context: typer.Context) -> None:
    """Name the command that has taken the place of this one."""
    raise InputError(ELSEWHERE[str(context.info_name)])


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Try it": (run, report, download),
    "Your data": (init, check, fit, compare),
    "Models": (predict, personalize, update, watch, evaluate),
    "Guarantees": (certify, privacy),
    "Sites": (),
    "Research": (tune,),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        told = prose(escape(command.__doc__ or ""))
        app.command(help=told, rich_help_panel=panel)(command)
for gone in ELSEWHERE:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(gone, hidden=True, context_settings=anything)(elsewhere)
for group in GROUPS:
    for subcommand in group.registered_commands:
        subcommand.help = prose(escape(getattr(subcommand.callback, "__doc__", None) or ""))
    app.add_typer(group, rich_help_panel="Sites")


# What a machine or a file can do to any command, and the way out.
BEYOND: dict[type[Exception], str] = {
    OSError: "mend that, and start the same command again",
    MemoryError: "give fewer rows or clients, or take a machine with more memory",
    RecursionError: "something given is nested too deeply; make it flat",
    OverflowError: "a number given is too large; make it smaller",
}


def main() -> None:
    # Figures are drawn into files, whatever screen or notebook the shell was set up for.
    os.environ["MPLBACKEND"] = "agg"
    try:
        app(standalone_mode=True)
    except InputError as error:
        say(f"pacpfl: {error}")
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except tuple(BEYOND) as error:
        way_out = next(words for kind, words in BEYOND.items() if isinstance(error, kind))
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        say(f"pacpfl: {where}{reason(error)}; {way_out}.")
        sys.exit(2)
    except Interrupted as why:
        say(f"Saved: {why}. The same command goes on from there.")
        sys.exit(130)
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(130)
