"""Everything the page and the terminal say about a run: one function for each fact.

run.json and certificates.json hold numbers; the English made of them is here, for targets that are
numbers and for classes. A function returns no words where the run does not hold its fact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pacpfl.report.folder import Facts, Run
from pacpfl.report.judge import (
    FEW_SAMPLES,
    FEW_TESTS,
    LEVEL,
    PROMISED,
    Judgement,
    compare,
    contest,
    going_alone,
    mean_of,
    overconfident,
    promised_and_kept,
)
from pacpfl.report.measures import ACCURACY, COVERAGE_90, RSMSE, counted, number, percent

GROUP_TITLES = {"existing": "Existing clients", "new": "New clients"}
CALIBRATED_WITHIN = 0.05  # coverage, or confidence less accuracy, this close counts as calibrated
ONE_PARTICLE = 0.95  # weight from which a client relies on a single particle
NAMED_CLIENTS = 6
CANDIDATES = 8  # of a race that the page shows, beside the default
TOGETHER = f"at the {percent(LEVEL)} level for all {{}} clients together"
CHECKED = (
    "whether the run is complete and private, whether its particles collapsed, whether training steps "
    "were skipped, the condition on lambda, whether any client is over-confident or better off alone, "
    "and whether there is enough data to tell"
)
NEIGHBOURS = {
    ("client", "add-remove"): "add or remove one client",
    ("client", "replace"): "replace one client by another",
    ("sample", "replace"): "replace one sample of one client by another",
}


@dataclass(frozen=True)
class Caution:
    """Something to look at: what it is, what it means here, and what to do."""

    title: str
    text: str
    advice: str


# ---- The summary on top of the page


def summary(run: Run, judged: list[Judgement]) -> dict[str, list[str]]:
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
    shown = (
        ((ACCURACY.key, ACCURACY.say, "accuracy"), ("ce", number, "calibration error"))
        if run.classification
        else ((RSMSE.key, number, "RSMSE"), (COVERAGE_90.key, percent, "inside 90% bands"))
    )
    return [
        (say(value), f"{what}, {group} clients")
        for key, say, what in shown
        for group in run.groups
        if np.isfinite(value := mean_of(run, run.main, group, key))
    ]


def participants(run: Run) -> str:
    """Say who learned, from how much data, and who came later."""
    samples = run.record.get("clients", {}).get("samples", {})
    each = ""
    if {"min", "median", "max"} <= set(samples):
        few, usual, many = (f"{samples[key]:g}" for key in ("min", "median", "max"))
        each = (
            f" with {few} samples each"
            if few == many
            else f" with {few} to {many} samples each (median {usual})"
        )
    text = f"{run.titles[run.main]} learned from {counted(run.count('existing'), 'client')}{each}"
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
    chosen = next(row for row in table if row["chosen"])
    default = next(row for row in table if row["default"])
    count = counted(len(table), "candidate")
    if chosen is default:
        return (
            f"{count} raced for the settings; none predicts held-out rows better than the settings for "
            "a federation of this size, beyond the noise between clients."
        )
    changes = ", ".join(f"{key} = {value}" for key, value in facts["changes"].items())
    return (
        f"{count} raced for the settings, and the one that predicts held-out rows best is trained "
        f"({changes}). The negative log density of a held-out row is {_scores(chosen)}; with the settings "
        f"for a federation of this size it is {_scores(default)}."
    )


def candidates(table: list[Facts]) -> list[tuple[str, str]]:
    """Return the best candidates of a race, and the default: what each changes, and how it did."""
    rows = table[:CANDIDATES] + [row for row in table[CANDIDATES:] if row["default"]]
    shown = []
    for row in rows:
        changes = ", ".join(f"{key} = {value}" for key, value in row["changes"].items())
        trained = ", trained" if row["chosen"] else ""
        words = f"{_scores(row)} after {row['rounds']} rounds{trained}"
        shown.append((changes or "settings for a federation of this size", words))
    return shown


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
    return f"{counted(count, 'training step')}{of_all} {'was' if count == 1 else 'were'} skipped."


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
        text = f"Private: {guarantee(facts)}, of a budget of epsilon = {facts['budget']:g}."
    if facts.get("out_of_budget"):
        rounds, released = entry["rounds"], facts["rounds_released"]
        text += (
            f" The budget ran out after round {rounds} of {facts['rounds_planned']}: "
            f"{counted(released - rounds, 'round')} had been released but "
            f"{'was' if released - rounds == 1 else 'were'} lost when the run was interrupted, and "
            "still count."
        )
    return text


def guarantee(facts: Facts) -> str:
    """Say an epsilon with its delta, with who counts as a neighbour, and how it was accounted for."""
    delta = "delta = 0" if facts["delta"] == 0 else f"delta = {facts['delta']:.3g}"
    change = NEIGHBOURS[facts["unit"], facts["adjacency"]]
    return f"epsilon = {facts['epsilon']:.4g}, {delta} ({change}; {facts['accountant']})"


def winner(run: Run, group: str) -> str:
    """Say which method is the most accurate, by how much, and whether that could be chance."""
    found, lead = contest(run, group), run.measures[0]
    if found is None:
        return ""
    (best, value), *others = found.ranking
    text = f"On {group} clients, {run.titles[best]}"
    if not others:
        return f"{text} reaches {lead.noun} of {lead.say(value)}."
    second, next_value = others[0]
    text += (
        f" is the most accurate, with {lead.noun} of {lead.say(value)}: "
        f"{lead.say_size(lead.gain(value, next_value))} {lead.comparative} than "
        f"{run.titles[second]} ({lead.say(next_value)})"
    )
    if paired := found.paired:
        text += f", and better for {paired.better} of {paired.clients} clients"
        text += "" if paired.clear else "; the difference could be due to chance"
    names = [method for method, _ in found.ranking]
    if run.main in names[1:]:
        place = names.index(run.main)
        own = lead.say(found.ranking[place][1])
        text += f". {run.titles[run.main]} ranks {_ordinal(place + 1)} of {len(names)} ({own})"
    return text + "."


def calibration(run: Run) -> str:
    """Say whether the main method keeps what it promises: in its 90% bands, or by its confidence."""
    pairs = {g: pair for g in run.groups if (pair := promised_and_kept(run, run.main, g))}
    if not pairs:
        return f"{run.titles[run.main]} gives no uncertainty in this run."
    which = 2
    if any(kept < promised - CALIBRATED_WITHIN for promised, kept in pairs.values()):
        which = 0
    elif any(kept > promised + CALIBRATED_WITHIN for promised, kept in pairs.values()):
        which = 1
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
        f"{number(mean_of(run, run.main, group, 'ce'))})"
        for group, (sure, right) in pairs.items()
    )
    verdicts = (
        "It is over-confident.",
        "It is more cautious than it needs to be.",
        "Its confidence can be taken at face value.",
    )
    return f"Its answers for {next(iter(pairs))} clients are {answers}. {verdicts[which]}"


def unreliable_clients(run: Run, judged: list[Judgement]) -> str:
    """Say how many clients should not rely on their bands or probabilities."""
    flagged = sum(client.overconfident for client in judged)
    if not flagged:
        return ""
    what = "bands that are too narrow"
    if run.classification:
        what = "probabilities that are too confident"
    return (
        f"{flagged} of {counted(len(judged), 'client')} {'gets' if flagged == 1 else 'get'} {what}, "
        "by more than chance would explain (see the warnings)."
    )


def whom_it_helps(run: Run, judged: list[Judgement]) -> list[str]:
    """Say how many clients are better off than alone, by how much, who loses most, and if it is chance."""
    alone, lead = going_alone(run), run.measures[0]
    if alone is None:
        return [how_to_compare(run)] if "particles" in run.methods[run.main] else []
    known = [client for client in judged if math.isfinite(client.gain)]
    if not known:
        return []
    gains = np.array([client.gain for client in known])
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    told = [
        f"Compared with going alone ({run.titles[alone]}), {run.titles[run.main]} is better for "
        f"{better} of {counted(len(known), 'client')}; the median client has "
        f"{lead.say_gain(float(np.median(gains)))}."
    ]
    if worse:
        worst = min(known, key=lambda client: client.gain)
        named = f": {worst.name}" if worse == 1 else f", {worst.name} by the most"
        told.append(
            f"{counted(worse, 'client', 'does')} better alone{named} (federating leaves it with "
            f"{lead.say_gain(worst.gain)})."
        )
    else:
        told.append("No client does better alone.")
    verdicts = Counter(client.verdict for client in known)
    if verdicts.total() > verdicts["unknown"]:
        told.append(
            f"Beyond what chance would explain, it helps {counted(verdicts['helped'], 'client')} and "
            f"hurts {verdicts['hurt'] or 'none'} (paired tests on their test samples, "
            f"{TOGETHER.format(len(judged))})."
        )
    return told


def how_to_compare(run: Run) -> str:
    """Say what to do so that the page can tell whom federating helps."""
    names = ", ".join(f'"{name}"' for name in [*run.titles, "vanilla"])
    return (
        "No method that goes alone was run, so this page cannot tell whom federating helps. Run the "
        f"same command again with --set 'methods=[{names}]'; what is trained is not trained again."
    )


# ---- Warnings


def cautions(run: Run, judged: list[Judgement]) -> list[Caution]:
    """Return all that should be looked at, the run first, then its clients."""
    found = list(_status(run))
    watched = [name for name, entry in run.methods.items() if "particles" in entry] or [run.main]
    for method in watched:
        entry, title = run.methods[method], run.titles[method]
        found += [*_not_private(entry, title), *_training(entry, title)]
        if run.classification:
            found += _confident_groups(run, method)
        found += _confident_clients(run, method)
    return [*found, *_better_alone(run, judged), *_little_data(judged)]


def _status(run: Run) -> Iterator[Caution]:
    if (status := run.record.get("status", "complete")) != "complete":
        yield Caution(
            "The run is not complete",
            f"Its status is \N{LEFT DOUBLE QUOTATION MARK}{status}"
            "\N{RIGHT DOUBLE QUOTATION MARK}; the numbers below are those of its last state.",
            "Start it again with the same command: it goes on from its last checkpoint.",
        )


def _not_private(entry: Facts, title: str) -> Iterator[Caution]:
    """Warn of a run with noise for privacy that is marked as not private (run.json, `privacy`)."""
    facts = entry.get("privacy") or {}
    if facts.get("private") is False:
        advice = (
            "Use the mode gaussian or laplace, whose epsilon holds."
            if facts["mode"] == "paper"
            else "Leave out privacy.noise_seed, which is for tests, and train again."
        )
        yield Caution(f"{title}: this run is not private", privacy(entry), advice)


def _training(entry: Facts, title: str) -> Iterator[Caution]:
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


def _confident_groups(run: Run, method: str) -> Iterator[Caution]:
    """Warn of groups for which a method is much more confident than it is right."""
    for group in run.groups:
        sure, right = promised_and_kept(run, method, group) or (0.0, 0.0)
        if right < sure - CALIBRATED_WITHIN:
            yield Caution(
                f"{run.titles[method]}: over-confident on {group} clients",
                f"Its answers are {percent(sure, 1)} confident on average, and {percent(right, 1)} of "
                "them are right.",
                "Do not take its probabilities at face value. Take fewer or smaller steps at the "
                "client, a lower temperature, more particles or more networks, or stop training "
                "earlier.",
            )


def _confident_clients(run: Run, method: str) -> Iterator[Caution]:
    """Warn of clients whose uncertainty is too small, by a test corrected for their number."""
    rows = run.clients[run.clients["method"] == method]
    shown = ACCURACY.key if run.classification else COVERAGE_90.key
    flagged = rows[overconfident(run, method)].sort_values(shown, kind="stable")
    if flagged.empty:
        return
    pairs = zip(flagged["client"], flagged[shown], strict=True)
    listed = _named([f"{client} ({percent(share)})" for client, share in pairs])
    beyond = f"more than chance would explain ({TOGETHER.format(len(rows))})"
    if run.classification:
        text = (
            f"Fewer of their answers are right than their confidence says, by {beyond}: {listed}."
        )
        advice = (
            "Do not take these probabilities at face value. Let these clients condition on more "
            "data, or use more particles or a lower temperature."
        )
    else:
        text = (
            f"Their {percent(PROMISED)} bands contain fewer of their test points than promised, by "
            f"{beyond}: {listed}."
        )
        advice = (
            "Do not rely on these bands. Compare with uniform or stacking mixture weights, let these "
            "clients condition on more data, or raise the noise level of the hyper-prior."
        )
    title = f"{run.titles[method]}: {counted(len(flagged), 'client', 'is')} over-confident"
    yield Caution(title, text, advice)


def _better_alone(run: Run, judged: list[Judgement]) -> Iterator[Caution]:
    """Warn of groups that lose on average, and of clients that lose beyond chance."""
    alone = going_alone(run)
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
    hurt = sorted((c for c in judged if c.verdict == "hurt"), key=lambda client: client.gain)
    if hurt:
        what = "more wrong answers" if run.classification else "a larger error"
        yield Caution(
            f"{counted(len(hurt), 'client', 'does')} better alone",
            f"With federating they have {what} than with {run.titles[alone]}, by more than chance "
            f"would explain ({TOGETHER.format(len(judged))}): "
            f"{_named([client.name for client in hurt])}.",
            "Give these clients a model of their own, or more samples to condition on. They may be of "
            "a kind that the others are not: try a mixture prior.",
        )


def _little_data(judged: list[Judgement]) -> Iterator[Caution]:
    poor = [client.name for client in judged if client.few_samples]
    if poor:
        yield Caution(
            f"{counted(len(poor), 'client', 'has')} very little data",
            f"Fewer than {FEW_SAMPLES} samples: {_named(poor)}. Their predictions are mostly the "
            "prior, which the data of the others shaped.",
            "Look at their bands rather than their means, and add samples as soon as there are any.",
        )
    unsure = [client for client in judged if client.few_tests]
    if unsure:
        yield Caution(
            f"{counted(len(unsure), 'client', 'has')} too few test samples to be judged individually",
            f"Fewer than {FEW_TESTS} (the fewest: {min(client.test for client in unsure)}): "
            f"{_named([client.name for client in unsure])}. Their own coverage, calibration and gain "
            "are rough; the means over clients are not affected.",
            "Compare groups rather than single clients, or keep more samples for testing.",
        )


# ---- One client


def about_client(
    run: Run,
    client: Judgement,
    answers: np.ndarray | None,
    coverage: float,
    weights: np.ndarray | None,
) -> list[str]:
    """Say what one would say about a client in passing.

    `answers` is its table of confidences, `coverage` that of its 90% band, and `weights` are those of
    its particles.
    """
    data = counted(client.samples, "sample") + (
        f" and {client.later} later ones" * (client.later > 0)
    )
    told = [
        f"It has {data} of its own, and was tested on {counted(client.test, 'sample')} that nobody "
        "learned from.",
        gain_of_client(run, client),
    ]
    if answers is not None:
        count, right, sure = answers.sum(axis=0)
        if count:
            told.append(
                f"Its answers are {percent(sure / count)} confident on average, and "
                f"{percent(right / count)} of them are right."
            )
    elif math.isfinite(coverage):
        told.append(f"Its 90% band contains {percent(coverage)} of its test points.")
    if weights is not None and len(weights) > 1:
        strongest = int(np.argmax(weights))
        if weights[strongest] > ONE_PARTICLE:
            share = percent(weights[strongest])
            told.append(
                f"It relies on one particle, number {strongest + 1} ({share} of the weight)."
            )
        else:  # as many equal weights would have the same sum of squares
            count = number(1 / float((weights**2).sum()), 1)
            told.append(f"Its weight is spread over about {count} of {len(weights)} particles.")
    return told


def gain_of_client(run: Run, client: Judgement) -> str:
    """Say what federating did for one client."""
    alone, lead = going_alone(run), run.measures[0]
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
    beyond = {
        "helped": ", more than chance would explain",
        "hurt": ", more than chance would explain",
        "chance": ", which could be due to chance",
        "unknown": "",
    }[client.verdict]
    return f"Compared with going alone it has {lead.say_gain(client.gain)}{beyond}: {values}."


def notes(client: Judgement) -> tuple[str, ...]:
    """Return what to be careful about with this client, in a word or two each."""
    found = {
        "over-confident": client.overconfident,
        "better alone": client.verdict == "hurt",
        "little data": client.few_samples,
    }
    return tuple(words for words, holds in found.items() if holds)


def client_warnings(run: Run, client: Judgement, coverage: float) -> list[str]:
    """Say what to be careful about with this client; the tests are those of the warnings on top."""
    overconfident = (
        "It is over-confident: fewer of its answers are right than their confidence says, by more "
        "than chance would explain."
        if run.classification
        else f"It is over-confident: its 90% band contains {percent(coverage)} of its {client.test} "
        "test points, fewer than chance would explain."
    )
    told = {
        "over-confident": overconfident,
        "better alone": "It does better alone, by more than chance would explain.",
        "little data": f"It has fewer than {FEW_SAMPLES} samples: its predictions are mostly the "
        "prior, which the data of the others shaped.",
    }
    rough = f"It has fewer than {FEW_TESTS} test samples: the numbers of this client are rough."
    return [told[note] for note in notes(client)] + [rough] * client.few_tests


# ---- Certificates


def certificates(document: Facts) -> list[str]:
    """Say what is guaranteed to whom."""
    largest, found = document["loss"]["b"], []
    for group, facts in document["groups"].items():
        text = (
            f"{facts['below']} of {facts['clients']} {group} clients have a bound below {largest:g}, "
            f"the largest value of the loss; the median bound is {number(facts['bound'])}. "
        )
        if facts["proved"] == facts["clients"]:
            text += "Every premise of these certificates that can be checked holds."
        elif facts["proved"] == 0:
            text += (
                "They rest on a premise that is not proved. They would stay below "
                f"{largest:g} for any training that is epsilon-DP towards a whole client with epsilon "
                f"up to {facts['tolerated_epsilon']:.3g} (median)."
            )
        else:
            text += f"{facts['proved']} of these certificates are proved."
        if facts["tested"]:
            text += (
                f" On test samples, {facts['covered']} of {facts['tested']} bounds hold; at least "
                f"{100 * (1 - document['delta']):g}% of them should."
            )
        if facts.get("networks_test_risk") is not None:
            text += (
                " The certificates cover the Gaussian approximation, not the networks in use: drawn "
                "from a client's mixture, a network has a median test risk of "
                f"{number(facts['networks_test_risk'])}."
            )
        found.append(text)
    return [*found, *(verdict(document[row], document) for row in ("federation", "newcomers"))]


def verdict(row: Facts, document: Facts) -> str:
    """Return what one certificate says and rests on."""
    loss, newcomers = document["loss"], row is document["newcomers"]
    who = f"a model drawn from the {row['posterior']} of {row['subject']}"
    if newcomers:
        who = "the average client yet to come"
    elif row is document["federation"]:
        who = "the clients' average, weighted by beta, over models from their Gibbs posteriors"
    if row["vacuous"]:
        text = (
            f"No statement: the bound {row['bound']:.4g} for {who} is not below {loss['b']:g}, "
            f"the largest value of the loss ({loss['name']})"
        )
        return text + ("; a given newcomer has its own." if newcomers else ".")
    text = (
        f"With probability at least {1 - row['delta']:.6g}, {who} has an expected loss "
        f"({loss['name']}) of at most {row['bound']:.4g}"
    )
    text += "." if newcomers else f"; on the samples it is {row['empirical_risk']:.4g}."
    premises = [c for c in row["conditions"] if c["kind"] == "premise"]
    reasons = {
        status: "; ".join(f"{c['name']} ({c['reason']})" for c in premises if c["status"] == status)
        for status in ("does not hold", "assumed")
    }
    if broken := reasons["does not hold"]:
        return f"NOT VALID, because a premise does not hold: {broken}. {text}"
    if newcomers:
        return text
    if assumed := reasons["assumed"]:
        return f"{text} This rests on what is assumed, not proved: {assumed}."
    return text + " Every premise that can be checked holds."


def conditions(document: Facts) -> list[dict[str, str]]:
    """List each condition once, with whom it concerns and, where it differs, for how many of them.

    Where reasons differ from client to client, that of the first client is given.
    """
    named = [(GROUP_TITLES[row["group"]], row) for row in document["clients"]]
    named += [
        ("Federation", document["federation"]),
        ("Future clients", document["newcomers"]),
    ]
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for who, row in named:
        for condition in (*row["conditions"], *filter(None, [row.get("participation")])):
            statuses = reasons.setdefault((who, condition["name"]), {})
            first = f"{row['subject']}: {condition['reason']}"
            found = statuses.setdefault(condition["status"], [first])
            found.append(condition["reason"])
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (who, name), statuses in reasons.items():
        total = sum(len(found) - 1 for found in statuses.values())
        for status, (first, *found) in statuses.items():
            share = f" for {len(found)} of {total}" if len(found) < total else ""
            reason = found[0] if len(set(found)) == 1 else first
            merged.setdefault((name, status + share, reason), []).append(who)
    return [
        {"who": ", ".join(who), "name": name, "status": status, "reason": reason}
        for (name, status, reason), who in merged.items()
    ]


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED_CLIENTS
    return ", ".join(names[:NAMED_CLIENTS]) + (f" and {rest} more" if rest > 0 else "")


def _ordinal(place: int) -> str:
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place, 'th') }"
