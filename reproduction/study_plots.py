"""Figures of a study: a metric along a sweep, or method by method."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from scipy import stats

from pacpfl.report.folder import GROUPS
from pacpfl.report.measures import plus_minus
from pacpfl.report.page import Drawn
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import (
    INK,
    as_png,
    as_svg,
    drawing,
    grid,
    panels,
    short,
    wrapped,
)
from reproduction.study_boxes import boxes, boxes_in_words
from reproduction.study_folder import (
    GROUP_LOOKS,
    Entry,
    Panel,
    Study,
    measure,
)

BARS = {
    "interval": "95% interval over seeds",
    "std": "\N{PLUS-MINUS SIGN} standard deviation over seeds",
}


def draw(study: Study) -> list[Drawn]:
    with drawing():
        figures = [
            {"sweep": sweep, "methods": dots, "boxes": boxes}[p.kind](study, p)
            for p in study.panels
        ]
        return [
            Drawn(
                f"{panel.kind}_{count}", panel.dataset, panel.title, panel.caption,
                _alternative(study, panel), as_png(figure), as_svg(figure),
            )
            for count, (panel, figure) in enumerate(zip(study.panels, figures, strict=True), 1)
        ]  # fmt: skip


def sweep(study: Study, panel: Panel) -> Figure:
    """A metric against a setting, whose values stand equally spaced; below it the second metric."""
    figure, axes = panels(
        len(panel.metrics), 1, 1.6 + 1.4 * len(panel.metrics), sharex=True,
        gridspec_kw={"height_ratios": [2, 1][: len(panel.metrics)]},
    )  # fmt: skip
    shown: set[str] = set()
    for axis, metric in zip(axes, panel.metrics, strict=True):
        shown |= _draw_entries(axis, study, panel, metric, upright=True)
        axis.set_ylabel(_aim(metric, "\n"))
        grid(axis, "y")
    axes[-1].set_xticks(range(len(panel.labels)), [short(label, 14) for label in panel.labels])
    axes[-1].set_xlim(-0.5, len(panel.labels) - 0.5)
    axes[-1].set_xlabel(short(panel.x_label, 60))
    _legend(figure, shown, lines=True, bars=panel.bars)
    return figure


def dots(study: Study, panel: Panel) -> Figure:
    """One row per method, the first given on top, one dot per group."""
    figure, (axis,) = panels(1, 1, 1.1 + 0.42 * len(panel.methods))
    shown = _draw_entries(axis, study, panel, panel.metric, upright=False)
    axis.set_yticks(
        range(len(panel.labels)), [wrapped(short(label, 60), 26) for label in panel.labels]
    )
    axis.set_ylim(len(panel.labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(_aim(panel.metric, " "))
    grid(axis, "x")
    for place in range(1, len(panel.labels)):
        axis.axhline(place - 0.5, color=INK, alpha=0.12, linewidth=0.6)
    entries = [e for g in GROUPS for e in _column(study, panel, g, panel.metric)]
    means = [entry.mean for entry in entries if math.isfinite(entry.mean)]
    # Where one method is far off, the others would melt into a line.
    if means and min(means) > 0 and max(means) > 20 * min(means):
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(f"{axis.get_xlabel()}, logarithmic")
    _legend(figure, shown, lines=False, bars=panel.bars)
    return figure


def half_bar(entry: Entry, bars: str) -> float:
    """Half an error bar: of the 95% interval over n seeds, t s / sqrt(n), or s itself."""
    if bars == "interval" or not entry.seeds > 1:
        return entry.ci95
    return entry.ci95 * math.sqrt(entry.seeds) / float(stats.t.ppf(0.975, entry.seeds - 1))


def _column(study: Study, panel: Panel, group: str, metric: str) -> list[Entry]:
    return [study.get(panel.dataset, group, method, metric) for method in panel.methods]


def _draw_entries(axis: Axes, study: Study, panel: Panel, metric: str, upright: bool) -> set[str]:
    """Means with their intervals, method after method; returns what the legend has to explain."""
    shown: set[str] = set()
    known = np.zeros(len(panel.methods), dtype=bool)
    for side, (group, look) in zip((-1, 1), GROUP_LOOKS.items(), strict=True):
        column = _column(study, panel, group, metric)
        # A little apart, so that one group does not hide the other.
        places = np.arange(len(column)) + side * (0.04 if upright else 0.15)
        means = np.array([entry.mean for entry in column])
        halves = np.array([half_bar(entry, panel.bars) for entry in column])
        means[~np.isfinite(means)] = halves[~np.isfinite(halves)] = np.nan
        known |= np.isfinite(means)
        if np.isfinite(means).any():
            shown |= {group, "interval"} if np.isfinite(halves).any() else {group}
            x, y = (places, means) if upright else (means, places)
            axis.errorbar(
                x, y, yerr=halves if upright else None, xerr=None if upright else halves,
                color=look.colour, marker=look.marker, markersize=5, capsize=3, elinewidth=1.2,
                linewidth=1.3, linestyle=look.dash if upright else "none", label=group,
            )  # fmt: skip
    for place in map(float, np.flatnonzero(~known)):
        axis.text(
            place if upright else 0.02, 0.08 if upright else place, "no value",
            transform=axis.get_xaxis_transform() if upright else axis.get_yaxis_transform(),
            ha="center" if upright else "left", va="center", fontsize=8, style="italic", alpha=0.75,
        )  # fmt: skip
    ideal = measure(metric).ideal
    if ideal is not None:
        (axis.axhline if upright else axis.axvline)(ideal, color=INK, alpha=0.45, linewidth=0.9)
    return shown


def _aim(metric: str, between: str) -> str:
    known = measure(metric)
    return short(known.title) + (f"{between}({known.goal})" if known.goal else "")


def _legend(figure: Figure, shown: set[str], lines: bool, bars: str) -> None:
    handles = [
        Line2D(
            [], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.3,
            linestyle=look.dash if lines else "none", label=GROUP_TITLES[group].lower(),
        )
        for group, look in GROUP_LOOKS.items()
        if group in shown
    ]  # fmt: skip
    if "interval" in shown:
        handles.append(
            Line2D(
                [], [], color=INK, linestyle="none", marker="|" if lines else "_", markersize=12,
                label=BARS[bars],
            )
        )  # fmt: skip
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.5
        )


def _alternative(study: Study, panel: Panel) -> str:
    if panel.kind == "boxes":
        return boxes_in_words(panel)
    parts = []
    for metric in panel.metrics:
        for group in study.groups(panel.dataset):
            column = zip(panel.labels, _column(study, panel, group, metric), strict=True)
            listed = ", ".join(
                f"{label}: {plus_minus(e.mean, half_bar(e, panel.bars))}" for label, e in column
            )
            what = f"{measure(metric).title} of {group} clients"
            parts.append(f"{what} by {panel.x_label or 'method'}: {listed}.")
    return " ".join(parts)
