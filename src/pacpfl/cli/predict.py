"""Clients' models on the command line: personalize, predict, update and evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacpfl.cli.common import print_table, say
from pacpfl.errors import InputError, imported

if TYPE_CHECKING:
    import pandas as pd

    from pacpfl.client import ClientModel, Shared
    from pacpfl.data.tables.read import Rows


Model = Annotated[
    Path, typer.Option(help="A model of pacpfl personalize, or of an estimator's save.")
]
Table = Annotated[
    Path,
    typer.Option(help="A table (CSV or Parquet), or a folder, with the columns of training."),
]
Name = Annotated[
    str | None,
    typer.Option(help="Whose rows and model, where the table or the file has several clients."),
]
Interval = Annotated[
    str,
    typer.Option(help="model, or conformal: one with a guarantee from the client's own rows."),
]
Level = Annotated[float, typer.Option(help="How often a conformal interval or set is to cover.")]


def personalize(
    run: Annotated[
        Path, typer.Option(help="The run folder of pacpfl fit, or its prior.safetensors.")
    ],
    data: Table,
    out: Annotated[Path, typer.Option(help="The model to write (.safetensors).")],
    client: Name = None,
) -> None:
    """Make clients' own models from what a run has learned and their rows: one file for all in the table.

    Nothing is sent anywhere. The file holds the clients' rows: it is as private as they are.
    """
    from pacpfl.client import load_shared, save
    from pacpfl.data.tables.read import read_clients

    shared = load_shared(run)
    everyone = read_clients(data, shared.schema, targets=True, client=client)
    _tell(everyone)
    models = [_made(shared, rows) for rows in everyone]
    save(out, shared, models)
    whom = models[0].name if len(models) == 1 else f"{len(models)} clients"
    count = sum(len(model.samples) for model in models)
    print(f"Model{'s' * (len(models) > 1)} of {whom} from {count} rows: {out}")


def predict(
    data: Table,
    out: Annotated[Path, typer.Option(help="Where to write predictions (.csv or .parquet).")],
    run: Annotated[
        Path | None,
        typer.Option(
            help="For all clients of the table: a run folder of pacpfl fit, or a model file."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="For one: the file of pacpfl personalize, or of an estimator's save."),
    ] = None,
    quantiles: Annotated[
        str, typer.Option(help="Which, with commas, each between 0 and 1.")
    ] = "0.05,0.5,0.95",
    client: Name = None,
    interval: Interval = "model",
    level: Level = 0.9,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="With --interval conformal: a table of clients who did not train, whose rows say how "
            "wide it must be for a client with few."
        ),
    ] = None,
) -> None:
    """Predict a table's rows: mean, std and quantiles in your own units, or class probabilities.

    `outside` marks rows that lie beyond what the client's own rows span. With --interval conformal there
    are also low and high, or a set of classes, that cover as often as --level says, whatever the model
    (docs/intervals.md).

    With --run every client of the table is asked by its own model. One that the run does not know gets
    its model from its rows that have a target, and the others are predicted; without any, the prior alone
    answers.
    """
    import pandas as pd

    from pacpfl import files

    levels, ending = levels_of(quantiles), out.suffix.lower()
    conformal = _is_conformal(interval, level)
    if ending not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{out} must end in .csv or .parquet; name it so.")
    if ending != ".csv":
        imported("pyarrow", "Parquet", "'pacpfl[tables]'")
    if model is not None and run is None:
        asked = iter([_open(model, data, False, client)])
    elif run is not None and model is None:
        asked = _asked(run, data, client)
    else:
        raise InputError(
            "Give either --run RUN, to predict for all clients of the table, or --model M, for one."
        )
    answers = []
    for own, rows in asked:
        answers.append(_answers(own, rows, levels))
        if conformal:
            answers[-1] = answers[-1].assign(**_covering(own, rows, level, calibrate))
        whom, target = str(own.name), own.shared.schema.target
    if not answers:
        raise InputError(
            f"{data} has no row to predict: its clients are new, and all their rows have a target; leave "
            "the target empty where it is to be predicted."
        )
    table = pd.concat(answers).sort_values(["file", "row"]).drop(columns="file")
    if run is None:
        del table["client"]
    else:
        whom = f"{len(answers)} clients"
    csv = ending == ".csv"
    content = table.to_csv(index=False).encode() if csv else table.to_parquet(index=False)
    files.write(out, content, private=True)
    print(f"{len(table)} predictions of {target} for {whom}: {out}")


def _asked(run: Path, data: Path, client: str | None) -> Iterator[tuple[ClientModel, Rows]]:
    """Yield each client's model, and the rows to ask it; say whose models are new."""
    import numpy as np

    from pacpfl.client import ClientModel, common_units, load_known, no_rows
    from pacpfl.data.tables.files import listed
    from pacpfl.data.tables.read import read_clients

    saved = load_known(run)
    shared, known = saved.shared, {str(model.name): model for model in saved.models}
    everyone = read_clients(data, shared.schema, targets=None, client=client)
    _tell(everyone)
    made, bare = [], []
    for rows in everyone:
        assert rows.y is not None
        given = np.isfinite(rows.y)
        if rows.client in known:
            yield replace(known[rows.client]), rows  # a copy: what it computes is not kept
        elif given.any():
            made.append(rows.client)
            if not given.all():
                yield _made(shared, rows.only(given)), rows.only(~given)
        else:
            bare.append(rows.client)
            yield (
                ClientModel(rows.client, shared, common_units(saved), no_rows(shared.schema)),
                rows,
            )
    if made:
        say(f"New clients, personalised from their rows that have a target: {listed(made)}.")
    if bare:
        say(f"New clients without any target, predicted by the prior alone: {listed(bare)}.")


