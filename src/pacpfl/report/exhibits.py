"""Which figures the page shows, with what people need beside them: how to read each one, and
what it shows for those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pacpfl.report import class_plots, figures, particles
from pacpfl.report.compare import mean_of
from pacpfl.report.folder import Run
from pacpfl.report.measures import ACCURACY, COVERAGE_90, NLL, number, percent
from pacpfl.report.words import recovered_kinds


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
    """The figures this run has material for, in the order of the page."""
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
        ("weights", "learning", "Which particles serve whom",
         lambda: particles.weights(run), lambda: _weights(run)),
        ("responsibilities", "learning", "Which kind each client is",
         lambda: particles.responsibilities(run), lambda: _responsibilities(run)),
    ]  # fmt: skip


def _of_numbers(run: Run) -> list[Entry]:
    """Where the target is a number: levels kept, and bands."""
    entries: list[Entry] = [(
        "calibration", "calibration", "Promised and observed",
        lambda: figures.calibration(run), lambda: _calibration(run),
    )]  # fmt: skip
    for group in run.groups:
        entries.append((
            f"bands_{group}", "predictions", f"What {group} clients are told",
            lambda group=group: figures.bands(run, group),  # type: ignore[misc]
            lambda group=group: _bands(run, group),  # type: ignore[misc]
        ))  # fmt: skip
    return entries


def _of_classes(run: Run) -> list[Entry]:
    """Where the target is a class: how often sure answers are right, and single samples."""
    entries: list[Entry] = [(
        "reliability", "calibration", "How sure and how often right",
        lambda: class_plots.reliability(run), lambda: class_plots.reliability_words(run),
    )]  # fmt: skip
    for group in run.groups:
        entries.append((
            f"examples_{group}", "predictions", f"What {group} clients are told",
            lambda group=group: class_plots.examples(run, group),  # type: ignore[misc]
            lambda group=group: class_plots.examples_words(run, group),  # type: ignore[misc]
        ))  # fmt: skip
    return entries


def _boxes(run: Run) -> tuple[str, str]:
    caption = (
        "Each faint mark is one client. The box holds the middle half of the clients, the thick "
        "line is the median, and the whiskers reach the furthest client within one and a half "
        "box lengths. Further left is better"
        + (", of the accuracy further right" if run.classification else "")
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
        "A prediction comes with levels: the true value should lie below the 0.8 level eight times "
        "in ten. The nearer a curve runs to the diagonal, the more its levels can be trusted. A "
        "curve that is flat in the middle and steep at the ends (above the diagonal on the left, "
        "below it on the right) is over-confident; the other way round it is too cautious. Lines "
        "are means over clients, the shaded bands hold the middle half of the clients."
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
        "The solid diamonds are what the client had learned from. "
        if figures.has_one_feature(run, group, clients[0])
        else "There are several features, so the test samples stand side by side in the order of "
        f"the data, at most the first {figures.SAMPLES_IN_A_ROW}. "
    )
    caption = (
        f"The line is the mean {run.titles[run.main]} predicts, the shades are its 50, 90 and 95% "
        f"bands, the rings are test points it has never seen. {against}About nine rings in ten "
        "should lie inside the 90% band, and the band should be wide where data is scarce. Thin "
        "lines are the means of the other methods."
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
        "Log evidence says how well the learned priors explain the data of the clients before "
        "they are fitted to them: it should rise and then level out. If it still rises at the "
        "end, more rounds will help. Below it is how much the particles differ; if that falls "
        "to zero they have become one. The line is a mean over neighbouring rounds, the shade "
        "reaches from the lowest to the highest of them."
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
        "Each number is the root mean square difference between what two particles predict; the "
        "fuller the tile, the further they are apart. Particles are worth their cost only if "
        "they differ."
    )
    apart = pairwise[~np.eye(len(pairwise), dtype=bool)]
    words = str(run.methods[run.main].get("diversity", {}).get("words", ""))
    return caption, (
        f"Table of the differences between {len(pairwise)} particles, from "
        f"{number(float(apart.min()))} to {number(float(apart.max()))}. {words}"
    ).strip()


def _weights(run: Run) -> tuple[str, str]:
    caption = (
        "One column per client, one row per particle: the fuller the tile, the more this particle "
        "counts in the client's own posterior (every column sums to one). A single full tile "
        "means that the client trusts one particle only; even columns mean that its data does "
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
    return caption, "Responsibilities of the components for each client. " + caption


def headline(run: Run) -> list[tuple[str, str]]:
    """The few numbers one wants first, each with what it is."""
    facts = []
    if run.classification:
        for group in run.groups:
            share = mean_of(run, run.main, group, ACCURACY.key)
            if np.isfinite(share):
                facts.append((percent(share, 1), f"named rightly, {group} clients"))
        for group in run.groups:
            error = mean_of(run, run.main, group, "ce")
            if np.isfinite(error):
                facts.append((number(error), f"calibration error, {group} clients"))
        return facts
    for group in run.groups:
        error = mean_of(run, run.main, group, "rsmse")
        if np.isfinite(error):
            facts.append((number(error), f"RSMSE, {group} clients"))
    for group in run.groups:
        share = mean_of(run, run.main, group, COVERAGE_90.key)
        if np.isfinite(share):
            facts.append((percent(share), f"inside 90% bands, {group} clients"))
    return facts
