"""Figures of a study: each kind of `[[panels]]` in its file is drawn by a function here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter

from pacpfl.report.folder import GROUPS
from pacpfl.report.measures import number, plus_minus
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import (
    COLOURS,
    INK,
    Drawn,
    Look,
    as_png,
    as_svg,
    drawing,
    grid,
    logarithmic,
    panels,
    short,
    wrapped,
)
from reproduction.sentences import verdict
from reproduction.table import Entry, Table, measure

GROUP_LOOKS = {"existing": Look(COLOURS[0], "o", "-"), "new": Look(COLOURS[1], "s", "--")}
MODE_LOOKS = {
    "gaussian": Look(COLOURS[0], "o", "-"),
    "laplace": Look(COLOURS[2], "^", "-."),
    "paper": Look(COLOURS[1], "s", "--"),
}
LINES = {"none": "-", "alone": ":"}
BARS = {
    "interval": "95% interval over seeds",
    "std": "\N{PLUS-MINUS SIGN} standard deviation over seeds",
}
FAR = 3.0  # an axis of boxes ends at so many times the middle one of their upper edges


@dataclass(frozen=True)
class Panel:
    """What one figure compares: `rows`, each with the label it has on the axis."""

    kind: str
    name: str
    title: str
    dataset: str
    metrics: Sequence[str]
    caption: str
    rows: Sequence[str]
    labels: Sequence[str]
    x_label: str = ""
    bars: str = "interval"  # or `std`, over seeds
    modes: Mapping[str, str] | None = None  # of curves: title of each mode
    lines: Mapping[str, str] | None = None


def draw(table: Table) -> list[Drawn]:
    """Return all figures of the study for which there are numbers."""
    kinds = {"sweep": sweep, "methods": dots, "boxes": boxes, "curves": curves}
    drawn = []
    with drawing():
        for panel in planned(table):
            figure = kinds[panel.kind](table, panel)
            drawn.append(
                Drawn(
                    *(
                        panel.name,
                        panel.dataset,
                        panel.title,
                        panel.caption,
                        in_words(table, panel),
                    ),
                    *(as_png(figure), as_svg(figure)),
                )
            )
    return drawn


def planned(table: Table) -> Iterator[Panel]:
    """Yield the panels of the study's file, on each data set or on the one that it names."""
    count = 0
    for dataset, title in table.datasets.items():
        for told in table.study.panels:
            if told.get("dataset", dataset) != dataset:
                continue
            points = told.get("points") or [
                (table.rows[row], row) for row in told.get("rows", table.rows) if row in table.rows
            ]
            points = [(label, row) for label, row in points if table.has(dataset, row)]
            if told["kind"] == "curves":
                points = [(label, row) for label, row in points if table.study.rows[row].columns[1]]
            if len(points) < (2 if told["kind"] == "sweep" else 1):
                continue
            count += 1
            caption = told["caption"].format(verdict=verdict(table, dataset, told))
            yield Panel(
                told["kind"],
                told.get("name", f"{told['kind']}_{count}"),
                told["title"].format(title=title),
                dataset,
                told["metrics"],
                caption,
                [row for _, row in points],
                [str(label) for label, _ in points],
                **{k: told[k] for k in ("x_label", "bars", "modes", "lines") if k in told},
            )


def half_bar(entry: Entry, bars: str) -> float:
    """Return half an error bar: of the 95% interval over seeds, or their standard deviation."""
    return entry.std if bars == "std" else entry.ci95


# -------------------------------------------------------------------------------- means over seeds


def sweep(table: Table, panel: Panel) -> Figure:
    """Draw a measure against a setting, whose values stand equally spaced; below it the second one."""
    figure, axes = panels(
        len(panel.metrics), 1, 1.6 + 1.4 * len(panel.metrics), sharex=True,
        gridspec_kw={"height_ratios": [2, 1][: len(panel.metrics)]},
    )  # fmt: skip
    shown: set[str] = set()
    for axis, metric in zip(axes, panel.metrics, strict=True):
        shown |= _draw_entries(axis, table, panel, metric, upright=True)
        axis.set_ylabel(_aim(metric, "\n"))
        grid(axis, "y")
    axes[-1].set_xticks(range(len(panel.labels)), [short(label, 14) for label in panel.labels])
    axes[-1].set_xlim(-0.5, len(panel.labels) - 0.5)
    axes[-1].set_xlabel(short(panel.x_label, 60))
    _legend(figure, shown, lines=True, bars=panel.bars)
    return figure


