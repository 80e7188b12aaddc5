"""Figures of the learning itself: training curve, how different the particles are, and whom each serves.

Each function takes a run and returns a figure with its words, or nothing where the run holds nothing to
draw.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from pacpfl.folder import thinned
from pacpfl.report import sentences
from pacpfl.report.folder import Run
from pacpfl.report.judge import recovered_kinds
from pacpfl.report.measures import number
from pacpfl.report.sentences import GROUP_TITLES, ONE_PARTICLE
from pacpfl.report.style import COLOURS, INK, Shown, grid, looks, panels, short, wrapped

CURVES = {
    "log_evidence": ("log evidence\nper sample", "Log evidence per sample"),
    "diversity": ("diversity of\nthe particles", "Diversity"),
}
BLOCKS = 150  # points of a training curve
TILES = 64  # clients side by side in a row of tiles
NAMES = 32  # clients whose names still fit under their tiles
STRONGEST = 0.55  # opacity of a full tile: text in ink stays readable on it, in light and dark


def training(run: Run) -> Shown | None:
    """Draw the log evidence per sample against the round, with the particles' diversity below."""
    curves = {key: run.arrays.get(f"curve/{key}", np.zeros(0)) for key in CURVES}
    curves = {key: values for key, values in curves.items() if len(values) > 1}
    if not curves:
        return None
    figure, axes = panels(
        len(curves), 1, 1.1 + 1.35 * len(curves), sharex=True,
        gridspec_kw={"height_ratios": [3, 2][: len(curves)]},
    )  # fmt: skip
    told = ["Training curve."]
    for axis, (key, values) in zip(axes, curves.items(), strict=True):
        label, name = CURVES[key]
        _draw_curve(axis, values, looks(run.titles)[run.main].colour)
        axis.set_ylabel(label)
        grid(axis)
        if key == "diversity":
            axis.set_ylim(bottom=0)
        first, last = number(float(values[0])), number(float(values[-1]))
        told.append(f"{name} goes from {first} to {last} in {len(values)} rounds.")
    axes[-1].set_xlabel("round")
    caption = (
        "The log evidence says how well the learned priors explain the clients' data before they are "
        "fitted to it: it should rise and then level off. If it is still rising at the end, more "
        "rounds will help. Below it is how much the particles differ; if that falls to zero they "
        "have become one. The line is a mean over neighbouring rounds; the shaded area reaches from "
        "the lowest to the highest of them."
    )
    return Shown("training", "learning", "Training", caption, " ".join(told), figure)


def _draw_curve(axis: Axes, values: np.ndarray, colour: str) -> None:
    """Draw the mean of every block of rounds, and the range in which its rounds lie."""
    count = min(BLOCKS, len(values))
    numbers = np.array_split(np.arange(1, len(values) + 1), count)
    parts = [part[np.isfinite(part)] for part in np.array_split(values, count)]
    kept = [(n.mean(), p.min(), p.mean(), p.max()) for n, p in zip(numbers, parts, strict=True)
            if p.size]  # fmt: skip
    if not kept:
        return
    rounds, lows, means, highs = np.array(kept).T
    axis.fill_between(rounds, lows, highs, color=colour, alpha=0.2, linewidth=0)
    axis.plot(rounds, means, color=colour, linewidth=1.6)
    # A run starts far below where it ends: without a floor its whole progress is one flat line.
    usual = np.quantile(means, 0.1)
    floor = usual - 1.5 * (highs.max() - usual)
    if lows.min() < floor < highs.max():
        axis.set_ylim(floor, highs.max() + 0.05 * (highs.max() - floor))
        axis.text(
            0.995, 0.05, f"round 1 is below the axis, at {number(float(values[0]), 2)}",
            transform=axis.transAxes, ha="right", fontsize=8.5, alpha=0.85,
        )  # fmt: skip


def diversity(run: Run) -> Shown | None:
    """Draw how far apart the predictions of every two particles are."""
    pairwise = run.arrays.get("diversity/pairwise", np.zeros(0))
    count, entry = len(pairwise), run.methods[run.main]
    if count < 2:
        return None
    figure, (axis, beside) = panels(1, 2, 2.9, width_ratios=[1.15, 1])
    # Against the start, so that collapsed particles look pale and not merely rescaled.
    start = float(entry.get("diversity", {}).get("at_start", 0.0))
    _tiles(axis, pairwise / max(float(np.nanmax(pairwise)), start, 1e-30))
    if count <= 10:
        for (row, column), value in np.ndenumerate(pairwise):
            axis.text(
                column, row, number(float(value), 2), ha="center", va="center",
                fontsize=9 if count <= 6 else 7,
            )  # fmt: skip
    ticks = thinned(count, 10)
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set(xlabel="particle", ylabel="particle", aspect="equal")
    beside.set_axis_off()
    words = sentences.diversity(entry)
    beside.text(0, 1, wrapped(words, 36), va="top", transform=beside.transAxes, linespacing=1.45)
    apart = pairwise[~np.eye(count, dtype=bool)]
    caption = (
        "Each number is the root mean square difference between the predictions of two particles; the "
        "fuller the tile, the further they are apart. Particles are worth their cost only if "
        "they differ."
    )
    least, most = number(float(apart.min())), number(float(apart.max()))
    told = f"Table of the differences between {count} particles, from {least} to {most}. {words}"
    title = "How different the particles are"
    return Shown("diversity", "learning", title, caption, told.strip(), figure)


