"""What the page of the classification study shows and says, computed from its runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pacpfl.methods.registry import entry
from reproduction.classification import DATASETS, PUBLISHED, ROWS
from reproduction.outcomes import Kept, boxes
from reproduction.table import rows

# The paper's names of the two that know no federation, too.
TITLES = {row: entry(row).class_title or entry(row).title for row in ROWS} | {
    "vanilla": "BNN per client (Vanilla)",
    "pooled": "One BNN for all (Pooled)",
}
NOTES = (
    "FEMNIST is represented by the digits of 40 writers, and by 40 more who joined after training; "
    "(20) and (all) have the same writers and the same test images. The paper's FEMNIST (500) stands "
    "beside ours with all training images, of which a writer has about 90.",
    "CE is the calibration error of all clients' predictions together, in 20 bins of confidence; "
    "one client has too few test images for a number of its own. The paper gives none for pFedBayes "
    "(its public code could not) nor for FedAvg, MTL and MAML, whose probabilities are the softmax.",
    "Training is the time of the rounds alone, on the machine named above, and compilation that of the "
    "first round, which includes it. The models without a federation have no rounds: theirs is the time "
    "of the whole fit, compilation and measuring included. The paper's seconds are from its own machine.",
)


def describe(kept: Sequence[Kept], seeds: Sequence[int], command: str) -> dict[str, Any]:
    """study.json, as far as the study has come: titles, boxes, and what the numbers say."""
    present = {(outcome.dataset, outcome.method) for outcome, _ in kept}
    datasets = {d: title for d, title in DATASETS.items() if any(d == p[0] for p in present)}
    methods = {row: title for row, title in TITLES.items() if any(row == p[1] for p in present)}
    panels = []
    for dataset, title in datasets.items():
        names = [row for row in methods if (dataset, row) in present]
        panels += [
            {
                "kind": "methods",
                "title": f"{title}: calibration error",
                "dataset": dataset,
                "methods": names,
                "metric": "ce",
                "second": None,
                "caption": "Of all clients' predictions together; mean over seeds. Smaller is better.",
            },
            {
                "kind": "boxes",
                "title": f"{title}: client by client",
                "dataset": dataset,
                "methods": names,
                "metric": "accuracy",
                "second": "nll",
                "boxes": {m: boxes(kept, dataset, names, m) for m in ("accuracy", "nll")},
                "caption": "Clients of all seeds together: the line is the median, the box the middle "
                "half, the whiskers reach to the last client within 1.5 times its width, and the dots "
                "are the others.",
            },
        ]
    return {
        "title": "Classification: handwriting, every method of the paper's table",
        "summary": list(summary(kept)),
        "command": command,
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": methods,
        "overview": ["accuracy", "ce", "train_seconds"],
        "panels": panels,
        "notes": list(NOTES),
    }


Table = dict[tuple[str, str], dict[str, dict[str, dict[str, Any]]]]


def summary(kept: Sequence[Kept]) -> Iterator[str]:
    """Where PAC-PFL is best and where not, in accuracy and in calibration; newcomers; what it costs."""
    table: Table = {}  # (dataset, group) -> metric -> method -> row of the table
    for row in rows([outcome for outcome, _ in kept], PUBLISHED):
        if math.isfinite(row["mean"]):
            place = table.setdefault((row["dataset"], row["group"]), {})
            place.setdefault(row["metric"], {})[row["method"]] = row
    contested = {
        p: m for p, m in table.items() if "pacpfl" in m["accuracy"] and len(m["accuracy"]) > 1
    }
    if not contested:
        yield "There is nothing to compare PAC-PFL with yet."
        return
    yield _contest(contested, "accuracy", "the highest mean accuracy", -1, "{:.1f}%")
    yield _contest(contested, "ce", "the lowest calibration error", 1, "{:.3f}")
    for dataset in DATASETS:
        existing, new = table.get((dataset, "existing"), {}), table.get((dataset, "new"), {})
        ours, joined = (m.get("accuracy", {}).get("pacpfl") for m in (existing, new))
        if ours and joined:
            yield (
                f"On {DATASETS[dataset]} it names {ours['mean']:.1f}% of existing and "
                f"{joined['mean']:.1f}% of new clients' images rightly."
            )
        spent = existing.get("train_seconds", {})
        if "pacpfl" in spent and "fedavg" in spent and spent["fedavg"]["mean"] > 0:
            ratio = spent["pacpfl"]["mean"] / spent["fedavg"]["mean"]
            yield (
                f"Training on {DATASETS[dataset]} takes {spent['pacpfl']['mean']:.1f} s, "
                f"{ratio:.2f} times as long as FedAvg's {spent['fedavg']['mean']:.1f} s."
            )


def _contest(contested: Table, metric: str, prize: str, sign: int, form: str) -> str:
    """In how many columns PAC-PFL wins a metric, where it does not, and by whom it is beaten."""
    won, lost = 0, []
    for (dataset, group), metrics in contested.items():
        found = metrics[metric]
        ours = found["pacpfl"]
        other = min((r for r in found.values() if r is not ours), key=lambda r: sign * r["mean"])
        if sign * ours["mean"] < sign * other["mean"]:
            won += 1
        else:
            lost.append(
                f"{DATASETS[dataset]}, {group} clients ({form.format(ours['mean'])} against "
                f"{form.format(other['mean'])} of {TITLES[other['method']]})"
            )
    text = (
        f"PAC-PFL has {prize} in {won} of {len(contested)} columns (data set and group of clients)"
    )
    return text + (f", and not on {'; '.join(lost)}." if lost else ".")
