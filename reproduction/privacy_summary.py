"""What the privacy study says: its table with epsilon, delta and adjacency, curves, and sentences."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl import files
from reproduction import table
from reproduction.outcomes import Kept
from reproduction.privacy_study import (
    DELTA,
    MODES,
    PUBLISHED,
    STATED,
    SUBJECTS,
    Subject,
    means,
    row_name,
    titles,
)

COLUMNS = (*table.COLUMNS, "mode", "epsilon", "delta", "adjacency")
ADJACENCY = "add or remove one client"
NOTES = (
    "Neighbours differ by one client, added or removed. Gaussian noise gives (epsilon, delta) with "
    f"delta = {DELTA:g}, Laplace noise on updates clipped in L1 pure epsilon (delta = 0). The printed "
    "algorithm clips in L2 and adds Laplace noise: the epsilon it states is no guarantee, and "
    "docs/audit.md shows an attack that refutes it.",
    "Settings of every mode were chosen on federations drawn with seeds of 100 and above, with the same "
    "number of trials out of the same space for each, at epsilon = 2 and 8; the configurations say how. "
    "What that search itself would cost is not counted: it used other clients.",
    "The noise is drawn from the run's seed, so that the study can be repeated; a real run draws it from "
    "the system's entropy.",
)


def write_table(folder: Path, kept: Sequence[Kept], about: Mapping[str, Any]) -> None:
    """study.json, and table.csv with what each row's privacy is worth."""
    outcomes = [outcome for outcome, _ in kept]
    rows = table.rows(outcomes, PUBLISHED)
    table.write_table(folder, rows, {**about, **table.circumstances(outcomes)})
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        found = {**row, **budget(str(row["method"]))}
        writer.writerow({k: "" if _missing(v) else v for k, v in found.items()})
    files.write(folder / "table.csv", text.getvalue().encode())


def _missing(value: Any) -> bool:
    return isinstance(value, float) and not np.isfinite(value)


def budget(row: str) -> dict[str, Any]:
    """The columns about privacy; a client alone releases nothing, which is epsilon 0."""
    mode, _, epsilon = row.partition("-")
    if mode == "alone":
        return {"mode": "alone", "epsilon": 0, "delta": 0, "adjacency": ADJACENCY}
    if mode not in MODES:
        return {"mode": mode, "epsilon": "", "delta": "", "adjacency": ""}
    delta = DELTA if mode == "gaussian" else 0
    return {"mode": mode, "epsilon": float(epsilon), "delta": delta, "adjacency": ADJACENCY}


def describe(kept: Sequence[Kept], seeds: Sequence[int], command: str) -> dict[str, Any]:
    """study.json, as far as the study has come."""
    present = {(outcome.dataset, outcome.method) for outcome, _ in kept}
    known = {name for _, name in present}
    datasets = {d: s.title for d, s in SUBJECTS.items() if any(d == p[0] for p in present)}
    curves = [
        curve(dataset, SUBJECTS[dataset], {name for d, name in present if d == dataset})
        for dataset in datasets
    ]
    return {
        "title": "Privacy: what accuracy costs in epsilon",
        "summary": summary(kept),
        "command": command,
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": {name: title for name, title in titles().items() if name in known},
        "panels": [],
        "curves": curves,
        "notes": list(NOTES),
    }


def curve(dataset: str, subject: Subject, present: set[str]) -> dict[str, Any]:
    """What report/privacy_plots.py draws: for each mode its (epsilon, row), and the two lines."""
    lines = {"none": "without privacy", "alone": subject.alone_title}
    return {
        "dataset": dataset,
        "metric": subject.metric,
        "title": f"{subject.title}: accuracy against epsilon",
        "x_label": f"epsilon ({ADJACENCY}; delta = {DELTA:g} for Gaussian noise, else 0)",
        "modes": {
            mode: {
                "title": MODES[mode],
                "points": [
                    (epsilon, row_name(mode, epsilon))
                    for epsilon in subject.epsilons
                    if row_name(mode, epsilon) in present
                ],
            }
            for mode in subject.modes
        },
        "lines": {name: words for name, words in lines.items() if name in present},
        "caption": "Bars and bands are 95% intervals over seeds. A curve above the dotted line of "
        "clients alone buys nothing with the privacy it spends."
        if subject.metric == "rsmse"
        else "Bars and bands are 95% intervals over seeds. A curve below the dotted line of clients "
        "alone buys nothing with the privacy it spends.",
    }


def summary(kept: Sequence[Kept]) -> list[str]:
    """How far each mode is from no privacy at epsilon = 8, and whether federating still pays."""
    sentences = []
    for group in ("existing", "new"):
        sentences += _compare_modes(means(kept, "polynomial", group, "rsmse"), group)
    for dataset, subject in SUBJECTS.items():
        sentences += _against_alone(kept, dataset, subject)
    return sentences or ["There is nothing to compare yet."]


def _compare_modes(values: Mapping[str, Mapping[int, float]], group: str) -> list[str]:
    gaps = {}
    for mode in MODES:
        row = row_name(mode, STATED)
        both = sorted(set(values.get(row, {})) & set(values.get("none", {})))
        if both:
            gaps[mode] = float(np.mean([values[row][s] - values["none"][s] for s in both]))
    if "gaussian" not in gaps or "paper" not in gaps:
        return []
    told = ", ".join(f"{gap:.3f} with {mode}" for mode, gap in gaps.items())
    closer = 100 * (1 - gaps["gaussian"] / gaps["paper"]) if gaps["paper"] > 0 else float("nan")
    return [
        f"Polynomial, {group} clients, stated epsilon = {STATED:g}: RSMSE is above that without privacy by "
        f"{told}; gaussian is {closer:.0f}% closer to it than the printed algorithm, and unlike it "
        "keeps what it states."
    ]


def _against_alone(kept: Sequence[Kept], dataset: str, subject: Subject) -> list[str]:
    """From which epsilon on Gaussian noise beats what a client does alone."""
    values = means(kept, dataset, "existing", subject.metric)
    if "alone" not in values:
        return []
    sign = 1 if subject.metric == "rsmse" else -1
    alone = float(np.mean(list(values["alone"].values())))
    better = [
        epsilon
        for epsilon in subject.epsilons
        if (row := row_name("gaussian", epsilon)) in values
        and sign * float(np.mean(list(values[row].values()))) < sign * alone
    ]
    words = f"from epsilon = {min(better):g} on" if better else "at none of these epsilons"
    return [
        f"{subject.title}: with Gaussian noise existing clients do better together than alone "
        f"({subject.alone_title}, {alone:.3g}) {words}."
    ]