def dots(table: Table, panel: Panel) -> Figure:
    """Draw one line per row, the first given on top, with one dot per group."""
    figure, (axis,) = panels(1, 1, 1.1 + 0.42 * len(panel.rows))
    (metric,) = panel.metrics
    shown = _draw_entries(axis, table, panel, metric, upright=False)
    _name_lines(axis, panel, 26)
    axis.set_xlabel(_aim(metric, " "))
    for place in range(1, len(panel.labels)):
        axis.axhline(place - 0.5, color=INK, alpha=0.12, linewidth=0.6)
    entries = [table.get(panel.dataset, g, row, metric) for g in GROUPS for row in panel.rows]
    means = [entry.mean for entry in entries if math.isfinite(entry.mean)]
    # Where one method is far off, the others would melt into a line.
    if means and min(means) > 0 and max(means) > 20 * min(means):
        logarithmic(axis)
    _legend(figure, shown, lines=False, bars=panel.bars)
    return figure


def _name_lines(axis: Axes, panel: Panel, width: int) -> None:
    labels = [wrapped(short(label, 60), width) for label in panel.labels]
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    grid(axis, "x")


def _draw_entries(axis: Axes, table: Table, panel: Panel, metric: str, upright: bool) -> set[str]:
    """Draw means with their intervals, and return what the legend has to explain."""
    shown: set[str] = set()
    known = np.zeros(len(panel.rows), dtype=bool)
    for side, (group, look) in zip((-1, 1), GROUP_LOOKS.items(), strict=True):
        column = [table.get(panel.dataset, group, row, metric) for row in panel.rows]
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
        mark = {"marker": "|" if lines else "_", "markersize": 12, "linestyle": "none"}
        handles.append(Line2D([], [], color=INK, label=BARS[bars], **mark))  # type: ignore[arg-type]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.5
        )


# ------------------------------------------------------------------------------ client by client


