"""What the numbers say, in words: the summary on top of the page, and what to be careful about.

Every sentence is computed; none is written for a particular run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from pacpfl.report import class_words
from pacpfl.report.compare import Caution, compare, mean_of
from pacpfl.report.folder import Run
from pacpfl.report.measures import RSMSE, number, percent

CALIBRATED_WITHIN = 0.05  # mean coverage of the 90% bands that still counts as kept promise
OVERCONFIDENT_BELOW = 0.75  # coverage of a client's 90% band
ENOUGH_TEST_POINTS = 20
NAMED_CLIENTS = 6
BANDS_CHECKED = "whether the bands of any client hold far too few of its test points"


def summary(run: Run) -> list[str]:
    """The paragraph on top: who took part, who wins, is it honest, did the learning work."""
    sentences = [_participants(run)]
    if run.classification:
        sentences += [class_words.winner(run, group) for group in run.groups]
        sentences += [class_words.calibration(run)]
    else:
        sentences += [_winner(run, group) for group in run.groups]
        sentences += [_calibration(run)]
    sentences += [_particles(run), _skipped(run)]
    return [sentence for sentence in sentences if sentence]


def _count(amount: int, thing: str) -> str:
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"


def _participants(run: Run) -> str:
    existing, new = (len(run.names(group)) for group in ("existing", "new"))
    samples = run.record.get("clients", {}).get("samples", {})
    each = ""
    if {"min", "median", "max"} <= set(samples):
        few, usual, many = (f"{samples[key]:g}" for key in ("min", "median", "max"))
        each = (
            f" with {few} samples each" if few == many
            else f" with {few} to {many} samples each (half of them at most {usual})"
        )  # fmt: skip
    text = f"{run.titles[run.main]} learned from {_count(existing, 'client')}{each}"
    if new:
        text += f" and then served {_count(new, 'new client')} who took no part in the learning"
    return text + "."


def _winner(run: Run, group: str) -> str:
    """Who has the smallest mean RSMSE, by how much, and whether that could be chance."""
    means = {method: mean_of(run, method, group, "rsmse") for method in run.titles}
    ranking = sorted((m for m in means if np.isfinite(means[m])), key=lambda m: means[m])
    if not ranking:
        return ""
    best = ranking[0]
    text = f"On {group} clients {run.titles[best]}"
    if len(ranking) == 1:
        return f"{text} reaches an {RSMSE.title} of {number(means[best])}."
    second = ranking[1]
    text += (
        f" is the most accurate, with an {RSMSE.title} of {number(means[best])}: "
        f"{percent(1 - means[best] / means[second])} below {run.titles[second]} "
        f"({number(means[second])})"
    )
    paired = compare(run, best, second, group)
    if paired is not None:
        text += f" and smaller for {paired.better} of {paired.clients} clients"
        if not paired.clear:
            text += ", a difference that could be chance"
    if run.main in ranking[1:]:
        text += (
            f"; {run.titles[run.main]} is in place {ranking.index(run.main) + 1} "
            f"of {len(ranking)} ({number(means[run.main])})"
        )
    return text + "."


def _calibration(run: Run) -> str:
    covered = {g: mean_of(run, run.main, g, "coverage_90") for g in run.groups}
    covered = {group: share for group, share in covered.items() if np.isfinite(share)}
    title = run.titles[run.main]
    if not covered:
        return f"{title} says nothing about its uncertainty in this run."
    shares = " and ".join(f"{percent(share)} of the test points of {group} clients"
                          for group, share in covered.items())  # fmt: skip
    text = f"Its 90% bands hold {shares}"
    if min(covered.values()) < 0.9 - CALIBRATED_WITHIN:
        return f"{text}: too few, it is over-confident."
    if max(covered.values()) > 0.9 + CALIBRATED_WITHIN:
        return f"{text}: more than they promise, so they are wider than they need to be."
    return f"{text}: they keep their promise."


def _particles(run: Run) -> str:
    entry = run.methods[run.main]
    count = entry.get("particles")
    if count is None:
        return ""
    if count == 1:
        return "It uses one particle."
    facts = entry.get("diversity", {})
    if facts.get("collapsed"):
        return f"Its {count} particles have collapsed: they predict the same, as one would."
    if "value" not in facts:
        return f"It uses {count} particles."
    text = f"Its {count} particles stayed different (diversity {number(facts['value'])}"
    if "at_start" in facts:
        text += f", {number(facts['at_start'])} at the start"
    return text + ")."


def _skipped(run: Run) -> str:
    entry = run.methods[run.main]
    if "skipped_steps" not in entry:
        return ""
    skipped = int(entry["skipped_steps"])
    steps = int(entry.get("rounds", 0)) * int(entry.get("particles", 1))
    if not skipped:
        return "No training step was skipped."
    of_all = f" of {steps} ({percent(skipped / steps, 2)})" if steps else ""
    verb = "was" if skipped == 1 else "were"
    return f"{_count(skipped, 'training step')}{of_all} {verb} skipped."


def recovered_kinds(run: Run, group: str) -> tuple[int, int] | None:
    """(clients whose strongest component is that of their true kind, clients of known kind).

    Components have no names of their own: they are matched with the kinds so that the most
    clients agree.
    """
    values = run.per_client("responsibilities", group)
    kinds = run.kinds(group)
    known = [index for index, kind in enumerate(kinds) if kind]
    if values is None or not known:
        return None
    strongest = values.argmax(axis=1)
    names = sorted({kinds[index] for index in known})
    agreement = np.zeros((len(names), values.shape[1]))
    for index in known:
        agreement[names.index(kinds[index]), strongest[index]] += 1
    rows, columns = linear_sum_assignment(-agreement)
    return int(agreement[rows, columns].sum()), len(known)


def overconfident(rows: pd.DataFrame) -> pd.Series:
    """Which clients have enough test points to tell that their 90% band holds far too few."""
    return (rows["coverage_90"] < OVERCONFIDENT_BELOW) & (rows["test"] >= ENOUGH_TEST_POINTS)


def cautions(run: Run) -> list[Caution]:
    """All that should be looked at, for every method that learned particles."""
    found = []
    status = str(run.record.get("status", "complete"))
    if status != "complete":
        found.append(
            Caution(
                "The run is not finished",
                f"Its status is \N{LEFT DOUBLE QUOTATION MARK}{status}"
                "\N{RIGHT DOUBLE QUOTATION MARK}; the numbers below are those of its last state.",
                "Start it again with the same command: it goes on from its last checkpoint.",
            )
        )
    watched = [name for name, entry in run.methods.items() if "particles" in entry] or [run.main]
    for method in watched:
        entry, title = run.methods[method], run.titles[method]
        found += _training_cautions(entry, title)
        if run.classification:
            found += class_words.cautions(run, method)
        else:
            found += _confidence_cautions(run, method, title)
    return found


def _training_cautions(entry: dict[str, Any], title: str) -> list[Caution]:
    found = []
    facts = entry.get("diversity", {})
    if facts.get("collapsed") and entry.get("particles", 1) > 1:
        found.append(
            Caution(
                f"{title}: the particles have collapsed",
                f"{facts.get('words', '')} Particles that agree cost more than one and tell no "
                "more.".strip(),
                "Use the SVGD kernel on function space, which pushes apart what particles "
                "predict, or a smaller tau; or take one particle and save the time.",
            )
        )
    skipped = int(entry.get("skipped_steps", 0))
    if skipped:
        found.append(
            Caution(
                f"{title}: {_count(skipped, 'step')} skipped",
                "A particle whose gradient is not finite stands still for that round; "
                "the others go on.",
                "A few at the start do no harm. If there are many, lower the learning rate, "
                "standardise the features, or run in float64.",
            )
        )
    if entry.get("lambda_condition") is False:
        text = "The bound over clients asks for lambda greater than n\N{SUBSCRIPT TWO} + upsilon"
        if "lambda" in entry and "tau" in entry:
            text += f"; this run has lambda = {entry['lambda']:g} (tau = {entry['tau']:g})"
        found.append(
            Caution(
                f"{title}: the condition on lambda does not hold",
                f"{text}. The predictions are what they are, but no guarantee covers them.",
                "Give a larger lambda, or a larger tau, from which lambda follows.",
            )
        )
    return found


def _confidence_cautions(run: Run, method: str, title: str) -> list[Caution]:
    rows = run.clients[run.clients["method"] == method]
    flagged = rows[overconfident(rows)].sort_values("coverage_90", kind="stable")
    if flagged.empty:
        return []
    named = [
        f"{client} ({percent(covered)})"
        for client, covered in zip(
            flagged["client"][:NAMED_CLIENTS], flagged["coverage_90"][:NAMED_CLIENTS], strict=True
        )
    ]
    rest = len(flagged) - len(named)
    listed = ", ".join(named) + (f" and {rest} more" if rest else "")
    verb = "is" if len(flagged) == 1 else "are"
    return [
        Caution(
            f"{title}: {_count(len(flagged), 'client')} {verb} over-confident",
            f"Their 90% bands hold less than {percent(OVERCONFIDENT_BELOW)} of their test points: "
            f"{listed}.",
            "Do not rely on these bands. Compare with uniform or stacking mixture weights, let "
            "these clients condition on more data, or raise the noise level of the hyper-prior.",
        )
    ]
