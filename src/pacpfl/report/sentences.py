"""Everything the page and the terminal say about a run: one function for each fact.

run.json and certificates.json hold numbers; the English made of them is here, for targets that are
numbers and for classes. A function returns no words where the run does not hold its fact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pacpfl.report.folder import Facts, Run
from pacpfl.report.judge import (
    FEW_SAMPLES,
    FEW_TESTS,
    LEVEL,
    PROMISED,
    compare,
    overconfident,
    promised_and_kept,
    ranking,
)
from pacpfl.report.measures import ACCURACY, CLASS_CE, COVERAGE_90, counted, number, percent, verb

GROUP_TITLES = {"existing": "Existing clients", "new": "New clients"}
CALIBRATED_WITHIN = 0.05  # coverage, or confidence less accuracy, this close counts as calibrated
ONE_PARTICLE = 0.95  # weight from which a client relies on a single particle
NAMED_CLIENTS = 6
USUAL = "settings for a federation of this size"
CANDIDATES = 8  # of a race that the page shows, beside the default
TOGETHER = f"at the {percent(LEVEL)} level for all {{}} clients together"
CHECKED = (
    "whether the run is complete and private, whether its particles collapsed, whether training steps "
    "were skipped, the condition on lambda, whether any client is over-confident or better off alone, "
    "and whether there is enough data to tell"
)
NOTES = ("over-confident", "better alone", "little data")  # on a client
SEALED = (
    "It covers the particles and their curves, and not the number of clients and samples, names of "
    "columns, results of new clients and certificates; no rows are kept."
)
UNSEALED = (
    "It covers the particles alone: results and rows of existing clients are in the folder as well, "
    "because privacy.strict = false."
)
NEIGHBOURS = {
    ("client", "add-remove"): "add or remove one client",
    ("client", "replace"): "replace one client by another",
    ("sample", "replace"): "replace one sample of one client by another",
}


class Caution(NamedTuple):
    """Something to look at: what it is, what it means here, and what to do."""

    title: str
    text: str
    advice: str


# ---- The summary on top of the page


def summary(run: Run, judged: pd.DataFrame) -> dict[str, list[str]]:
    """Answer four questions, each in some sentences: what was learned, how good, how sure, for whom."""
    entry = run.methods[run.main]
    answers = {
        "What was learned": [
            participants(run),
            race(run.record.get("race", {})),
            *(fact(entry) for fact in (diversity, skipped, privacy)),
        ],
        "How good it is": [winner(run, group) for group in run.groups],
        "How sure it is": [calibration(run), unreliable_clients(run, judged)],
        "Whom it helps": whom_it_helps(run, judged),
    }
    return {title: list(filter(None, texts)) for title, texts in answers.items() if any(texts)}


def headline(run: Run) -> list[tuple[str, str]]:
    """Return the few numbers one wants first, each with what it is."""
    shown = [(run.measures[0], "RSMSE"), (COVERAGE_90, "inside 90% bands")]
    if run.classification:
        shown = [(run.measures[0], "accuracy"), (CLASS_CE, "calibration error")]
    return [
        (
            percent(value) if measure is COVERAGE_90 else measure.say(value),
            f"{what}, {group} clients",
        )
        for measure, what in shown
        for group in run.groups
        if np.isfinite(value := run.mean(run.main, group, measure.key))
    ]


def participants(run: Run) -> str:
    """Say who learned, from how much data, and who came later."""
    samples = run.record.get("clients", {}).get("samples", {})
    text = f"{run.titles[run.main]} learned from {counted(run.count('existing'), 'client')}"
    if samples:
        few, usual, many = (f"{samples[key]:g}" for key in ("min", "median", "max"))
        spread = f"{few} to {many} samples each (median {usual})"
        text += f" with {few} samples each" if few == many else f" with {spread}"
    if new := run.count("new"):
        text += f", and then served {counted(new, 'new client')} that took no part in the learning"
    return text + "."


def diversity(entry: Facts) -> str:
    """Say whether the particles of a method differ; `entry` is its part of run.json."""
    count, facts = entry.get("particles"), entry.get("diversity") or {}
    if count is None:
        return ""
    if count == 1:
        return "There is a single particle."
    if "value" not in facts:
        return f"There are {count} particles."
    value, start = float(facts["value"]), float(facts.get("at_start", 0.0))
    shown = f"diversity {number(value)}" + (f", {number(start)} at the start" if start else "")
    if facts.get("collapsed"):
        return (
            f"The {count} particles have collapsed: they predict nearly the same ({shown}), so they "
            "are worth no more than one."
        )
    return f"The {count} particles differ ({shown})."


def race(facts: Facts) -> str:
    """Say what a race of candidates has chosen, and how much better held-out rows are predicted."""
    table = facts.get("table", [])
    if not table:
        return ""
    chosen, default = (next(r for r in table if r[key]) for key in ("chosen", "default"))
    count = counted(len(table), "candidate")
    if sharing := [row for row in table if row.get("particles")]:
        shares = " and ".join(f"{row['particles']} of {_changes(row) or USUAL}" for row in sharing)
        return (
            f"{count} raced for the settings, and those that together predict held-out rows best share "
            f"the particles: {shares}. The best alone has a negative log density of {_scores(table[0])} "
            f"a held-out row; with the {USUAL} it is {_scores(default)}."
        )
    if chosen is default:
        rounds = facts["changes"].get("train.rounds")
        return (
            f"{count} raced for the settings; none predicts held-out rows better than the {USUAL}, "
            "beyond the noise between clients"
            f"{f', which are trained for {rounds} rounds' if rounds else ''}."
        )
    return (
        f"{count} raced for the settings, and the one that predicts held-out rows best is trained "
        f"({_changes(facts)}). The negative log density of a held-out row is {_scores(chosen)}; with "
        f"the {USUAL} it is {_scores(default)}."
    )


def candidates(table: list[Facts]) -> list[tuple[str, str]]:
    """Return the best candidates of a race, and the default: what each changes, and how it did."""
    rows = table[:CANDIDATES] + [row for row in table[CANDIDATES:] if row["default"]]
    return [
        (
            _changes(row) or USUAL,
            f"{_scores(row)} after {row['rounds']} rounds{_trained(row)}",
        )
        for row in rows
    ]


def _trained(row: Facts) -> str:
    shares = f" with {counted(row['particles'], 'particle')}" if row.get("particles") else ""
    return f", trained{shares}" if row["chosen"] else ""


def _changes(row: Facts) -> str:
    return ", ".join(f"{key} = {value}" for key, value in row["changes"].items())


def _scores(row: Facts) -> str:
    groups = [f"{number(row[name])} ({name} clients)" for name in GROUP_TITLES if name in row]
    return " and ".join(groups) or "not finite"


def skipped(entry: Facts) -> str:
    """Say how many training steps were left out because a gradient was not finite."""
    if "skipped_steps" not in entry:
        return ""
    count = int(entry["skipped_steps"])
    if not count:
        return "No training step was skipped."
    steps = int(entry.get("rounds", 0)) * int(entry.get("particles", 1))
    of_all = f" of {steps} ({percent(count / steps, 2)})" if steps else ""
    return f"{counted(count, 'training step')}{of_all} {verb('was', count)} skipped."


def privacy(entry: Facts) -> str:
    """Say the epsilon of a private run, never without its delta and neighbours; or why there is none."""
    facts = entry.get("privacy")
    if not facts:
        return ""
    if facts["mode"] == "paper":
        text = (
            "NO GUARANTEE: training followed Algorithm 3 as printed, for a stated epsilon of "
            f"{facts['epsilon']:g}, which Laplace noise on updates clipped in L2 does not give."
        )
    elif not facts["private"]:
        text = (
            "NOT PRIVATE: the noise was drawn from privacy.noise_seed, and whoever knows the seed can "
            f"remove it; with secret noise this would be {guarantee(facts)}."
        )
    else:
        text = (
            f"Private: {guarantee(facts)}, of a budget of epsilon = {facts['budget']:g}. "
            f"{SEALED if facts['strict'] else UNSEALED}"
        )
    if facts.get("out_of_budget"):
        lost = facts["rounds_released"] - entry["rounds"]
        text += (
            f" The budget ran out after round {entry['rounds']} of {facts['rounds_planned']}: "
            f"{counted(lost, 'round')} had been released but {verb('was', lost)} lost when the run was "
            "interrupted, and still count."
        )
    return text


def guarantee(facts: Facts) -> str:
    """Say an epsilon with its delta, with who counts as a neighbour, and how it was accounted for."""
    delta = "delta = 0" if facts["delta"] == 0 else f"delta = {facts['delta']:.3g}"
    change = NEIGHBOURS[facts["unit"], facts["adjacency"]]
    text = f"epsilon = {facts['epsilon']:.4g}, {delta} ({change}; {facts['accountant']})"
    if also := facts.get("relaxed"):
        text += f", and epsilon = {also['epsilon']:.4g} with delta = {also['delta']:.3g}"
    return text


def winner(run: Run, group: str) -> str:
    """Say which method is the most accurate, by how much, and whether that could be chance."""
    ranked, lead = ranking(run, group), run.measures[0]
    if not ranked:
        return ""
    (first, value), *others = ranked
    text = f"On {group} clients, {run.titles[first]}"
    if not others:
        return f"{text} reaches {lead.noun} of {lead.say(value)}."
    second, next_value = others[0]
    text += (
        f" is the most accurate, with {lead.noun} of {lead.say(value)}: "
        f"{lead.say_size(lead.gain(value, next_value))} {lead.comparative} than "
        f"{run.titles[second]} ({lead.say(next_value)})"
    )
    if paired := compare(run, first, second, group):
        text += f", and better for {paired.better} of {paired.clients} clients"
        text += "" if paired.clear else "; the difference could be due to chance"
    for place, (method, own) in enumerate(others, 2):
        if method == run.main:
            ordinal = f"{place}{ {2: 'nd', 3: 'rd'}.get(place, 'th') }"
            text += f". {run.titles[method]} ranks {ordinal} of {len(ranked)} ({lead.say(own)})"
    return text + "."


def calibration(run: Run) -> str:
    """Say whether the main method keeps what it promises: in its 90% bands, or by its confidence."""
    pairs = {g: pair for g in run.groups if (pair := promised_and_kept(run, run.main, g))}
    if not pairs:
        return f"{run.titles[run.main]} gives no uncertainty in this run."
    below = any(kept < promised - CALIBRATED_WITHIN for promised, kept in pairs.values())
    above = any(kept > promised + CALIBRATED_WITHIN for promised, kept in pairs.values())
    which = 0 if below else 1 if above else 2
    if not run.classification:
        shares = " and ".join(
            f"{percent(kept)} of the test points of {group} clients"
            for group, (_, kept) in pairs.items()
        )
        verdicts = (
            ": fewer than promised, so it is over-confident",
            ": more than promised, so they are wider than they need to be",
            ", about as many as promised",
        )
        return f"Its 90% bands contain {shares}{verdicts[which]}."
    answers = "; those for new clients are ".join(
        f"{percent(sure, 1)} confident on average and {percent(right, 1)} right (calibration error "
        f"{number(run.mean(run.main, group, 'ce'))})"
        for group, (sure, right) in pairs.items()
    )
    verdicts = (
        "It is over-confident.",
        "It is more cautious than it needs to be.",
        "Its confidence can be taken at face value.",
    )
    return f"Its answers for {next(iter(pairs))} clients are {answers}. {verdicts[which]}"


def unreliable_clients(run: Run, judged: pd.DataFrame) -> str:
    """Say how many clients should not rely on their bands or probabilities."""
    if not (flagged := int(judged["overconfident"].sum())):
        return ""
    kinds = ("bands that are too narrow", "probabilities that are too confident")
    return (
        f"{flagged} of {counted(len(judged), 'client')} {verb('gets', flagged)} "
        f"{kinds[run.classification]}, by more than chance would explain (see the warnings)."
    )


def whom_it_helps(run: Run, judged: pd.DataFrame) -> list[str]:
    """Say how many clients are better off than alone, by how much, who loses most, and if it is chance;
    or what to run so that it can be told."""
    alone, lead = run.alone, run.measures[0]
    if alone is None and "particles" in run.methods[run.main]:
        names = ", ".join(f'"{name}"' for name in [*run.titles, "vanilla"])
        return [
            "No method that goes alone was run, so this page cannot tell whom federating helps. Run the "
            f"same command again with --set 'methods=[{names}]'; what is trained is not trained again."
        ]
    known = judged[np.isfinite(judged["gain"])]
    if alone is None or known.empty:
        return []
    better, worse = int((known["gain"] > 0).sum()), int((known["gain"] < 0).sum())
    told = [
        f"Compared with going alone ({run.titles[alone]}), {run.titles[run.main]} is better for "
        f"{better} of {counted(len(known), 'client')}; the median client has "
        f"{lead.say_gain(float(known['gain'].median()))}."
    ]
    if worse:
        worst = known.loc[known["gain"].idxmin()]
        named = f": {worst['name']}" if worse == 1 else f", {worst['name']} by the most"
        told.append(
            f"{counted(worse, 'client', 'does')} better alone{named} (federating leaves it with "
            f"{lead.say_gain(float(worst['gain']))})."
        )
    else:
        told.append("No client does better alone.")
    verdicts = list(known["verdict"])
    if set(verdicts) != {"unknown"}:
        told.append(
            f"Beyond what chance would explain, it helps {counted(verdicts.count('helped'), 'client')} "
            f"and hurts {verdicts.count('hurt') or 'none'} (paired tests on their test samples, "
            f"{TOGETHER.format(len(judged))})."
        )
    return told


# ---- Warnings


def cautions(run: Run, judged: pd.DataFrame) -> list[Caution]:
    """Return all that should be looked at, the run first, then its clients."""
    found, status = [], run.record.get("status", "complete")
    if status != "complete":
        text = f"Its status is “{status}”; the numbers below are those of its last state."
        advice = "Start it again with the same command: it goes on from its last checkpoint."
        found.append(Caution("The run is not complete", text, advice))
    for method in [m for m, entry in run.methods.items() if "particles" in entry] or [run.main]:
        entry, title = run.methods[method], run.titles[method]
        found += [*_training(entry, title), *_overconfidence(run, method)]
    return [*found, *_better_alone(run, judged), *_little_data(judged)]


def _training(entry: Facts, title: str) -> Iterator[Caution]:
    """Warn of what run.json says of a method: its privacy, its particles, its steps, its bound."""
    facts = entry.get("privacy") or {}
    if facts.get("private") is False:
        advice = "Leave out privacy.noise_seed, which is for tests, and train again."
        if facts["mode"] == "paper":
            advice = "Use the mode gaussian or laplace, whose epsilon holds."
        yield Caution(f"{title}: this run is not private", privacy(entry), advice)
    if (entry.get("diversity") or {}).get("collapsed") and entry.get("particles", 1) > 1:
        yield Caution(
            f"{title}: the particles have collapsed",
            diversity(entry),
            "Use the SVGD kernel on function space, which pushes predictions apart, a wider "
            "hyper-prior or a smaller tau; or take one particle and save the time.",
        )
    if count := int(entry.get("skipped_steps", 0)):
        yield Caution(
            f"{title}: {counted(count, 'training step')} skipped",
            "A particle whose gradient is not finite stands still for that round; the others go on.",
            "A few at the start do no harm. If there are many, lower the learning rate, standardise "
            "the features, or run in float64.",
        )
    if entry.get("lambda_condition") is False:
        text = "The bound over clients requires lambda > n\N{SUBSCRIPT TWO} + upsilon"
        if "lambda" in entry and "tau" in entry:
            text += f"; this run has lambda = {entry['lambda']:g} (tau = {entry['tau']:g})"
        yield Caution(
            f"{title}: the condition on lambda does not hold",
            f"{text}. The predictions are unaffected, but no guarantee covers them.",
            "Choose a larger lambda, or a larger tau, from which lambda follows.",
        )


def _overconfidence(run: Run, method: str) -> Iterator[Caution]:
    """Warn of groups for which a method is much more confident than it is right, and of clients whose
    uncertainty is too small, by a test corrected for their number."""
    for group in run.groups if run.classification else ():
        sure, right = promised_and_kept(run, method, group) or (0.0, 0.0)
        if right < sure - CALIBRATED_WITHIN:
            yield Caution(
                f"{run.titles[method]}: over-confident on {group} clients",
                _sure_and_right(sure, right, 1),
                "Do not take its probabilities at face value. Take fewer or smaller steps at the "
                "client, a lower temperature, more particles or more networks, or stop training "
                "earlier.",
            )
    rows = run.rows(method)
    shown = ACCURACY.key if run.classification else COVERAGE_90.key
    flagged = rows[overconfident(run, method)].sort_values(shown, kind="stable")
    if flagged.empty:
        return
    pairs = zip(flagged["client"], flagged[shown], strict=True)
    listed = _named(f"{client} ({percent(share)})" for client, share in pairs)
    beyond = f"more than chance would explain ({TOGETHER.format(len(rows))})"
    if run.classification:
        text = "Fewer of their answers are right than their confidence says"
        advice = (
            "Do not take these probabilities at face value. Let these clients condition on more "
            "data, or use more particles or a lower temperature."
        )
    else:
        text = f"Their {percent(PROMISED)} bands contain fewer of their test points than promised"
        advice = (
            "Do not rely on these bands. Compare with uniform or stacking mixture weights, let these "
            "clients condition on more data, or raise the noise level of the hyper-prior."
        )
    title = f"{run.titles[method]}: {counted(len(flagged), 'client', 'is')} over-confident"
    yield Caution(title, f"{text}, by {beyond}: {listed}.", advice)


def _better_alone(run: Run, judged: pd.DataFrame) -> Iterator[Caution]:
    """Warn of groups that lose on average, and of clients that lose beyond chance."""
    alone = run.alone
    if alone is None:
        return
    for group in run.groups:
        paired = compare(run, run.main, alone, group)
        if paired is not None and paired.high < 0:
            yield Caution(
                f"Federating does not pay for {group} clients",
                f"{run.titles[alone]}, which uses each client's own samples only, is better for "
                f"{paired.clients - paired.better} of {paired.clients} of them, and the mean "
                "difference is more than chance would explain.",
                "Train longer, tune the prior, or use a mixture prior if there are several kinds of "
                "clients; if that does not help, these clients are better off alone.",
            )
    hurt = judged[judged["verdict"] == "hurt"].sort_values("gain", kind="stable")
    if len(hurt):
        what = "more wrong answers" if run.classification else "a larger error"
        yield Caution(
            f"{counted(len(hurt), 'client', 'does')} better alone",
            f"With federating they have {what} than with {run.titles[alone]}, by more than chance "
            f"would explain ({TOGETHER.format(len(judged))}): "
            f"{_named(hurt['name'])}.",
            "Give these clients a model of their own, or more samples to condition on. They may be of "
            "a kind that the others are not: try a mixture prior.",
        )


def _little_data(judged: pd.DataFrame) -> Iterator[Caution]:
    poor, unsure = judged[judged["few_samples"]], judged[judged["few_tests"]]
    if len(poor):
        yield Caution(
            f"{counted(len(poor), 'client', 'has')} very little data",
            f"Fewer than {FEW_SAMPLES} samples: {_named(poor['name'])}. Their predictions are mostly the "
            "prior, which the data of the others shaped.",
            "Look at their bands rather than their means, and add samples as soon as there are any.",
        )
    if len(unsure):
        yield Caution(
            f"{counted(len(unsure), 'client', 'has')} too few test samples to be judged individually",
            f"Fewer than {FEW_TESTS} (the fewest: {unsure['test'].min()}): "
            f"{_named(unsure['name'])}. Their own coverage, calibration and gain "
            "are rough; the means over clients are not affected.",
            "Compare groups rather than single clients, or keep more samples for testing.",
        )


# ---- One client


def about_client(
    run: Run, client: Any, answers: np.ndarray | None, weights: np.ndarray | None
) -> list[str]:
    """Say what one would say in passing about a client (a row of `judge`).

    `answers` is its table of confidences, and `weights` are those of its particles.
    """
    later = f" and {client.later} later ones" if client.later else ""
    told = [
        f"It has {counted(client.samples, 'sample')}{later} of its own, and was tested on "
        f"{counted(client.test, 'sample')} that nobody learned from.",
        gain_of_client(run, client),
    ]
    if answers is not None:
        count, right, sure = answers.sum(axis=0)
        if count:
            told.append(_sure_and_right(sure / count, right / count))
    elif math.isfinite(client.coverage_90):
        told.append(f"Its 90% band contains {percent(client.coverage_90)} of its test points.")
    if weights is not None and len(weights) > 1:
        strongest = int(np.argmax(weights))
        if weights[strongest] > ONE_PARTICLE:
            share = f"({percent(weights[strongest])} of the weight)"
            told.append(f"It relies on one particle, number {strongest + 1} {share}.")
        else:  # as many equal weights would have the same sum of squares
            count = number(1 / float((weights**2).sum()), 1)
            told.append(f"Its weight is spread over about {count} of {len(weights)} particles.")
    return told


def _sure_and_right(sure: float, right: float, digits: int = 0) -> str:
    return (
        f"Its answers are {percent(sure, digits)} confident on average, and {percent(right, digits)} "
        "of them are right."
    )


def gain_of_client(run: Run, client: Any) -> str:
    """Say what federating did for one client."""
    alone, lead = run.alone, run.measures[0]
    if alone is None:
        return "What federating did for it is not known: no method that goes alone was run."
    if not math.isfinite(client.gain):
        return f"There is no {lead.title} of {run.titles[alone]} to compare this client with."
    values = (
        f"{lead.title} {number(client.own)} with {run.titles[run.main]}, {number(client.alone)} with "
        f"{run.titles[alone]}"
    )
    if client.gain == 0:
        return f"Federating makes no difference for this client: {values}."
    beyond = {"chance": ", which could be due to chance", "unknown": ""}.get(
        client.verdict, ", more than chance would explain"
    )
    return f"Compared with going alone it has {lead.say_gain(client.gain)}{beyond}: {values}."


def notes(client: Any) -> tuple[str, ...]:
    """Return what to be careful about with this client, in a word or two each."""
    hurt = client.verdict == "hurt"
    found = zip(NOTES, (client.overconfident, hurt, client.few_samples), strict=True)
    return tuple(note for note, holds in found if holds)


def client_warnings(run: Run, client: Any) -> list[str]:
    """Say what to be careful about with this client; the tests are those of the warnings on top."""
    inside = f"{percent(client.coverage_90)} of its {client.test} test points"
    sure = f"its 90% band contains {inside}, fewer than chance would explain."
    if run.classification:
        sure = (
            "fewer of its answers are right than their confidence says, by more than chance would "
            "explain."
        )
    texts = (
        f"It is over-confident: {sure}",
        "It does better alone, by more than chance would explain.",
        f"It has fewer than {FEW_SAMPLES} samples: its predictions are mostly the prior, which the "
        "data of the others shaped.",
    )
    told = [text for note, text in zip(NOTES, texts, strict=True) if note in notes(client)]
    rough = f"It has fewer than {FEW_TESTS} test samples: the numbers of this client are rough."
    return told + [rough] * client.few_tests


# ---- Certificates


def certificates(document: Facts) -> list[str]:
    """Say what is guaranteed to whom; what the data contradict is said first."""
    largest, delta, found, against = document["loss"]["b"], document["delta"], [], []
    for group, facts in document["groups"].items():
        tests = (
            f"{facts['covered']} of {facts['tested']} average losses on test samples are within it"
        )
        if facts["contradicted"]:
            told = [f"{facts['refuted']} of {facts['tested']} clients' test rows"] * bool(
                facts["refuted"]
            )
            against.append(
                f"Certificates of {facts['contradicted']} of {facts['clients']} {group} clients are "
                f"CONTRADICTED by {'; by '.join([*told, *facts['against']])}."
            )
        text = (
            f"{facts['below']} of {facts['clients']} {group} clients have a bound below {largest:g}, the "
            "largest value of the loss, for the averaged model they predict with, fitted to the rows that "
            f"do not judge it; the median is {number(facts['bound'])}, and for a drawn function "
            f"{number(facts['bound_drawn'])}. "
        )
        if facts["proved"] == facts["clients"]:
            text += "Every premise of these certificates that can be checked holds."
        elif facts["proved"] == 0 and not facts["contradicted"]:
            text += "They rest on a premise that is not proved."
        else:
            text += f"{facts['proved']} of these certificates are proved."
        found.append(text + (f" {tests}." if facts["tested"] else ""))
    rows = document["federation"], document["newcomers"]
    said = [_average(row, document["loss"], bool(place)) for place, row in enumerate(rows) if row]
    return [*against, f"Each certificate fails with probability {delta:g} at most.", *found, *said]


def _average(row: Facts, loss: Facts, newcomers: bool) -> str:
    """Return what the certificate of an average says and rests on."""
    who = (
        "the average client yet to come, with the averaged model in use,"
        if newcomers
        else "the clients' average, weighted by beta, over models from their Gibbs posteriors"
    )
    if row["vacuous"]:
        return (
            f"No statement: the bound {row['bound']:.4g} for {who} is not below {loss['b']:g}, "
            f"the largest value of the loss ({loss['name']})."
        )
    text = (
        f"With probability at least {1 - row['delta']:.6g}, {who} has an expected loss "
        f"({loss['name']}) of at most {row['bound']:.4g}; on the samples it is "
        f"{row['empirical_risk']:.4g}."
    )
    broken, assumed = (
        "; ".join(
            f"{c['name']} ({c['reason']})"
            for c in row["conditions"]
            if c["kind"] == "premise" and c["status"] == status
        )
        for status in ("does not hold", "assumed")
    )
    if broken:
        return f"NOT VALID, because a premise does not hold: {broken}. {text}"
    if assumed:
        return f"{text} This rests on what is assumed, not proved: {assumed}."
    return f"{text} Every premise that can be checked holds."


def conditions(document: Facts) -> list[dict[str, str]]:
    """List each condition once, with whom it concerns and, where it differs, for how many of them.

    Where reasons differ from client to client, that of the first client is given.
    """
    rows = [(GROUP_TITLES[row["group"]], row) for row in document["clients"]]
    rows += [("Federation", document["federation"])]
    rows += [("Future clients", document["newcomers"])] if document["newcomers"] else []
    columns = ["who", "name", "status", "reason", "subject"]
    table = pd.DataFrame(
        [
            (who, *(condition[key] for key in columns[1:4]), row["subject"])
            for who, row in rows
            for condition in (*row["conditions"], *filter(None, [row.get("participation")]))
        ],
        columns=columns,
    )
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (who, name), own in table.groupby(["who", "name"], sort=False):
        for status, found in own.groupby("status", sort=False):
            share = f" for {len(found)} of {len(own)}" if len(found) < len(own) else ""
            reason = found["reason"].iloc[0]
            if found["reason"].nunique() > 1:
                reason = f"{found['subject'].iloc[0]}: {reason}"
            merged.setdefault((name, f"{status}{share}", reason), []).append(who)
    return [
        {"who": ", ".join(who), "name": name, "status": status, "reason": reason}
        for (name, status, reason), who in merged.items()
    ]


def _named(names: Iterable[str]) -> str:
    first, rest = list(names)[:NAMED_CLIENTS], list(names)[NAMED_CLIENTS:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")
