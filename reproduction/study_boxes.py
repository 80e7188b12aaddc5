"""Box plots over clients: one row per method, one box per group, metrics side by side."""

from __future__ import annotations

import math
import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pacpfl.report.measures import number
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import INK, grid, panels, short, wrapped
from reproduction.study_folder import GROUP_LOOKS, Box, Panel, Study, measure

FAR = 3.0  # an axis ends at so many times the middle one of the boxes' upper edges


def boxes(study: Study, panel: Panel) -> Figure:
    """The first method given stands on top."""
    figure, axes = panels(1, len(panel.metrics), 1.3 + 0.45 * len(panel.methods), sharey=True)
    for axis, metric in zip(axes, panel.metrics, strict=True):
        _draw(axis, panel, metric)
    axes[0].set_yticks(
        range(len(panel.labels)), [wrapped(short(label, 60), 18) for label in panel.labels]
    )
    axes[0].set_ylim(len(panel.labels) - 0.5, -0.5)
    shown = [group for group in GROUP_LOOKS if group in panel.boxes[panel.metric]]
    figure.legend(
        handles=[
            Patch(facecolor=GROUP_LOOKS[group].colour, alpha=0.6, label=GROUP_TITLES[group].lower())
            for group in shown
        ],
        loc="outside lower center",
        ncols=len(shown),
    )
    return figure


def _draw(axis: Axes, panel: Panel, metric: str) -> None:
    found = panel.boxes[metric]
    limit = far_limit([box for each in found.values() for box in each if box is not None])
    for side, group in zip((-1, 1), GROUP_LOOKS, strict=True):
        colour = GROUP_LOOKS[group].colour
        for place, box in enumerate(found.get(group, [])):
            if box is None:
                continue
            beyond = sum(value > limit for value in box.outliers)
            if box.q1 > limit:
                _tell(axis, f"median {number(box.median)}", place + 0.2 * side, colour)
                continue
            _draw_box(axis, box, place + 0.2 * side, colour)
            if beyond and box.high <= limit:
                _tell(axis, f"{beyond} beyond", place + 0.2 * side, colour)
    if math.isfinite(limit):
        axis.set_xlim(right=limit)
    known = measure(metric)
    axis.set_xlabel(f"{short(known.title)} ({known.goal})" if known.goal else short(known.title))
    axis.tick_params(axis="y", length=0)
    grid(axis, "x")


def _draw_box(axis: Axes, box: Box, place: float, colour: str) -> None:
    numbers = {
        "whislo": box.low, "q1": box.q1, "med": box.median, "q3": box.q3, "whishi": box.high,
        "fliers": box.outliers,
    }  # fmt: skip
    axis.bxp(
        [numbers],
        positions=[place],
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


def _tell(axis: Axes, words: str, place: float, colour: str) -> None:
    """Right of the axis, where no dot is in the way: what does not fit."""
    axis.text(
        1.01, place, f"\N{RIGHTWARDS ARROW} {words}", transform=axis.get_yaxis_transform(),
        ha="left", va="center", color=colour, fontsize=7,
    )  # fmt: skip


def far_limit(found: list[Box]) -> float:
    """Where an axis ends, so that a method that is far off does not press the others into a line;
    infinity where none is."""
    limit = FAR * statistics.median(box.q3 for box in found) if found else math.inf
    largest = max((value for box in found for value in (box.high, *box.outliers)), default=0.0)
    return limit if 0 < limit < largest else math.inf


def boxes_in_words(panel: Panel) -> str:
    """The medians, for those who cannot see the boxes."""
    parts = []
    for metric in panel.metrics:
        for group, found in panel.boxes[metric].items():
            listed = ", ".join(
                f"{label}: {number(box.median if box else math.nan)}"
                for label, box in zip(panel.labels, found, strict=True)
            )
            parts.append(f"Median {measure(metric).title} of {group} clients: {listed}.")
    return " ".join(parts)
