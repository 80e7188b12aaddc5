"""What the page knows about every single client, as data from which its panel is drawn when opened.

Words are made here; curves travel packed (`compact`) and are drawn by `panels.js`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pacpfl.report import panel_curves
from pacpfl.report.class_plots import class_name
from pacpfl.report.folder import Run
from pacpfl.report.gain_words import of_one
from pacpfl.report.judge import FEW_SAMPLES, FEW_TESTS, Judged, going_alone
from pacpfl.report.measures import (
    ACCURACY,
    CE,
    COVERAGE_90,
    NLL,
    OF_A_CLASS_CLIENT,
    RSMSE,
    Measure,
    counted,
    number,
    percent,
)
from pacpfl.report.style import COLOURS, looks
from pacpfl.report.tables import CLIENTS_SHOWN, client_link

ONE_PARTICLE = 0.95  # weight from which a client listens to a single particle
DASHES = {"-": "", "--": "6 3", "-.": "7 3 1.5 3", ":": "1.5 2.5"}


@dataclass(frozen=True)
class Sources:
    """What the clients of one group are looked up in, gathered once."""

    scores: dict[tuple[str, str], pd.Series]  # (method, client) -> its row of clients.csv
    calibration: dict[str, np.ndarray]  # method -> one row per client
    weights: np.ndarray | None
    members: np.ndarray | None
    classes: np.ndarray | None
    errors: dict[int, list[dict[str, Any]]]
    offsets: dict[str, np.ndarray]  # where each client begins in the arrays of its group


def panel_measures(run: Run) -> tuple[Measure, ...]:
    """The columns of the table inside a panel; the first is the one methods are compared by."""
    return (ACCURACY, *OF_A_CLASS_CLIENT) if run.classification else (RSMSE, CE, NLL, COVERAGE_90)


def panel_data(run: Run, judged: list[Judged]) -> dict[str, Any]:
    """All that the panels are drawn from."""
    styles, methods = looks(list(run.titles)), list(run.titles)
    alone = going_alone(run)
    record = run.record.get("clients", {})
    sources = {group: _sources(run, group, alone) for group in run.groups}
    names = next((len(s.classes[0]) for s in sources.values() if s.classes is not None), 0)
    images = [a for key, a in run.arrays.items() if key.endswith("/errors/images")]
    return {
        "main": methods.index(run.main),
        "alone": None if alone is None else methods.index(alone),
        "methods": [
            {
                "title": run.titles[name],
                "colour": COLOURS.index(styles[name].colour),
                "dash": DASHES.get(str(styles[name].dash), "4 2 1 2"),
            }
            for name in methods
        ],
        "measures": [{"title": m.title, "goal": m.goal} for m in panel_measures(run)],
        "classes": [class_name(place, names) for place in range(names)],
        "image": list(images[0].shape[1:]) if images else [],
        "feature": str((record.get("features") or ["input"])[0]),
        "target": str(record.get("target", "target")),
        "clients": [
            _client(run, client, sources[client.group], alone) for client in judged[:CLIENTS_SHOWN]
        ],
    }


def _sources(run: Run, group: str, alone: str | None) -> Sources:
    rows = run.clients[run.clients["group"] == group]
    shown = [run.main] + ([alone] if alone else [])
    tables = {name: run.per_client(f"calibration/{name}", group) for name in shown}
    return Sources(
        scores={(row["method"], row["client"]): row for _, row in rows.iterrows()},
        calibration={name: table for name, table in tables.items() if table is not None},
        weights=run.per_client("weights", group),
        members=run.per_client("responsibilities", group),
        classes=run.per_client("classes", group),
        errors=panel_curves.wrong_answers(run, group),
        offsets=panel_curves.offsets(run, group),
    )


def _client(run: Run, client: Judged, sources: Sources, alone: str | None) -> dict[str, Any]:
    lead = panel_measures(run)[0].key
    values = {method: sources.scores.get((method, client.name)) for method in run.titles}
    leads = {
        method: float("nan") if row is None else float(row[lead]) for method, row in values.items()
    }
    data: dict[str, Any] = {
        "link": client_link(client),
        "name": client.name,
        "group": client.group,
        "kind": client.kind,
        "words": _words(run, client, sources, leads, alone),
        "warnings": warnings(run, client, values[run.main]),
        "leads": [round(value, 5) if math.isfinite(value) else None for value in leads.values()],
        "scores": [
            ["\N{EN DASH}" if row is None else number(row[m.key]) for m in panel_measures(run)]
            for row in values.values()
        ],
    }
    if sources.weights is not None:
        data["weights"] = [round(float(w), 4) for w in sources.weights[client.place]]
    if sources.members is not None:
        data["members"] = [round(float(w), 4) for w in sources.members[client.place]]
    if run.classification:
        if run.main in sources.calibration:
            data["bins"] = panel_curves.reliability(sources.calibration[run.main][client.place])
        if sources.classes is not None:
            data["classes"] = sources.classes[client.place].tolist()
        data["errors"] = sources.errors.get(client.place, [])
        return data
    if run.main in sources.calibration:
        data["calibration"] = panel_curves.calibration(client, sources.calibration)
    data["bands"] = panel_curves.bands(run, client, alone, sources.offsets)
    return data


def _words(
    run: Run, client: Judged, sources: Sources, leads: dict[str, float], alone: str | None
) -> list[str]:
    """What one would say about this client in passing."""
    known = counted(client.samples, "sample")
    if client.later:
        known += f" and {client.later} more that came later"
    own = sources.scores[run.main, client.name]
    told = (
        f"It has {known} of its own and was measured on {counted(client.test, 'test sample')} that "
        "nobody learned from."
    )
    sentences = [told, of_one(run, client, alone, leads)]
    if run.classification:
        table = sources.calibration.get(run.main)
        if table is not None:
            count, right, sure = table[client.place].sum(axis=0)
            if count:
                sentences.append(
                    f"Its answers are {percent(sure / count)} sure on average, and "
                    f"{percent(right / count)} of them are right."
                )
    elif math.isfinite(own["coverage_90"]):
        sentences.append(f"Its 90% band holds {percent(own['coverage_90'])} of its test points.")
    return [*sentences, *_particle_words(client, sources)]


def _particle_words(client: Judged, sources: Sources) -> list[str]:
    if sources.weights is None or sources.weights.shape[1] < 2:
        return []
    weights = sources.weights[client.place]
    strongest = int(np.argmax(weights))
    if weights[strongest] > ONE_PARTICLE:
        return [
            f"It listens to one particle, number {strongest + 1} ({percent(weights[strongest])})."
        ]
    # As many equal weights would have the same sum of squares.
    count = number(1 / float((weights**2).sum()), 1)
    return [f"Its weight is spread over about {count} of {len(weights)} particles."]


def warnings(run: Run, client: Judged, own: pd.Series) -> list[str]:
    """What to be careful about with this client; the tests are those of the warnings on top."""
    found = []
    if client.overconfident:
        found.append(
            "It is over-confident: fewer of its answers are right than their confidence says, more "
            "than chance would explain."
            if run.classification
            else f"It is over-confident: its 90% band holds {percent(own['coverage_90'])} of its "
            f"{client.test} test points, fewer than chance would explain."
        )
    if client.verdict == "hurt":
        found.append("It does better alone, more than chance would explain.")
    if client.few_samples:
        found.append(
            f"It has fewer than {FEW_SAMPLES} samples: what it is told is mostly the prior that the "
            "others' data shaped."
        )
    if client.few_tests:
        found.append(
            f"It has fewer than {FEW_TESTS} test samples: the numbers on this panel are rough."
        )
    return found