def update(
    model: Model,
    data: Table,
    out: Annotated[
        Path | None, typer.Option(help="The new model (default: the same file).")
    ] = None,
    client: Name = None,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Recalibrate by the last hundred rows, and condition on none of them."
        ),
    ] = False,
) -> None:
    """Add rows to a model. It ends where a model made from all rows at once would.

    With --online the model stays, and what it says of probabilities follows the last hundred rows: for
    rows that come one after the other, in a season the model has not seen.
    """
    from pacpfl import client as models

    loaded, rows = _open(model, data, True, client)
    assert rows.y is not None
    larger = (loaded.observe if online else loaded.extend)(rows.x, rows.y)
    saved = models.load(model)
    every = [larger if other.name == larger.name else other for other in saved.models]
    models.save(out or model, saved.shared, every, saved.about, saved.arrays)
    seen = f", recalibrated by the last {len(larger.window)}" if online else ""
    print(f"Model of {larger.name} from {len(larger.samples)} rows{seen}: {out or model}")


def watch(
    model: Model,
    data: Table,
    client: Name = None,
    level: Annotated[
        float, typer.Option(help="Probability of an alarm, ever, where nothing has changed.")
    ] = 0.01,
) -> None:
    """Test whether rows, in the order of time, are still like those the model was made from.

    Exit code 3 where they are not: the evidence has reached 1 / level. The test is valid at any time, so it
    may be asked again with every new row.
    """
    from pacpfl.watch import evidence

    loaded, rows = _open(model, data, True, client)
    assert rows.y is not None
    if not 0 < level < 1:
        raise InputError(f"--level {level}: give a probability, such as 0.01.")
    owned = evidence(*loaded.pits(rows.x, rows.y))
    count, most = len(owned), owned.max()
    if most < 1 / level:
        print(
            f"No alarm: after {count} rows the evidence that {loaded.name} has changed is {most:.3g}."
        )
        return
    row = int((owned >= 1 / level).argmax()) + 1
    say(
        f"{loaded.name} has changed: by row {row} of {count} the evidence has reached {owned[row - 1]:.3g} "
        f"(alarm at {1 / level:g}); look at the sensor, or give the model later rows."
    )
    raise typer.Exit(3)


def evaluate(
    model: Model,
    data: Table,
    client: Name = None,
    interval: Interval = "model",
    level: Level = 0.9,
) -> None:
    """Measure a model on rows it has not seen, in your own units."""
    loaded, rows = _open(model, data, True, client)
    assert rows.y is not None
    found = loaded.measure(rows.x, rows.y)
    if _is_conformal(interval, level):
        from pacpfl import conformal

        found |= conformal.coverage(loaded, rows.x, rows.y, level)
    print_table(
        f"{loaded.name}, {len(rows.y)} rows",
        ["measure"],
        ["value"],
        [
            (name, f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}")
            for name, value in found.items()
        ],
    )


