"""What was measured on own tables, in the units of their target.

Inside a run targets are scaled; RSMSE, coverage and calibration do not notice, errors and widths do.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pacpfl import files, metrics
from pacpfl.config import Config
from pacpfl.data.standardize import fit_scalers
from pacpfl.folder import MethodResult
from pacpfl.studies.build import build_federation

FIELDS = ("rmse", "width_90", "nll")


def in_units(config: Config, results: Mapping[str, MethodResult]) -> list[dict[str, object]]:
    """For each method and client the root mean squared error, the width of the 90% interval and the
    negative log density, in the target's units; nothing where the target is a class."""
    raw = build_federation(replace(config, data=replace(config.data, standardize="none")))
    if raw.classes is not None:
        return []
    scalers = fit_scalers(raw, config.data.standardize)
    rows: list[dict[str, object]] = []
    for method, result in results.items():
        for group, evaluation in result.groups.items():
            clients = raw.groups()[group]
            for client, mean, measured in zip(
                clients, evaluation.means, evaluation.rows, strict=True
            ):
                assert client.test is not None
                scaler = scalers[client.name]
                error = client.test.y - scaler.target(np.asarray(mean, float))
                rows.append(
                    {
                        "method": method,
                        "group": group,
                        "client": client.name,
                        "rmse": float(np.sqrt(np.mean(error**2))),
                        "width_90": measured["width_90"] * scaler.y_std,
                        "nll": measured["nll"] + float(np.log(scaler.y_std)),
                    }
                )
    return rows


def write_units(out: Path, rows: list[dict[str, object]], target: str) -> None:
    """units.csv of a run folder."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["method", "group", "client", *FIELDS, "target"])
    writer.writeheader()
    writer.writerows({**row, "target": target} for row in rows)
    files.write(out / "units.csv", text.getvalue().encode())


def means(rows: list[dict[str, object]]) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """(method, group) -> field -> mean over clients and half width of its 95% interval."""
    places = dict.fromkeys((str(row["method"]), str(row["group"])) for row in rows)
    return {
        place: {
            name: metrics.interval(
                np.array([row[name] for row in rows if (row["method"], row["group"]) == place])
            )
            for name in FIELDS
        }
        for place in places
    }