def _tiles(axis: Axes, strengths: np.ndarray) -> None:
    """Draw one tile per entry of a matrix of numbers in [0, 1]: the stronger the fuller."""
    for (row, column), strength in np.ndenumerate(strengths):
        full = STRONGEST * float(np.clip(np.nan_to_num(strength), 0, 1))
        edge = to_rgba(INK, 0.25 if strengths.size < 600 else 0.1)
        axis.add_patch(
            Rectangle(
                (column - 0.47, row - 0.46), width=0.94, height=0.92, linewidth=0.4,
                clip_on=False, facecolor=to_rgba(COLOURS[0], full), edgecolor=edge,
            )
        )  # fmt: skip
    rows, columns = strengths.shape
    axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def weights(run: Run) -> Shown | None:
    """Draw the weight of every particle in the posterior of every client."""
    values = _by_group(run, "weights")
    alone = " ".join(
        f"{int((shares.max(axis=1) > ONE_PARTICLE).sum())} of {len(shares)} {group} clients give one "
        "particle over 95%."
        for group, shares in values.items()
    )
    caption = (
        "One column per client, one row per particle: the fuller the tile, the more this particle "
        "counts in the client's own posterior (every column sums to one). A single full tile "
        "means that the client relies on one particle; an even column means that its data does "
        "not tell them apart."
    )
    title, told = "Which particles each client relies on", f"Mixture weights per client. {alone}"
    figure = _per_client(run, values, "particle")
    return Shown("weights", "learning", title, caption, told, figure) if figure else None


def responsibilities(run: Run) -> Shown | None:
    """Draw which component of a mixture prior explains each client, beside its true kind."""
    name, title = "responsibilities", "Which component explains each client"
    values = _by_group(run, name)
    caption = (
        "The prior is a mixture of components. One column per client: the fuller the tile, the "
        "surer it is that this component explains the client's data."
    )
    told = "Responsibility of each component for each client."
    counts = {group: recovered_kinds(run, group) for group in values}
    if agreeing := " and ".join(f"{n[0]} of {n[1]} {g} clients" for g, n in counts.items() if n):
        caption += (
            " The last row is the true kind, which the learning never saw: components and kinds "
            f"agree for {agreeing}."
        )
        told += f" Components and true kinds agree for {agreeing}."
    figure = _per_client(run, values, "component", {g: run.kinds(g) for g in values})
    return Shown(name, "learning", title, caption, told, figure) if figure else None


def _by_group(run: Run, key: str) -> dict[str, np.ndarray]:
    return {g: found for g in run.groups if (found := run.per_client(key, g)) is not None}


def _per_client(
    run: Run, values: dict[str, np.ndarray], what: str, kinds: dict[str, list[str]] | None = None
) -> Figure | None:
    """Draw a row of tiles per particle or component, a column per client, a panel per group."""
    rows = max((matrix.shape[1] for matrix in values.values()), default=0)
    if rows < 2:
        return None
    heights = []
    for group in values:
        names = run.names(group) if len(run.names(group)) <= NAMES else []
        longest = max((len(short(name, 14)) for name in names), default=0)
        known = kinds is not None and any(kinds[group])
        heights.append(max(0.12, min(0.24, 4.0 / rows)) * (rows + known) + 0.55 + 0.065 * longest)
    figure, axes = panels(len(values), 1, sum(heights), gridspec_kw={"height_ratios": heights})
    for axis, (group, matrix) in zip(axes, values.items(), strict=True):
        own, order = [] if kinds is None else kinds[group], list(range(len(matrix)))
        if own:
            order.sort(key=lambda place: (own[place], *(-matrix[place])))
        shown = [order[place] for place in thinned(len(order), TILES)]
        _tiles(axis, matrix[shown].T)
        labels = [f"{what} {row + 1}" for row in range(rows)]
        ticks = [int(tick) for tick in thinned(rows, rows if rows <= 16 else 8)]
        if any(own):
            for column, place in enumerate(shown):
                text = short(own[place], 3) or "?"
                axis.text(column, rows, text, ha="center", va="center", fontsize=8)
            axis.set_ylim(rows + 0.5, -0.5)
            labels, ticks = [*labels, "true kind"], [*ticks, rows]
        axis.set_yticks(ticks, [labels[tick] for tick in ticks])
        _mean_beside(axis, matrix)
        axis.set_title(GROUP_TITLES[group], pad=10)
        _name_clients(axis, [run.names(group)[place] for place in shown], len(matrix), bool(own))
    return figure


def _name_clients(axis: Axes, names: list[str], of: int, ordered: bool) -> None:
    """Write the names of the clients below their tiles, or how many of them are shown."""
    if len(names) < of:
        axis.set_xticks([])
        axis.set_xlabel(f"{len(names)} of {of} clients, evenly chosen")
    elif of <= NAMES:
        axis.set_xticks(range(of), [short(n, 14) for n in names], rotation=90, fontsize=7.5)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("client, in the order of the kinds" if ordered else "client")


def _mean_beside(axis: Axes, matrix: np.ndarray) -> None:
    """Write the average of every row at its right end."""
    if matrix.shape[1] > 16:
        return
    side = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 8}
    axis.text(1.015, -0.95, "mean", **side)  # type: ignore[arg-type]
    for row, mean in enumerate(np.nanmean(matrix, axis=0)):
        axis.text(1.015, row, number(float(mean), 2), **side)  # type: ignore[arg-type]
