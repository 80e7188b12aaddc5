"""What the numbers say, in words: the summary on top of the page.

Every sentence is computed; none is written for a particular run.
"""

from __future__ import annotations

import numpy as np

from pacpfl.report import class_words
from pacpfl.report.compare import compare, mean_of
from pacpfl.report.folder import Run
from pacpfl.report.gain_words import for_whom
from pacpfl.report.judge import Judged, judge
from pacpfl.report.measures import RSMSE, counted, number, percent

CALIBRATED_WITHIN = 0.05  # mean coverage of the 90% bands that still counts as kept promise


def summary(run: Run, judged: list[Judged] | None = None) -> dict[str, list[str]]:
    """Question -> the sentences that answer it: what was learned, how good, how sure, for whom."""
    judged = judge(run) if judged is None else judged
    if run.classification:
        winners = [class_words.winner(run, group) for group in run.groups]
        sure = class_words.calibration(run)
    else:
        winners = [_winner(run, group) for group in run.groups]
        sure = _calibration(run)
    answers = {
        "What was learned": [_participants(run), _particles(run), _skipped(run), _private(run)],
        "How good it is": winners,
        "How sure it is": [sure, _overconfident(run, judged)],
        "Whom it helps": for_whom(run, judged),
    }
    filled = {title: [text for text in texts if text] for title, texts in answers.items()}
    return {title: texts for title, texts in filled.items() if texts}


def _private(run: Run) -> str:
    """The epsilon of a private run, with all that belongs to it; what is wrong is among the warnings."""
    privacy = run.methods[run.main].get("privacy")
    return str(privacy.get("words", "")) if isinstance(privacy, dict) else ""


def _overconfident(run: Run, judged: list[Judged]) -> str:
    """How many clients should not rely on what they are told."""
    flagged = sum(client.overconfident for client in judged)
    if flagged:
        verb = "is" if flagged == 1 else "are"
        return (
            f"{flagged} of {len(judged)} clients {verb} told more than holds, beyond chance (see the "
            "warnings)."
        )
    return ""


def _participants(run: Run) -> str:
    existing, new = run.count("existing"), run.count("new")
    samples = run.record.get("clients", {}).get("samples", {})
    each = ""
    if {"min", "median", "max"} <= set(samples):
        few, usual, many = (f"{samples[key]:g}" for key in ("min", "median", "max"))
        each = (
            f" with {few} samples each" if few == many
            else f" with {few} to {many} samples each (half of them at most {usual})"
        )  # fmt: skip
    text = f"{run.titles[run.main]} learned from {counted(existing, 'client')}{each}"
    if new:
        text += f" and then served {counted(new, 'new client')} who took no part in the learning"
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
    return f"{counted(skipped, 'training step')}{of_all} {verb} skipped."


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
    from scipy.optimize import linear_sum_assignment  # a third of a second to import

    rows, columns = linear_sum_assignment(-agreement)
    return int(agreement[rows, columns].sum()), len(known)
