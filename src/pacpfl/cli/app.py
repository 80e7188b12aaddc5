"""The command line. JAX is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from pacpfl.cli.common import console, say
from pacpfl.cli.own import check, compare, fit, init
from pacpfl.cli.predict import evaluate, personalize, predict, update
from pacpfl.cli.run import certify, download, privacy, report, run
from pacpfl.cli.sites import GROUPS
from pacpfl.cli.tune import tune
from pacpfl.errors import InputError, Interrupted

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Personalised federated learning with honest uncertainty.

Many clients hold small, private, different data sets. pacpfl learns a distribution over priors from
their gradients, and each client, also one who joins later, turns it into its own calibrated model.

[bold]Start here[/bold]

  pacpfl run polynomial                     train, personalise, measure; about a minute
  pacpfl run polynomial --set particles=8   change one setting
  pacpfl run digits                         the same for images of digits
  pacpfl report runs/polynomial             draw the figures and the page again

A run folder holds config.toml (complete: edit it and pass it with --config), metrics.json,
clients.csv, figures/ and report.html. Stop a run with Ctrl-C: it saves, and the same command goes on.""",
)


def version() -> None:
    """Print the version."""
    from pacpfl.version import __version__

    print(__version__)


# Commands that the package once had, and where they are now.
ELSEWHERE = {
    "reproduce": "The paper's studies are no part of the package: in a clone, run `python -m "
    "reproduction STUDY` or `make reproduce STUDY=regression`.",
    "audit": "The audit is no part of the package: in a clone, run `python -m reproduction audit MODE` "
    "(docs/audit.md).",
}


def elsewhere(context: typer.Context) -> None:
    """Name the command that has taken the place of this one."""
    raise InputError(ELSEWHERE[str(context.info_name)])


COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, report, certify),
    *(init, check, fit, compare, personalize, predict, update, evaluate),
    *(tune, privacy, download),
)
for command in (*COMMANDS, version):
    app.command()(command)
for gone in ELSEWHERE:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(gone, hidden=True, context_settings=anything)(elsewhere)
for group in GROUPS:
    app.add_typer(group)


def main() -> None:
    # Figures are drawn into files, whatever screen or notebook the shell was set up for.
    os.environ["MPLBACKEND"] = "agg"
    try:
        app(standalone_mode=True)
    except InputError as error:
        say(f"pacpfl: {error}")
        sys.exit(2)
    except Interrupted as reason:
        say(f"Saved: {reason}. The same command goes on from there.")
        sys.exit(130)
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(130)
