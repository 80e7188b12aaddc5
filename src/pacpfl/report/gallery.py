"""The figures of the page: how to read each one, and what it shows for those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pacpfl.metrics import coverage
from pacpfl.report import figures, particles
from pacpfl.report.folder import Facts, Run
from pacpfl.report.judge import promised_and_kept, recovered_kinds
from pacpfl.report.measures import NLL, number, percent
from pacpfl.report.sentences import GROUP_TITLES, diversity
from pacpfl.report.style import Drawn, as_png, as_svg


class Entry(NamedTuple):
    """A figure that a run may have material for. `name` is that of its files; `section` is where it
    stands."""

    name: str
    section: str
    title: str
    draw: Callable[..., Figure | None]
    words: Callable[..., tuple[str, str]]  # the caption, and what the figure shows
    about: tuple[Any, ...]  # what both take


def gallery(run: Run) -> Iterator[Drawn]:
    """Yield the figures this run has material for, in the order of the page."""
    for name, section, title, draw, words, about in _catalogue(run):
        figure = draw(*about)
        if figure is not None:
            yield Drawn(name, section, title, *words(*about), as_png(figure), as_svg(figure))


def _catalogue(run: Run) -> Iterator[Entry]:
    drawn = (run,)
    yield Entry("boxes", "results", "Client by client", figures.boxes, _boxes, drawn)
    if run.classification:
        title = "Confidence and accuracy"
        yield Entry("reliability", "calibration", title, figures.reliability, _reliability, drawn)
    else:
        title = "Promised and observed frequencies"
        yield Entry("calibration", "calibration", title, figures.calibration, _calibration, drawn)
    for group in run.groups:
        title, one = f"Predictions for {group} clients", (run, group)
        if run.classification:
            name = f"examples_{group}"
            yield Entry(name, "predictions", title, figures.examples, _examples, one)
        else:
            yield Entry(f"bands_{group}", "predictions", title, figures.bands, _bands, one)
    yield Entry("training", "learning", "Training", particles.training, _training, drawn)
    title = "How different the particles are"
    yield Entry("diversity", "learning", title, particles.diversity, _diversity, drawn)
    title = "Which particles each client relies on"
    yield Entry("weights", "learning", title, particles.weights, _weights, drawn)
    name, title = "responsibilities", "Which component explains each client"
    yield Entry(name, "learning", title, particles.responsibilities, _responsibilities, drawn)
    if run.certificates is not None:
        name, title, about = "certificates", "Promised and measured risk", (run.certificates,)
        yield Entry(name, name, title, figures.certificates, _certificates, about)


def _boxes(run: Run) -> tuple[str, str]:
    caption = (
        "Each faint mark is one client. The box contains the middle half of the clients, the thick "
        "line is the median, and the whiskers reach to the furthest client within one and a half "
        "box lengths. Further left is better"
        + (", except for the accuracy, where further right is better" if run.classification else "")
        + "; a short box means that nobody is left behind."
    )
    if infinite := int(np.isinf(run.clients[NLL.key]).sum()):
        caption += f" {infinite} values of NLL are infinite and not drawn."
    parts = []
    for measure in figures.boxed(run):
        for group in run.groups:
            medians = [
                f"{title} {number(float(np.median(values)))}"
                for method, title in run.titles.items()
                if (values := figures.finite(run, method, group, measure)).size
            ]
            if medians:
                parts.append(f"Median {measure.title} of {group} clients: {', '.join(medians)}.")
    return caption, "Box plots. " + " ".join(parts)


def _calibration(run: Run) -> tuple[str, str]:
    caption = (
        "A predictive quantile at level 0.8 should lie above the true value eight times in ten. The "
        "closer a curve is to the diagonal, the better calibrated the method. A curve that is flat in "
        "the middle and steep at the ends (above the diagonal on the left, below it on the right) is "
        "over-confident; the other way round it is too cautious. Lines are means over clients; the "
        "shaded bands contain the middle half of the clients."
    )
    levels = run.arrays["calibration/levels"]
    parts = []
    for group in run.groups:
        for method, title in run.titles.items():
            values = run.arrays.get(f"calibration/{method}/{group}")
            if values is not None and np.isfinite(values).any():
                gap = float(np.nanmax(np.abs(np.nanmean(values, axis=0) - levels)))
                parts.append(
                    f"{title}, {group} clients: at most {number(gap, 2)} from the diagonal."
                )
    return caption, "Calibration curves of the methods. " + " ".join(parts)


def _bands(run: Run, group: str) -> tuple[str, str]:
    clients = figures.drawn_clients(run, group)
    against = (
        "The solid diamonds are the samples the client learned from. "
        if all("x" in own for own in clients.values())
        else "There are several features, so the test samples are drawn side by side in the order of "
        f"the data (the first {figures.SAMPLES_IN_A_ROW} at most). "
    )
    caption = (
        f"The line is the mean that {run.titles[run.main]} predicts, the shaded areas are its 50, 90 "
        f"and 95% bands, and the rings are test points it has never seen. {against}About nine rings "
        "in ten should lie inside the 90% band, and the band should be wide where data is scarce. "
        "Thin lines are the means of the other methods."
    )
    shares = ", ".join(
        f"{client} {percent(coverage(own['y'], own['quantiles'][1], own['quantiles'][4]))}"
        for client, own in clients.items()
    )
    return caption, (
        f"Prediction bands of {len(clients)} {group} clients. Test points inside the 90% band: "
        f"{shares}."
    )


def _training(run: Run) -> tuple[str, str]:
    caption = (
        "The log evidence says how well the learned priors explain the clients' data before they are "
        "fitted to it: it should rise and then level off. If it is still rising at the end, more "
        "rounds will help. Below it is how much the particles differ; if that falls to zero they "
        "have become one. The line is a mean over neighbouring rounds; the shaded area reaches from "
        "the lowest to the highest of them."
    )
    parts = []
    for key, name in (("log_evidence", "Log evidence per sample"), ("diversity", "Diversity")):
        values = run.arrays.get(f"curve/{key}")
        if values is not None and len(values) > 1:
            first, last = number(float(values[0])), number(float(values[-1]))
            parts.append(f"{name} goes from {first} to {last} in {len(values)} rounds.")
    return caption, "Training curve. " + " ".join(parts)


def _diversity(run: Run) -> tuple[str, str]:
    pairwise = run.arrays["diversity/pairwise"]
    caption = (
        "Each number is the root mean square difference between the predictions of two particles; the "
        "fuller the tile, the further they are apart. Particles are worth their cost only if "
        "they differ."
    )
    apart = pairwise[~np.eye(len(pairwise), dtype=bool)]
    return caption, (
        f"Table of the differences between {len(pairwise)} particles, from "
        f"{number(float(apart.min()))} to {number(float(apart.max()))}. {diversity(run.methods[run.main])}"
    ).strip()


def _weights(run: Run) -> tuple[str, str]:
    caption = (
        "One column per client, one row per particle: the fuller the tile, the more this particle "
        "counts in the client's own posterior (every column sums to one). A single full tile "
        "means that the client relies on one particle; an even column means that its data does "
        "not tell them apart."
    )
    parts = []
    for group in run.groups:
        values = run.per_client("weights", group)
        if values is not None:
            alone = int((values.max(axis=1) > 0.95).sum())
            parts.append(f"{alone} of {len(values)} {group} clients give one particle over 95%.")
    return caption, "Mixture weights per client. " + " ".join(parts)


def _responsibilities(run: Run) -> tuple[str, str]:
    caption = (
        "The prior is a mixture of components. One column per client: the fuller the tile, the "
        "surer it is that this component explains the client's data."
    )
    counts = {group: recovered_kinds(run, group) for group in run.groups}
    found = [
        f"{counted[0]} of {counted[1]} {group} clients"
        for group, counted in counts.items()
        if counted is not None
    ]
    if found:
        caption += (
            " The last row is the true kind, which the learning never saw: components and kinds "
            f"agree for {' and '.join(found)}."
        )
    agree = f" Components and true kinds agree for {' and '.join(found)}." if found else ""
    return caption, f"Responsibility of each component for each client.{agree}"


def _reliability(run: Run) -> tuple[str, str]:
    caption = (
        "Answers are grouped by the probability of the class they name. On the diagonal, answers given "
        "with 80% confidence are right eight times in ten; below it the method is over-confident, "
        "above it too cautious. All clients of a group are counted together. The larger a mark, the "
        f"more answers it stands for; marks for fewer than {figures.LEAST_IN_A_BIN} are not drawn."
    )
    parts = []
    for group in run.groups:
        for method, title in run.titles.items():
            if found := promised_and_kept(run, method, group):
                sure, right = found
                parts.append(
                    f"{title}, {group} clients: {percent(sure, 1)} confident on average, "
                    f"{percent(right, 1)} right."
                )
    return caption, "Reliability diagram of the methods. " + " ".join(parts)


def _examples(run: Run, group: str) -> tuple[str, str]:
    title = run.titles[run.main]
    caption = (
        f"Test samples of {group} clients that {title} had never seen: some that it classified "
        "correctly with high confidence, those it classified correctly with the least confidence, and "
        "those it classified wrongly with the most. The bars are the probabilities of the likeliest "
        "classes; the true one is plain, the others are hatched."
    )
    labels = run.arrays[f"examples/{group}/labels"]
    probabilities = run.arrays[f"examples/{group}/probabilities"]
    parts = []
    for kind, places in figures.examples_of(run, group).items():
        told = []
        for place in places:
            chances = probabilities[place]
            names = [figures.class_name(number, len(chances)) for number in range(len(chances))]
            told.append(
                f"a {names[labels[place]]} taken for {names[chances.argmax()]} "
                f"({percent(float(chances.max()))})"
            )
        parts.append(f"{kind.capitalize()}: {', '.join(told)}.")
    return caption, f"Images of {len(labels)} test samples. " + " ".join(parts)


def _certificates(document: Facts) -> tuple[str, str]:
    caption = (
        "One column per client, sorted by its bound. The ring is the average loss on the client's "
        "own samples, the bar is what is guaranteed for all samples to come, and the cross is the "
        "average loss on test samples: a cross above its bar would be a broken promise. A bar at the "
        "dashed line, the largest possible loss, guarantees nothing."
    )
    if len(document["clients"]) > figures.CERTIFIED:
        caption += f" At most {figures.CERTIFIED} clients of each group are drawn."
    parts = []
    for group, facts in document["groups"].items():
        text = (
            f"{GROUP_TITLES[group]}: median empirical risk {number(facts['empirical_risk'])}, "
            f"median bound {number(facts['bound'])}"
        )
        if facts["tested"]:
            text += (
                f", median test risk {number(facts['test_risk'])}; the bound holds against the "
                f"test samples for {facts['covered']} of {facts['tested']} clients"
            )
        parts.append(text + ".")
    return caption, "Empirical risk, bound and test risk of each client. " + " ".join(parts)
