"""`pacpfl certify`: a certificate for every client of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pacpfl.cli.common import console


def certify(
    folder: Annotated[Path, typer.Argument(help="The folder of a complete run of pacpfl.")],
    delta: Annotated[
        float, typer.Option(help="Probability with which each certificate may fail.")
    ] = 0.05,
    loss: Annotated[
        str | None,
        typer.Option(
            help="What is bounded: clipped-nll or clipped-squared; for classes zero-one, brier or "
            "clipped-nll (default: clipped-nll; for classes zero-one).",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Where the loss is clipped (default: 2 for clipped-nll, for classes ln(their number); 1 "
            "for clipped-squared)."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy of the training towards existing clients (default: as recorded, or assumed)."
        ),
    ] = None,
    unit: Annotated[
        str, typer.Option(help="What --epsilon protects: a whole client, or one sample.")
    ] = "client",
) -> None:
    """Tell every client what its risk is guaranteed to stay below, and what that rests on.

    Writes certificates.json into the run folder and draws its report again. Clients who joined after
    the training have certificates that are proved; for the others the training's privacy is a
    premise. Of Bayesian networks, the Gaussian variational posterior is certified.
    docs/certificates.md tells how to read one.
    """
    from pacpfl import config as configuration
    from pacpfl.engine import runtime

    if (folder / "config.toml").is_file():
        runtime.configure(configuration.load_file(folder / "config.toml").run.precision)
    from pacpfl.certify import document as study
    from pacpfl.report.page import write_report
    from pacpfl.report.terminal import print_certificates

    with console.status("certifying") as status:
        document = study.certify(
            folder,
            delta=delta,
            loss=loss,
            limit=limit,
            epsilon=epsilon,
            unit=unit,  # type: ignore[arg-type]
            progress=lambda who: status.update(f"certifying {who}"),
        )
        status.update("drawing the report")
        page = write_report(folder)
    print_certificates(document, Console(highlight=False))
    print(f"Report: {page}")
