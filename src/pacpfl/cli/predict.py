"""One client's model on the command line: personalize, predict, update and evaluate."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pacpfl.cli.common import console
from pacpfl.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from pacpfl.data.tables.read import Rows
    from pacpfl.studies.model import ClientModel


Model = Annotated[Path, typer.Option(help="A model that pacpfl personalize has written.")]
Table = Annotated[Path, typer.Option(help="A table (CSV or Parquet) with the columns of training.")]
Name = Annotated[
    str | None,
    typer.Option(help="Whose rows, where the table has a column of clients.", show_default=False),
]


def personalize(
    run: Annotated[
        Path, typer.Option(help="The run folder of pacpfl fit, or its prior.safetensors.")
    ],
    data: Table,
    out: Annotated[Path, typer.Option(help="The model to write (.safetensors).")],
    client: Name = None,
) -> None:
    """Make one client's own model from what a run has learned and the client's rows.

    Nothing is sent anywhere. The model holds the client's rows: it is as private as they are.
    """
    from pacpfl.data.tables.read import read_rows
    from pacpfl.studies import model, model_file

    shared = model_file.shared_of_run(run) if run.is_dir() else model_file.load_shared(run)
    _configure(shared.config.run.precision)
    rows = read_rows(data, shared.schema, targets=True, client=client)
    x, y = at_most(rows, shared.config.tables.most)
    _tell(rows)
    made = model.personalize(shared, rows.client, x, y)
    model_file.save_model(out, made)
    print(f"Model of {rows.client} from {len(y)} rows: {out}")


def predict(
    model: Model,
    data: Table,
    out: Annotated[Path, typer.Option(help="Where to write predictions (.csv or .parquet).")],
    quantiles: Annotated[
        str, typer.Option(help="Which, with commas, each between 0 and 1.")
    ] = "0.05,0.5,0.95",
    client: Name = None,
) -> None:
    """Predict every row of a table: mean, std and quantiles in your own units, or class probabilities."""
    levels = levels_of(quantiles)
    if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{out} must end in .csv or .parquet; name it so.")
    loaded, rows = _open(model, data, False, client)
    from pacpfl.studies import model as models

    columns: dict[str, Any] = {"row": range(1, len(rows.x) + 1)}
    if loaded.schema.classes is None:
        found = models.predict(loaded, rows.x, levels)
        columns |= {"mean": found.mean, "std": found.std}
        columns |= {f"q{level:g}": q for level, q in zip(levels, found.quantiles, strict=True)}
    else:
        chances = models.probabilities(loaded, rows.x)
        names = loaded.schema.classes
        columns["class"] = [names[best] for best in chances.argmax(1)]
        columns |= {f"p({name})": chances[:, place] for place, name in enumerate(names)}
    _write_table(out, columns)
    print(f"{len(rows.x)} predictions of {loaded.schema.target} for {loaded.client}: {out}")


def update(
    model: Model,
    data: Table,
    out: Annotated[
        Path | None, typer.Option(help="The new model [the same file].", show_default=False)
    ] = None,
    client: Name = None,
) -> None:
    """Add rows to a model. It ends where a model made from all rows at once would."""
    loaded, rows = _open(model, data, True, client)
    from pacpfl.studies import model as models
    from pacpfl.studies import model_file

    assert rows.y is not None
    larger = models.update(loaded, rows.x, rows.y)
    model_file.save_model(out or model, larger)
    print(f"Model of {larger.client} from {larger.rows} rows: {out or model}")


def evaluate(model: Model, data: Table, client: Name = None) -> None:
    """Measure a model on rows it has not seen, in your own units."""
    loaded, rows = _open(model, data, True, client)
    from rich.table import Table as Grid

    from pacpfl.studies import model as models

    assert rows.y is not None
    measured = models.evaluate(loaded, rows.x, rows.y)
    grid = Grid(title=f"{loaded.client}, {len(rows.y)} rows", title_justify="left")
    grid.add_column("measure")
    grid.add_column("value", justify="right")
    for name, value in measured.items():
        grid.add_row(name, f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}")
    Console(highlight=False).print(grid)


def _open(model: Path, data: Path, targets: bool, client: str | None) -> tuple[ClientModel, Rows]:
    from pacpfl.data.tables.read import read_rows
    from pacpfl.studies import model_file

    _configure("float32")
    loaded = model_file.load_model(model)
    rows = read_rows(data, loaded.schema, targets=targets, client=client)
    _tell(rows)
    return loaded, rows


def _configure(precision: str) -> None:
    from pacpfl.engine import runtime

    runtime.configure(precision)


def _tell(rows: Rows) -> None:
    for notice in rows.notices:
        console.print(notice, soft_wrap=True, markup=False)


def at_most(rows: Rows, most: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows, or a draw of `most` of them where the training kept no more either."""
    import numpy as np

    assert rows.y is not None
    if not most or len(rows.y) <= most:
        return rows.x, rows.y
    kept = np.sort(np.random.default_rng(0).permutation(len(rows.y))[:most])
    console.print(f"{most} of {len(rows.y)} rows are used (tables.most).", soft_wrap=True)
    return rows.x[kept], rows.y[kept]


def levels_of(text: str) -> list[float]:
    try:
        levels = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        levels = [-1.0]
    if not all(0 < level < 1 for level in levels):
        raise InputError(f"--quantiles {text}: write numbers between 0 and 1, such as 0.05,0.95.")
    return levels


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    import pandas as pd

    from pacpfl import files

    frame, stream = pd.DataFrame(columns), io.BytesIO()
    if path.suffix.lower() == ".csv":
        stream.write(frame.to_csv(index=False).encode())
    else:
        try:
            frame.to_parquet(stream, index=False)
        except ImportError as error:
            raise InputError(
                "Parquet needs pyarrow; pip install 'pacpfl[tables]', or write a .csv."
            ) from error
    files.write(path, stream.getvalue())
