"""What to be careful about: each warning says what it is, what it means here, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from pacpfl.report import class_words
from pacpfl.report.compare import Caution, compare
from pacpfl.report.folder import Run
from pacpfl.report.judge import (
    FEW_SAMPLES,
    FEW_TESTS,
    PROMISED,
    Judged,
    going_alone,
    judge,
    overconfident,
)
from pacpfl.report.measures import counted, percent
from pacpfl.report.significance import LEVEL

NAMED_CLIENTS = 6
CHECKED = (
    "the state of the run, its privacy, whether particles collapsed, skipped training steps, the "
    "condition on lambda, whether any client promises more than it keeps or would do better alone, "
    "and whether there is enough data to tell"
)


def cautions(run: Run, judged: list[Judged] | None = None) -> list[Caution]:
    """All that should be looked at, the run first, then its clients."""
    judged = judge(run) if judged is None else judged
    found = _status(run)
    watched = [name for name, entry in run.methods.items() if "particles" in entry] or [run.main]
    for method in watched:
        entry, title = run.methods[method], run.titles[method]
        found += _private(entry, title) + _training(entry, title)
        found += class_words.cautions(run, method) if run.classification else []
        found += _confidence(run, method)
    return found + _better_alone(run, judged) + _little_data(judged)


def _status(run: Run) -> list[Caution]:
    status = str(run.record.get("status", "complete"))
    if status == "complete":
        return []
    return [
        Caution(
            "The run is not finished",
            f"Its status is \N{LEFT DOUBLE QUOTATION MARK}{status}"
            "\N{RIGHT DOUBLE QUOTATION MARK}; the numbers below are those of its last state.",
            "Start it again with the same command: it goes on from its last checkpoint.",
        )
    ]


def _private(entry: dict[str, Any], title: str) -> list[Caution]:
    """A run with noise for privacy that is marked as not private (run.json, `privacy`)."""
    privacy = entry.get("privacy")
    if not isinstance(privacy, dict) or privacy.get("private") is not False:
        return []
    advice = (
        "Use the mode gaussian or laplace, whose epsilon holds."
        if privacy.get("mode") == "paper"
        else "Leave out privacy.noise_seed, which is for tests, and train again."
    )
    text = str(privacy.get("words", "It is marked so in run.json."))
    return [Caution(f"{title}: this run is not private", text, advice)]


def _training(entry: dict[str, Any], title: str) -> list[Caution]:
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
                f"{title}: {counted(skipped, 'step')} skipped",
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


def _confidence(run: Run, method: str) -> list[Caution]:
    """Clients who are told more than holds, by a test that is corrected for how many there are."""
    rows = run.clients[run.clients["method"] == method]
    shown = "accuracy" if run.classification else "coverage_90"
    flagged = rows[overconfident(run, method)].sort_values(shown, kind="stable")
    if flagged.empty:
        return []
    pairs = zip(flagged["client"], flagged[shown], strict=True)
    listed = _named([f"{client} ({percent(share)})" for client, share in pairs])
    verb = "is" if len(flagged) == 1 else "are"
    tested = f"more than chance would explain ({percent(LEVEL)} level for all {len(rows)} clients together)"
    if run.classification:
        text = f"Fewer of their answers are right than their confidence says, {tested}: {listed}."
        advice = (
            "Do not take these probabilities at their word. Let these clients condition on more data, "
            "or take more particles or a lower temperature."
        )
    else:
        text = (
            f"Their {percent(PROMISED)} bands hold fewer of their test points than promised, by "
            f"{tested}: {listed}."
        )
        advice = (
            "Do not rely on these bands. Compare with uniform or stacking mixture weights, let these "
            "clients condition on more data, or raise the noise level of the hyper-prior."
        )
    title = f"{run.titles[method]}: {counted(len(flagged), 'client')} {verb} over-confident"
    return [Caution(title, text, advice)]


def _better_alone(run: Run, judged: list[Judged]) -> list[Caution]:
    """Groups that lose on average, and clients that lose beyond chance."""
    alone = going_alone(run)
    if alone is None:
        return []
    found = []
    for group in run.groups:
        paired = compare(run, run.main, alone, group)
        if paired is not None and paired.high < 0:
            found.append(
                Caution(
                    f"Federating does not pay for {group} clients",
                    f"{run.titles[alone]}, which uses each client's own samples only, is better for "
                    f"{paired.clients - paired.better} of {paired.clients} of them, and the mean "
                    "difference is more than chance.",
                    "Train longer, tune the prior, or take a mixture prior if there are several kinds "
                    "of clients; if that does not help, these clients are better served alone.",
                )
            )
    hurt = sorted((c for c in judged if c.verdict == "hurt"), key=lambda client: client.gain)
    if hurt:
        verb = "does" if len(hurt) == 1 else "do"
        text = f"Each of them has a larger error than with {run.titles[alone]}"
        if run.classification:
            text = f"Each of them has more wrong answers than with {run.titles[alone]}"
        found.append(
            Caution(
                f"{counted(len(hurt), 'client')} {verb} better alone",
                f"{text}, more than chance would explain ({percent(LEVEL)} level for all "
                f"{len(judged)} clients together): {_named([client.name for client in hurt])}.",
                "Give these clients their own model, or more samples to condition on. They may be of "
                "a kind the others are not: try a mixture prior.",
            )
        )
    return found


def _little_data(judged: list[Judged]) -> list[Caution]:
    found = []
    poor = [client.name for client in judged if client.few_samples]
    if poor:
        verb = "has" if len(poor) == 1 else "have"
        found.append(
            Caution(
                f"{counted(len(poor), 'client')} {verb} very little data",
                f"Fewer than {FEW_SAMPLES} samples: {_named(poor)}. What they are told is mostly the "
                "prior that the others' data shaped.",
                "Read their bands and not their means, and add samples as soon as there are some.",
            )
        )
    unsure = [client for client in judged if client.few_tests]
    if unsure:
        verb = "has" if len(unsure) == 1 else "have"
        fewest = int(np.min([client.test for client in unsure]))
        found.append(
            Caution(
                f"{counted(len(unsure), 'client')} {verb} too few test samples to be judged alone",
                f"Fewer than {FEW_TESTS}, the fewest {fewest}: {_named([c.name for c in unsure])}. "
                "Their own coverage, calibration and gain are rough; the means over clients are not "
                "concerned.",
                "Compare groups and not single clients, or keep more samples for the test.",
            )
        )
    return found


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED_CLIENTS
    return ", ".join(names[:NAMED_CLIENTS]) + (f" and {rest} more" if rest > 0 else "")
