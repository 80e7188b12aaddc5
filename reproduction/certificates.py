"""`python -m reproduction certificates`: what is certified of the shipped examples, and what fails."""

from __future__ import annotations

import csv
import json
import platform
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from pacpfl import config as configuration
from pacpfl import files
from pacpfl.certify.certificate import Privacy, certify_posterior, certify_rows
from pacpfl.certify.clients import Family, members
from pacpfl.certify.document import FILE, certify, family_of
from pacpfl.cli.common import console
from pacpfl.config import Config, override
from pacpfl.engine import runtime
from pacpfl.run import load_run, run

DELTA, REPETITIONS = 0.05, 1000
HEADER = ("run", "kind", "group", "median", "worst", "truth", "failures", "repetitions", "delta")
# The configuration of each run, and what is changed in it.
RUNS: dict[str, tuple[str, list[str]]] = {
    "polynomial": ("certify-polynomial", []),
    "polynomial, private": (
        "certify-polynomial",
        ["privacy.mode=gaussian", "privacy.epsilon=8", "privacy.delta=1e-5"],
    ),
    "digits": ("certify-digits", []),
    "writers": ("certify-writers", []),
}
KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "averaged model": lambda row: row,
    "drawn function": lambda row: row["drawn"],
}


def certificates(
    out: Annotated[Path, typer.Option(help="Its folder.")] = Path("runs/certificates"),
    data: Annotated[
        Path | None, typer.Option(help="Images by writer; without, that run is left out.")
    ] = None,
) -> None:
    """Train the shipped examples, certify them, and count failures where the truth is known.

    What is complete is not made again: the command goes on where it was stopped.
    """
    runtime.configure()
    rows: list[tuple[Any, ...]] = []
    for name, (shipped, changes) in RUNS.items():
        if name == "writers" and data is None:
            continue
        found = out / name.replace(", ", "-") / "rows.json"
        if not found.exists():
            console.print(f"certificates: {name}")
            more = [f"images.path={data}"] if name == "writers" else []
            files.write_json(
                found, {"rows": list(measured(found.parent, name, shipped, changes + more))}
            )
        rows += map(tuple, json.loads(found.read_text())["rows"])
    with open(out / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    files.write(out / "README.md", page(rows).encode())
    console.print(f"Written: {out / 'table.csv'}")


def measured(
    folder: Path, name: str, shipped: str, changes: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Run, certify, and return the rows of the table: of the run's clients, then of repetitions."""
    path = resources.files("pacpfl") / "configs" / f"{shipped}.toml"
    config: Config = override(configuration.load(path.read_text("utf-8"), path.name), changes)
    run(config, folder)
    certify(folder, delta=DELTA)
    document = json.loads((folder / FILE).read_text())
    for group in document["groups"]:
        inside = [row for row in document["clients"] if row["group"] == group]
        for kind, part in KINDS.items():
            found = [part(row) for row in inside]
            bounds, risks = ([one[key] for one in found] for key in ("bound", "test_risk"))
            failed = sum(b < r for b, r in zip(bounds, risks, strict=True))
            yield _row(name, kind, group, bounds, risks, failed)
    average = document["newcomers"]
    risks = [row["test_risk"] for row in document["clients"] if row["group"] == "new"]
    truth = float(np.mean(risks))
    bound, kind = average["bound"], "average client yet to come"
    yield _row(name, kind, "new", [bound], [truth], int(bound < truth))
    if "private" not in name:
        trained = load_run(folder)
        yield from repeated(name, family_of(trained, None, None))


def repeated(name: str, family: Family) -> Iterator[tuple[Any, ...]]:
    """Draw clients a thousand times from what models lose on real test rows: then the truth is exact.

    A repetition takes a new client, whose rows to come are its test rows with equal chances, and draws as
    many as it has to judge from these.
    """
    everyone = members(family.trained.federation)
    pools: list[Any] = []
    for places in family.blocks:
        clients = [everyone[place][1] for place in places]
        fits = [one.train.rows(slice(len(one.train) // 2)) for one in clients]
        tests = [one.test for one in clients if one.test is not None]
        found = family.rows(places, fits, tests)
        pools += [(one, losses) for one, losses in zip(clients, found, strict=True)]
    pools = [pool for pool, (group, _) in zip(pools, everyone, strict=False) if group == "new"]
    rng, fresh = np.random.default_rng(0), Privacy("independent", "drawn")
    bounds: dict[str, list[float]] = {"averaged model": [], "drawn function": [], "PAC-Bayes": []}
    truths: dict[str, list[float]] = {kind: [] for kind in bounds}
    for _ in range(REPETITIONS):
        client, losses = pools[rng.integers(len(pools))]
        chosen = rng.integers(len(losses.drawn), size=len(client.train))
        for kind, values in (("averaged model", losses.averaged), ("drawn function", losses.drawn)):
            binary = family.binary and kind == "averaged model"
            bound = certify_rows(
                client.name, family.loss, values[chosen], privacy=fresh, delta=DELTA,
                posterior=kind, binary=binary,
            ).bound  # fmt: skip
            bounds[kind].append(bound)
            truths[kind].append(float(values.mean()))
        bound = certify_posterior(
            client.name, family.loss, float(losses.drawn[chosen].mean()), 0.0,
            m=len(chosen), privacy=fresh, delta=DELTA,
        ).bound  # fmt: skip
        bounds["PAC-Bayes"].append(bound)
        truths["PAC-Bayes"].append(float(losses.drawn.mean()))
    for kind in bounds:
        pairs = zip(bounds[kind], truths[kind], strict=True)
        failed = sum(bound < truth for bound, truth in pairs)
        yield _row(name, f"{kind}, repeated", "new", bounds[kind], truths[kind], failed)


def _row(
    name: str, kind: str, group: str, bounds: list[float], truths: list[float], failed: int
) -> tuple[Any, ...]:
    numbers = median(bounds), max(bounds), median(truths)
    return name, kind, group, *(round(value, 4) for value in numbers), failed, len(bounds), DELTA


def page(rows: list[tuple[Any, ...]]) -> str:
    """Return the README: the table, and what its columns are."""
    head = f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}\n"
    body = "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
    cpu = f"{platform.machine()}, {time.strftime('%Y-%m-%d')}"
    return f"""# What is certified, and how often it fails

```sh
python -m reproduction certificates --data digits_by_writer.npz
```

{cpu}. Medians and the largest of bounds over clients, delta {DELTA}; `truth` is the median of average
losses on test rows, and a failure is a bound below a client's own. Few test rows (three or four in digits)
miss a client's true risk either way: such failures are no broken bounds. Those of rows that are `repeated`,
{REPETITIONS:,} times, do: a client is drawn, its rows are drawn from its test rows, and the truth is their
average, exactly. PAC-Bayes is repeated for a posterior that does not move from the prior, where it is
tightest. [Certificates](../../certificates.md) tells how to read them.

{head}{body}"""