def boxes(table: Table, panel: Panel) -> Figure:
    """Draw the clients of all seeds: one line per row, one box per group, measures side by side."""
    figure, axes = panels(1, len(panel.metrics), 1.3 + 0.45 * len(panel.rows), sharey=True)
    for axis, metric in zip(axes, panel.metrics, strict=True):
        _draw_boxes(axis, table, panel, metric)
    _name_lines(axes[0], panel, 18)
    for axis in axes:
        axis.tick_params(axis="y", length=0)
        grid(axis, "x")
    handles = [
        Patch(facecolor=GROUP_LOOKS[group].colour, alpha=0.6, label=GROUP_TITLES[group].lower())
        for group in table.groups(panel.dataset)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def box(values: Sequence[float]) -> dict[str, Any] | None:
    """Return quartiles, whiskers to the last value within 1.5 times their distance, and the rest."""
    known = np.sort([value for value in values if math.isfinite(value)])
    if not len(known):
        return None
    q1, median, q3 = np.percentile(known, (25, 50, 75))
    reach = 1.5 * (q3 - q1)
    inside = known[(known >= q1 - reach) & (known <= q3 + reach)]
    low, high = min(inside[0], q1), max(inside[-1], q3)  # quartiles may lie between two values
    outside = known[(known < low) | (known > high)]
    return {
        "whislo": low, "q1": q1, "med": median, "q3": q3, "whishi": high, "fliers": outside,
    }  # fmt: skip


def clients(table: Table, dataset: str, group: str, row: str, metric: str) -> list[float]:
    """Return a measure of every client, those of all seeds together."""
    return [
        value
        for outcome in table.outcomes
        if (outcome.dataset, outcome.name) == (dataset, row)
        for value in outcome.clients.get(group, {}).get(metric, ())
    ]


def _draw_boxes(axis: Axes, table: Table, panel: Panel, metric: str) -> None:
    found = {
        (group, place): box(clients(table, panel.dataset, group, row, metric))
        for group in GROUP_LOOKS
        for place, row in enumerate(panel.rows)
    }
    limit = far_limit([one for one in found.values() if one is not None])
    for (group, place), one in found.items():
        if one is None:
            continue
        colour, height = GROUP_LOOKS[group].colour, place + (-0.2 if group == "existing" else 0.2)
        beyond = int(np.sum(one["fliers"] > limit))
        if one["q1"] > limit:
            _tell(axis, f"median {number(one['med'])}", height, colour)
            continue
        _draw_box(axis, one, height, colour)
        if beyond and one["whishi"] <= limit:
            _tell(axis, f"{beyond} beyond", height, colour)
    if math.isfinite(limit):
        axis.set_xlim(right=limit)
    axis.set_xlabel(_aim(metric, " "))


def _draw_box(axis: Axes, one: Mapping[str, Any], height: float, colour: str) -> None:
    axis.bxp(
        [dict(one)],
        positions=[height],
        widths=0.3,
        orientation="horizontal",
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": colour, "alpha": 0.6, "edgecolor": INK, "linewidth": 0.7},
        medianprops={"color": INK, "linewidth": 1.4},
        whiskerprops={"color": colour},
        capprops={"color": colour},
        flierprops={"marker": ".", "markersize": 3.5, "markeredgecolor": colour, "alpha": 0.7},
    )


def _tell(axis: Axes, words: str, height: float, colour: str) -> None:
    """Write what does not fit right of the axis, where no dot is in the way."""
    axis.text(
        1.01, height, f"\N{RIGHTWARDS ARROW} {words}", transform=axis.get_yaxis_transform(),
        ha="left", va="center", color=colour, fontsize=7,
    )  # fmt: skip


def far_limit(found: Sequence[Mapping[str, Any]]) -> float:
    """Return where an axis ends, so that a method that is far off does not press the others into a
    line; infinity where none is."""
    limit = FAR * statistics.median(one["q3"] for one in found) if found else math.inf
    largest = max((v for one in found for v in (one["whishi"], *one["fliers"])), default=0.0)
    return limit if 0 < limit < largest else math.inf


# ------------------------------------------------------------------------------- against epsilon


def curves(table: Table, panel: Panel) -> Figure:
    """Draw a measure against epsilon, one curve for each mode, in one panel for each group."""
    groups = table.groups(panel.dataset)
    figure, axes = panels(1, len(groups), 3.6, sharey=True)
    for axis, group in zip(axes, groups, strict=True):
        _draw_curves(axis, table, panel, group)
        axis.set_title(GROUP_TITLES[group])
        grid(axis, "y")
    axes[0].set_ylabel(_aim(panel.metrics[0], "\n"))
    figure.supxlabel(wrapped(panel.x_label, 90), fontsize=9.0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, handlelength=2.8)
    return figure


def points(table: Table, panel: Panel, mode: str) -> list[tuple[float, str]]:
    """Return (epsilon, row) of what was run in this mode."""
    known = table.study.rows
    return [
        (float(known[row].columns[1]), row) for row in panel.rows if known[row].columns[0] == mode
    ]


def _draw_curves(axis: Axes, table: Table, panel: Panel, group: str) -> None:
    (metric,), modes = panel.metrics, panel.modes or {}
    every: set[float] = set()
    for place, (mode, title) in enumerate(modes.items()):
        found, look = points(table, panel, mode), MODE_LOOKS[mode]
        if not found:
            continue
        every |= {epsilon for epsilon, _ in found}
        entries = [table.get(panel.dataset, group, row, metric) for _, row in found]
        shift = 1.04 ** (place - (len(modes) - 1) / 2)  # apart, so that no bar hides another
        axis.errorbar(
            shift * np.array([epsilon for epsilon, _ in found]),
            [entry.mean for entry in entries],
            yerr=[entry.ci95 if math.isfinite(entry.ci95) else 0.0 for entry in entries],
            color=look.colour, marker=look.marker, linestyle=look.dash, markersize=5,
            capsize=3, elinewidth=1.2, linewidth=1.3, label=title,
        )  # fmt: skip
    for name, title in (panel.lines or {}).items():
        entry = table.get(panel.dataset, group, name, metric)
        if math.isfinite(entry.mean):
            axis.axhline(entry.mean, color=INK, linestyle=LINES[name], linewidth=1.1, label=title)
        if math.isfinite(entry.ci95):
            ends = entry.mean - entry.ci95, entry.mean + entry.ci95
            axis.axhspan(*ends, color=INK, alpha=0.08, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted(every)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()


# -------------------------------------------------------------------------------------- in words


def in_words(table: Table, panel: Panel) -> str:
    """Return the numbers of a figure, for those who cannot see it."""
    parts = []
    for metric in panel.metrics:
        for group in table.groups(panel.dataset):
            what = f"{measure(metric).title} of {group} clients"
            if panel.kind == "boxes":
                listed = [
                    (label, number(one["med"] if one else math.nan))
                    for label, row in zip(panel.labels, panel.rows, strict=True)
                    for one in [box(clients(table, panel.dataset, group, row, metric))]
                ]
                parts.append(_listed(f"Median {what}", listed))
                continue
            every = {
                f"by {panel.x_label or 'method'}": list(zip(panel.labels, panel.rows, strict=True))
            }
            if panel.kind == "curves":
                every = {
                    f"{title}, by epsilon": [
                        (f"{epsilon:g}", row) for epsilon, row in points(table, panel, mode)
                    ]
                    for mode, title in (panel.modes or {}).items()
                }
                every["lines"] = [(title, row) for row, title in (panel.lines or {}).items()]
            for title, rows in every.items():
                entries = [
                    (label, table.get(panel.dataset, group, row, metric)) for label, row in rows
                ]
                listed = [
                    (label, plus_minus(e.mean, half_bar(e, panel.bars))) for label, e in entries
                ]
                parts.append(_listed(f"{what}, {title}", listed) if listed else "")
    return " ".join(filter(None, parts))


def _listed(what: str, values: Sequence[tuple[str, str]]) -> str:
    return f"{what}: {', '.join(f'{label}: {value}' for label, value in values)}."
