"""One client's model on the command line: personalize, predict, update and evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacpfl.cli.common import print_table, say
from pacpfl.errors import InputError, imported

if TYPE_CHECKING:
    import numpy as np

    from pacpfl.client import ClientModel, Shared
    from pacpfl.data.tables.read import Rows


Model = Annotated[
    Path, typer.Option(help="A model of pacpfl personalize, or of an estimator's save.")
]
Table = Annotated[Path, typer.Option(help="A table (CSV or Parquet) with the columns of training.")]
Name = Annotated[
    str | None,
    typer.Option(help="Whose rows and model, where the table or the file has several clients."),
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
    from pacpfl.client import ClientModel, load_shared
    from pacpfl.engine import runtime

    shared = load_shared(run)
    runtime.configure(shared.config.run.precision)
    rows = _read(data, shared, True, client)
    x, y = at_most(rows, shared.config.tables.most)
    model = ClientModel.condition(shared, rows.client, x, y)
    model.check()
    model.save(out)
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
    import pandas as pd

    from pacpfl import files

    levels, ending = levels_of(quantiles), out.suffix.lower()
    if ending not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{out} must end in .csv or .parquet; name it so.")
    if ending != ".csv":
        imported("pyarrow", "Parquet", "'pacpfl[tables]'")
    loaded, rows = _open(model, data, False, client)
    schema = loaded.shared.schema
    columns: dict[str, Sequence[object] | np.ndarray] = {"row": range(1, len(rows.x) + 1)}
    if schema.classes is None:
        found = loaded.predict(rows.x, levels)
        columns |= {"mean": found.mean, "std": found.std}
        columns |= {f"q{level:g}": q for level, q in zip(levels, found.quantiles, strict=True)}
    else:
        chances = loaded.probabilities(rows.x)
        columns["class"] = [schema.classes[best] for best in chances.argmax(1)]
        columns |= {f"p({n})": chances[:, place] for place, n in enumerate(schema.classes)}
    table = pd.DataFrame(columns)
    csv = ending == ".csv"
    files.write(out, table.to_csv(index=False).encode() if csv else table.to_parquet(index=False))
    print(f"{len(rows.x)} predictions of {schema.target} for {loaded.name}: {out}")


def update(
    model: Model,
    data: Table,
    out: Annotated[
        Path | None, typer.Option(help="The new model (default: the same file).")
    ] = None,
    client: Name = None,
) -> None:
    """Add rows to a model. It ends where a model made from all rows at once would."""
    from pacpfl import client as models

    loaded, rows = _open(model, data, True, client)
    assert rows.y is not None
    larger = loaded.extend(rows.x, rows.y)
    saved = models.load(model)
    every = [larger if other.name == larger.name else other for other in saved.models]
    models.save(out or model, saved.shared, every, saved.about, saved.arrays)
    print(f"Model of {larger.name} from {len(larger.samples)} rows: {out or model}")


def evaluate(model: Model, data: Table, client: Name = None) -> None:
    """Measure a model on rows it has not seen, in your own units."""
    loaded, rows = _open(model, data, True, client)
    assert rows.y is not None
    print_table(
        f"{loaded.name}, {len(rows.y)} rows",
        ["measure"],
        ["value"],
        [
            (name, f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}")
            for name, value in loaded.measure(rows.x, rows.y).items()
        ],
    )


def _open(model: Path, data: Path, targets: bool, client: str | None) -> tuple[ClientModel, Rows]:
    from pacpfl.client import load_model
    from pacpfl.engine import runtime

    runtime.configure()
    loaded = load_model(model, client)
    return loaded, _read(data, loaded.shared, targets, client)


def _read(data: Path, shared: Shared, targets: bool, client: str | None) -> Rows:
    from pacpfl.data.tables.read import read_rows

    rows = read_rows(data, shared.schema, targets=targets, client=client)
    for notice in rows.notices:
        say(notice)
    return rows


def at_most(rows: Rows, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows, or a draw of `most` where the training kept no more either."""
    import numpy as np

    assert rows.y is not None
    if not most or len(rows.y) <= most:
        return rows.x, rows.y
    kept = np.sort(np.random.default_rng(0).permutation(len(rows.y))[:most])
    say(f"{most} of {len(rows.y)} rows are used (tables.most).")
    return rows.x[kept], rows.y[kept]


def levels_of(text: str) -> list[float]:
    try:
        levels = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        levels = [-1.0]
    if not all(0 < level < 1 for level in levels):
        raise InputError(f"--quantiles {text}: write numbers between 0 and 1, such as 0.05,0.95.")
    return levels