def _open(model: Path, data: Path, targets: bool, client: str | None) -> tuple[ClientModel, Rows]:
    from pacpfl.client import load_model

    loaded = load_model(model, client)
    return loaded, _read(data, loaded.shared, targets, client)


def _read(data: Path, shared: Shared, targets: bool, client: str | None) -> Rows:
    from pacpfl.data.tables.read import read_rows

    rows = read_rows(data, shared.schema, targets=targets, client=client)
    _tell([rows])
    return rows


def _tell(everyone: list[Rows]) -> None:
    for notice in everyone[0].notices:
        say(notice)


def _made(shared: Shared, rows: Rows) -> ClientModel:
    """Make a client's model from all rows, or from a part where the training kept no more either."""
    from pacpfl.client import ClientModel
    from pacpfl.data.store import evenly

    most = shared.config.tables.most
    if most and len(rows.x) > most:
        say(f"{most} of {len(rows.x)} rows of {rows.client} are used (tables.most).")
        rows = rows.only(evenly(len(rows.x), most))
    assert rows.y is not None
    model = ClientModel.condition(shared, rows.client, rows.x, rows.y)
    replace(model).check()  # a copy: what it computes is not kept
    return model


def _answers(model: ClientModel, rows: Rows, levels: list[float]) -> pd.DataFrame:
    """Return what a model says of rows, with where they stand and whose they are."""
    import pandas as pd

    schema, (file, row) = model.shared.schema, rows.places.T
    columns: dict[str, object] = {"file": file, "row": row, "client": rows.client}
    if schema.classes is None:
        found = model.predict(rows.x, levels)
        columns |= {"mean": found.mean, "std": found.std}
        columns |= {f"q{level:g}": q for level, q in zip(levels, found.quantiles, strict=True)}
    else:
        chances = model.probabilities(rows.x)
        columns["class"] = [schema.classes[best] for best in chances.argmax(1)]
        columns |= {f"p({n})": chances[:, place] for place, n in enumerate(schema.classes)}
    columns["outside"] = model.outside(rows.x)
    return pd.DataFrame(columns)


def _is_conformal(interval: str, level: float) -> bool:
    if interval not in ("model", "conformal"):
        raise InputError(f"--interval {interval}: there are model and conformal.")
    if not 0.5 <= level < 1:
        raise InputError(f"--level {level}: give a probability from 0.5 to below 1, such as 0.9.")
    return interval == "conformal"


def _covering(
    model: ClientModel, rows: Rows, level: float, calibrate: Path | None
) -> dict[str, object]:
    """Return the columns of intervals, or of sets of classes, that cover whatever the model is."""
    from pacpfl import conformal

    classes = model.shared.schema.classes
    if classes is not None:
        held = conformal.sets(model, rows.x, level)
        names = [[n for n, there in zip(classes, row, strict=True) if there] for row in held]
        return {"set": ["|".join(row) for row in names]}
    if calibrate is None:
        low, high = conformal.intervals(model, rows.x, level)
    else:
        others = _calibrators(model.shared, calibrate)
        reach = conformal.pooled_reach(others, len(model.samples), level)
        low, high = conformal.reaching(model, rows.x, reach)
    return {"low": low, "high": high}


def _calibrators(shared: Shared, data: Path) -> list[ClientModel]:
    from pacpfl.client import ClientModel
    from pacpfl.data.tables.read import read_clients

    everyone = [(r.client, r.x, r.y) for r in read_clients(data, shared.schema, targets=True)]
    return [ClientModel.condition(shared, n, x, y) for n, x, y in everyone if y is not None]


def levels_of(text: str) -> list[float]:
    try:
        levels = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        levels = [-1.0]
    if not all(0 < level < 1 for level in levels):
        raise InputError(f"--quantiles {text}: write numbers between 0 and 1, such as 0.05,0.95.")
    return levels
