"""`python -m benchmarks [--quick] [--out FOLDER]`: speed against the peers, compilation, scaling.

Needs an idle machine: everything that runs beside it is measured too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import study
from benchmarks.harness import describe_machine
from benchmarks.own_data import own_data
from benchmarks.results import Sheet, from_table, sheet_lines, write_results
from pacpfl.engine import runtime
from pacpfl.errors import InputError


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes, in two minutes.")] = False,
    ours: Annotated[bool, typer.Option("--ours", help="Leave the peers out.")] = False,
    own: Annotated[bool, typer.Option("--own", help="Own tables alone, in half a minute.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
) -> None:
    """Measure one round against the public peers, its compilation, memory and scaling."""
    # Before anything starts JAX: this sets how many devices the processor is divided into.
    runtime.configure()
    plan = study.QUICK if quick else study.Plan()
    # A quick run must not replace the published results.
    usual = "docs/results/own-tables" if own else "docs/results/bench"
    folder = out or Path("runs/bench-quick" if quick else usual)
    options = {"--quick": quick, "--ours": ours, "--own": own}
    command = " ".join(["python -m benchmarks", *(name for name, on in options.items() if on)])
    console = Console()
    machine = describe_machine()
    try:
        sheets = own_tables() if own else run(plan, not ours, console)
    except InputError as error:
        console.print(f"[red]{error}[/red]")
        raise typer.Exit(2) from None
    markdown, _ = write_results(folder, sheets, machine, command)
    console.print(Markdown("\n".join(sheet_lines(sheets[0]))))
    console.print(f"All results are in {markdown}")


def run(plan: study.Plan, peers: bool, console: Console) -> list[Sheet]:
    """All measurements, the comparison first: it needs the quietest machine."""
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with (
        tempfile.TemporaryDirectory(prefix="pacpfl-bench-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        scratch = Path(folder)
        task = progress.add_task("starting", total=study.count_steps(plan))

        def report(description: str, steps: float) -> None:
            progress.update(task, description=description, advance=steps)

        ceiling = study.measure_ceiling(scratch, report)
        tables = study.compare(plan, peers, report)
        rounds = {sizes: study.rounds_per_call(sizes) for sizes in tables}
        return [
            study.goals(tables),
            *(
                from_table(table, f"{study.OURS}: {rounds[sizes]} rounds a call, as in training.")
                for sizes, table in tables.items()
            ),
            study.floors(tables, ceiling),
            study.compilation(plan, scratch, report),
            *study.scaling(plan, scratch, report),
            study.streaming(plan, scratch, report),
            study.personal(plan, scratch, report),
            own_data(scratch),
        ]


def own_tables() -> list[Sheet]:
    with tempfile.TemporaryDirectory(prefix="pacpfl-bench-") as folder:
        return [own_data(Path(folder))]


if __name__ == "__main__":
    typer.run(bench)
