"""The figures of the page: how to read each one, and what it shows for those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pacpfl.report import figures, particles
from pacpfl.report.folder import Run
from pacpfl.report.judge import recovered_kinds
from pacpfl.report.measures import NLL, number, percent
from pacpfl.report.sentences import diversity


@dataclass(frozen=True)
class Exhibit:
    """A figure with its words. `name` is that of its files; `section` is where it stands."""

    name: str
    section: str
    title: str
    caption: str
    alternative: str
    figure: Figure


def exhibits(run: Run) -> Iterator[Exhibit]:
    """Yield the figures this run has material for, in the order of the page."""
    for name, section, title, draw, words in _catalogue(run):
        figure = draw()
        if figure is not None:
            caption, alternative = words()
            yield Exhibit(name, section, title, caption, alternative, figure)


Entry = tuple[str, str, str, Callable[[], Figure | None], Callable[[], tuple[str, str]]]


def _catalogue(run: Run) -> list[Entry]:
    return [
        ("boxes", "results", "Client by client", lambda: figures.boxes(run), lambda: _boxes(run)),
        *(_of_classes(run) if run.classification else _of_numbers(run)),
        ("training", "learning", "Training", lambda: particles.training(run),
         lambda: _training(run)),
        ("diversity", "learning", "How different the particles are",
         lambda: particles.diversity(run), lambda: _diversity(run)),
        ("weights", "learning", "Which particles each client relies on",
         lambda: particles.weights(run), lambda: _weights(run)),
        ("responsibilities", "learning", "Which component explains each client",
         lambda: particles.responsibilities(run), lambda: _responsibilities(run)),
    ]  # fmt: skip


def _of_numbers(run: Run) -> list[Entry]:
    """List the figures of a target that is a number: levels kept, and bands."""
    entries: list[Entry] = [(
        "calibration", "calibration", "Promised and observed frequencies",
        lambda: figures.calibration(run), lambda: _calibration(run),
    )]  # fmt: skip
    for group in run.groups:
        entries.append((
            f"bands_{group}", "predictions", f"Predictions for {group} clients",
            lambda group=group: figures.bands(run, group),  # type: ignore[misc]
            lambda group=group: _bands(run, group),  # type: ignore[misc]
        ))  # fmt: skip
    return entries


def _of_classes(run: Run) -> list[Entry]:
    """List the figures of a target that is a class: confidence, and single samples."""
    entries: list[Entry] = [(
        "reliability", "calibration", "Confidence and accuracy",
        lambda: figures.reliability(run), lambda: _reliability(run),
    )]  # fmt: skip
    for group in run.groups:
        entries.append((
            f"examples_{group}", "predictions", f"Predictions for {group} clients",
            lambda group=group: figures.examples(run, group),  # type: ignore[misc]
            lambda group=group: _examples(run, group),  # type: ignore[misc]
        ))  # fmt: skip
    return entries


def _boxes(run: Run) -> tuple[str, str]:
    caption = (
        "Each faint mark is one client. The box contains the middle half of the clients, the thick "
        "line is the median, and the whiskers reach to the furthest client within one and a half "
        "box lengths. Further left is better"
        + (", except for the accuracy, where further right is better" if run.classification else "")
        + "; a short box means that nobody is left behind."
    )
    infinite = ~np.isfinite(run.clients[NLL.key].to_numpy(dtype=float))
    infinite &= run.clients[NLL.key].notna().to_numpy()
    if infinite.any():
        caption += f" {int(infinite.sum())} values of NLL are infinite and not drawn."
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
    available = figures.drawn_clients(run, group)
    clients = available[: figures.DRAWN_CLIENTS]
    against = (
        "The solid diamonds are the samples the client learned from. "
        if figures.has_one_feature(run, group, clients[0])
        else "There are several features, so the test samples are drawn side by side in the order of "
        f"the data (the first {figures.SAMPLES_IN_A_ROW} at most). "
    )
    caption = (
        f"The line is the mean that {run.titles[run.main]} predicts, the shaded areas are its 50, 90 "
        f"and 95% bands, and the rings are test points it has never seen. {against}About nine rings "
        "in ten should lie inside the 90% band, and the band should be wide where data is scarce. "
        "Thin lines are the means of the other methods."
    )
    if len(available) > len(clients):
        caption += f" {len(clients)} of the {len(available)} clients kept for drawing are shown."
    shares = []
    for client in clients:
        key = f"bands/{group}/{client}"
        y, quantiles = run.arrays[f"{key}/y"], run.arrays[f"{key}/quantiles"]
        inside = float(((y >= quantiles[1]) & (y <= quantiles[4])).mean())
        shares.append(f"{client} {percent(inside)}")
    return caption, (
        f"Prediction bands of {len(clients)} {group} clients. Test points inside the 90% band: "
        f"{', '.join(shares)}."
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
    """Return the caption, and what the figure shows for those who cannot see it."""
    caption = (
        "Answers are grouped by the probability of the class they name. On the diagonal, answers given "
        "with 80% confidence are right eight times in ten; below it the method is over-confident, "
        "above it too cautious. All clients of a group are counted together. The larger a mark, the "
        f"more answers it stands for; marks for fewer than {figures.LEAST_IN_A_BIN} are not drawn."
    )
    parts = []
    for group in run.groups:
        for method, title in run.titles.items():
            tables = run.per_client(f"calibration/{method}", group)
            if tables is not None:
                samples, right, sure = tables.sum(axis=(0, 1))
                parts.append(
                    f"{title}, {group} clients: {percent(sure / samples, 1)} confident on "
                    f"average, {percent(right / samples, 1)} right."
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
    for places in figures.examples_of(run, group):
        kind = figures.KINDS[int(run.arrays[f"examples/{group}/kind"][places[0]])]
        told = []
        for place in places:
            chances = probabilities[place]
            first = int(np.argmax(chances))
            count = len(chances)
            told.append(
                f"a {figures.class_name(int(labels[place]), count)} taken for "
                f"{figures.class_name(first, count)} ({percent(float(chances[first]))})"
            )
        parts.append(f"{kind.capitalize()}: {', '.join(told)}.")
    return caption, f"Images of {len(labels)} test samples. " + " ".join(parts)
