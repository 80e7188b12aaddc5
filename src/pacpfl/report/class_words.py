"""What the numbers of a classification run say, in words. Every sentence is computed."""

from __future__ import annotations

import numpy as np

from pacpfl.report.compare import Caution, compare, mean_of
from pacpfl.report.folder import Run
from pacpfl.report.measures import number, percent

SURE_WITHIN = 0.05  # mean confidence this close to the accuracy still counts as honest


def confidence_and_accuracy(run: Run, method: str, group: str) -> tuple[float, float] | None:
    """Of all clients' predictions together: how sure they are on average, and how often right."""
    tables = run.per_client(f"calibration/{method}", group)
    if tables is None:
        return None
    samples, right, sure = tables.sum(axis=(0, 1))
    return (float(sure / samples), float(right / samples)) if samples > 0 else None


def winner(run: Run, group: str) -> str:
    """Who names most samples rightly, by how much, and whether that could be chance."""
    means = {method: mean_of(run, method, group, "accuracy") for method in run.titles}
    ranking = sorted((m for m in means if np.isfinite(means[m])), key=lambda m: -means[m])
    if not ranking:
        return ""
    best = ranking[0]
    text = f"On {group} clients {run.titles[best]}"
    if len(ranking) == 1:
        return f"{text} names {percent(means[best], 1)} of the test samples rightly."
    second = ranking[1]
    text += (
        f" is the most accurate, with {percent(means[best], 1)} of the test samples named rightly: "
        f"{points(means[best] - means[second])} more than {run.titles[second]} "
        f"({percent(means[second], 1)})"
    )
    paired = compare(run, best, second, group)
    if paired is not None:
        text += f" and more for {paired.better} of {paired.clients} clients"
        if not paired.clear:
            text += ", a difference that could be chance"
    if run.main in ranking[1:]:
        text += (
            f"; {run.titles[run.main]} is in place {ranking.index(run.main) + 1} "
            f"of {len(ranking)} ({percent(means[run.main], 1)})"
        )
    return text + "."


def points(share: float) -> str:
    text = f"{100 * share:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def calibration(run: Run) -> str:
    """How far the main method's confidence is from how often it is right."""
    found = {g: confidence_and_accuracy(run, run.main, g) for g in run.groups}
    pairs = {group: pair for group, pair in found.items() if pair is not None}
    if not pairs:
        return f"{run.titles[run.main]} says nothing about its uncertainty in this run."
    errors = " and ".join(
        f"{number(mean_of(run, run.main, group, 'ce'))} for {group} clients" for group in pairs
    )
    shares = " and ".join(
        f"{percent(sure, 1)} sure and {percent(right, 1)} right" for sure, right in pairs.values()
    )
    text = f"Its calibration error is {errors}; on average it is {shares}"
    gaps = [sure - right for sure, right in pairs.values()]
    if max(gaps) > SURE_WITHIN:
        return f"{text}: it is over-confident."
    if min(gaps) < -SURE_WITHIN:
        return f"{text}: it is more careful than it needs to be."
    return f"{text}: it means what it says."


def cautions(run: Run, method: str) -> list[Caution]:
    """Groups for which a method is much surer than it is right."""
    found = []
    for group in run.groups:
        pair = confidence_and_accuracy(run, method, group)
        if pair is not None and pair[0] - pair[1] > SURE_WITHIN:
            sure, right = pair
            found.append(
                Caution(
                    f"{run.titles[method]}: over-confident on {group} clients",
                    f"Its predictions are {percent(sure, 1)} sure on average and {percent(right, 1)} "
                    "of them are right.",
                    "Do not take its probabilities at their word. Take fewer or smaller steps at the "
                    "client, a lower temperature, more particles or more networks, or stop training "
                    "earlier.",
                )
            )
    return found
