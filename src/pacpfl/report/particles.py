"""Figures of the learning itself: training curve, how different the particles are, and whom
each of them serves.

Each function takes a run and returns a figure, or nothing where the run holds nothing to draw.
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
from pacpfl.report.measures import number
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, INK, grid, looks, panels, short, wrapped

BLOCKS = 150  # points of a training curve
TILES = 64  # clients side by side in a row of tiles
NAMES = 32  # clients whose names still fit under their tiles
STRONGEST = 0.55  # opacity of a full tile: text in ink stays readable on it, in light and dark


def training(run: Run) -> Figure | None:
    """Draw the log evidence per sample against the round, with the particles' diversity below."""
    parts = [
        ("curve/log_evidence", "log evidence\nper sample"),
        ("curve/diversity", "diversity of\nthe particles"),
    ]
    parts = [part for part in parts if len(run.arrays.get(part[0], ())) > 1]
    if not parts:
        return None
    figure, axes = panels(
        len(parts), 1, 1.1 + 1.35 * len(parts), sharex=True,
        gridspec_kw={"height_ratios": [3, 2][: len(parts)]},
    )  # fmt: skip
    colour = looks(run.titles)[run.main].colour
    for axis, (key, label) in zip(axes, parts, strict=True):
        _draw_curve(axis, run.arrays[key], colour)
        axis.set_ylabel(label)
        grid(axis)
        if key == "curve/diversity":
            axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("round")
    return figure


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


def diversity(run: Run) -> Figure | None:
    """Draw how far apart the predictions of every two particles are."""
    pairwise = run.arrays.get("diversity/pairwise")
    if pairwise is None or len(pairwise) < 2:
        return None
    count = len(pairwise)
    figure, axes = panels(1, 2, 2.9, width_ratios=[1.15, 1])
    axis, beside = axes
    facts = run.methods[run.main].get("diversity", {})
    # Against the start, so that collapsed particles look pale and not merely rescaled.
    full = max(float(np.nanmax(pairwise)), float(facts.get("at_start", 0.0)), 1e-30)
    _tiles(axis, pairwise / full)
    if count <= 10:
        for (row, column), value in np.ndenumerate(pairwise):
            axis.text(
                column, row, number(float(value), 2), ha="center", va="center",
                fontsize=9 if count <= 6 else 7,
            )  # fmt: skip
    ticks = thinned(count, 10)
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set(xlabel="particle", ylabel="particle")
    axis.set_aspect("equal")
    beside.set_axis_off()
    words = wrapped(sentences.diversity(run.methods[run.main]), 36)
    beside.text(0, 1, words, va="top", transform=beside.transAxes, linespacing=1.45)
    return figure


def _tiles(axis: Axes, strengths: np.ndarray) -> None:
    """Draw one tile per entry of a matrix of numbers in [0, 1]: the stronger the fuller."""
    for (row, column), strength in np.ndenumerate(strengths):
        full = STRONGEST * float(np.clip(np.nan_to_num(strength), 0, 1))
        axis.add_patch(
            Rectangle(
                (column - 0.47, row - 0.46),
                width=0.94,
                height=0.92,
                linewidth=0.4,
                clip_on=False,
                facecolor=to_rgba(COLOURS[0], full),
                edgecolor=to_rgba(INK, 0.25 if strengths.size < 600 else 0.1),
            )
        )
    rows, columns = strengths.shape
    axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def weights(run: Run) -> Figure | None:
    """Draw the weight of every particle in the posterior of every client."""
    return _per_client(run, "weights", "particle", with_kinds=False)


def responsibilities(run: Run) -> Figure | None:
    """Draw which component of a mixture prior explains each client, beside its true kind."""
    return _per_client(run, "responsibilities", "component", with_kinds=True)


def _per_client(run: Run, key: str, what: str, with_kinds: bool) -> Figure | None:
    """Draw a row of tiles per particle or component, a column per client, a panel per group."""
    values = {g: found for g in run.groups if (found := run.per_client(key, g)) is not None}
    if not values or next(iter(values.values())).shape[1] < 2:
        return None
    rows = next(iter(values.values())).shape[1]
    heights = []
    for group in values:
        named = len(run.names(group)) <= NAMES
        known = with_kinds and any(run.kinds(group))
        longest = max(len(short(name, 14)) for name in run.names(group)) if named else 0
        heights.append(max(0.12, min(0.24, 4.0 / rows)) * (rows + known) + 0.55 + 0.065 * longest)
    figure, axes = panels(len(values), 1, sum(heights), gridspec_kw={"height_ratios": heights})
    for axis, (group, matrix) in zip(axes, values.items(), strict=True):
        names, kinds = run.names(group), run.kinds(group)
        order = list(range(len(names)))
        if with_kinds:
            order.sort(key=lambda number: (kinds[number], *(-matrix[number])))
        shown = [order[index] for index in thinned(len(order), TILES)]
        _tiles(axis, matrix[shown].T)
        labels = [f"{what} {row + 1}" for row in range(rows)]
        ticks = list(range(rows)) if rows <= 16 else [int(tick) for tick in thinned(rows, 8)]
        if with_kinds and any(kinds):
            for column, number_of_client in enumerate(shown):
                axis.text(
                    column, rows, short(kinds[number_of_client], 3) or "?",
                    ha="center", va="center", fontsize=8,
                )  # fmt: skip
            axis.set_ylim(rows + 0.5, -0.5)
            labels, ticks = [*labels, "true kind"], [*ticks, rows]
        axis.set_yticks(ticks, [labels[tick] for tick in ticks])
        _mean_beside(axis, matrix)
        axis.set_title(GROUP_TITLES[group], pad=10)
        if len(shown) == len(names) <= NAMES:
            axis.set_xticks(
                range(len(shown)), [short(names[index], 14) for index in shown],
                rotation=90, fontsize=7.5,
            )  # fmt: skip
        elif len(shown) == len(names):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_xlabel("client" if not with_kinds else "client, in the order of the kinds")
        else:
            axis.set_xticks([])
            axis.set_xlabel(f"{len(shown)} of {len(names)} clients, evenly chosen")
    return figure


def _mean_beside(axis: Axes, matrix: np.ndarray) -> None:
    """Write the average of every row at its right end."""
    if matrix.shape[1] > 16:
        return
    side = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 8}
    axis.text(1.015, -0.95, "mean", **side)  # type: ignore[arg-type]
    for row, mean in enumerate(np.nanmean(matrix, axis=0)):
        axis.text(1.015, row, number(float(mean), 2), **side)  # type: ignore[arg-type]
