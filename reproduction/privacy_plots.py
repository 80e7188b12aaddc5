"""The privacy study's figures (a metric against epsilon, one curve for each mode), and its page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter

from pacpfl import files
from pacpfl.report.measures import plus_minus
from pacpfl.report.page import Drawn
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, INK, Look, as_png, as_svg, drawing, grid, panels, wrapped
from reproduction.study_folder import Study, measure, read_study
from reproduction.study_plots import draw
from reproduction.study_tables import markdown, render

MODE_LOOKS = {
    "gaussian": Look(COLOURS[0], "o", "-"),
    "laplace": Look(COLOURS[2], "^", "-."),
    "paper": Look(COLOURS[1], "s", "--"),
}
LINES = {"none": "-", "alone": ":"}


def write_privacy_study(folder: Path) -> Path:
    """`figures/*`, `README.md` and `report.html`, as for every study, with the curves."""
    study = read_study(folder)
    drawn = [*draw_curves(study), *draw(study)]
    page, text = render(study, drawn), markdown(study, drawn)
    for figure in drawn:
        files.write(folder / "figures" / f"{figure.name}.png", figure.png)
        files.write(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
    files.write(folder / "README.md", text.encode())
    files.write(folder / "report.html", page.encode())
    return folder / "report.html"


def draw_curves(study: Study) -> list[Drawn]:
    with drawing():
        return [
            Drawn(
                *(f"epsilon_{curve['dataset']}", curve["dataset"], curve["title"]),
                *(curve["caption"], in_words(study, curve)),
                *(as_png(figure := against_epsilon(study, curve)), as_svg(figure)),
            )
            for curve in study.record.get("curves", [])
            if any(mode["points"] for mode in curve["modes"].values())
        ]


def against_epsilon(study: Study, curve: dict[str, Any]) -> Figure:
    """One panel for each group of clients; epsilon on a logarithmic axis."""
    groups = study.groups(curve["dataset"])
    figure, axes = panels(1, len(groups), 3.6, sharey=True)
    for axis, group in zip(axes, groups, strict=True):
        _draw_group(axis, study, curve, group)
        axis.set_title(GROUP_TITLES[group])
        grid(axis, "y")
    known = measure(curve["metric"])
    axes[0].set_ylabel(f"{known.title}\n({known.goal})")
    figure.supxlabel(wrapped(curve["x_label"], 90), fontsize=9.0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, handlelength=2.8)
    return figure


def _draw_group(axis: Axes, study: Study, curve: dict[str, Any], group: str) -> None:
    dataset, metric = curve["dataset"], curve["metric"]
    every = sorted({float(e) for mode in curve["modes"].values() for e, _ in mode["points"]})
    count = len(curve["modes"])
    for place, (mode, told) in enumerate(curve["modes"].items()):
        look = MODE_LOOKS[mode]
        entries = [study.get(dataset, group, row, metric) for _, row in told["points"]]
        # A little apart, so that no bar hides another.
        shift = 1.04 ** (place - (count - 1) / 2)
        axis.errorbar(
            shift * np.array([float(e) for e, _ in told["points"]]),
            [entry.mean for entry in entries],
            yerr=[entry.ci95 if math.isfinite(entry.ci95) else 0.0 for entry in entries],
            color=look.colour, marker=look.marker, linestyle=look.dash, markersize=5,
            capsize=3, elinewidth=1.2, linewidth=1.3, label=told["title"],
        )  # fmt: skip
    for name, title in curve["lines"].items():
        entry = study.get(dataset, group, name, metric)
        if math.isfinite(entry.mean):
            axis.axhline(entry.mean, color=INK, linestyle=LINES[name], linewidth=1.1, label=title)
        if math.isfinite(entry.ci95):
            ends = entry.mean - entry.ci95, entry.mean + entry.ci95
            axis.axhspan(*ends, color=INK, alpha=0.08, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(every))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()


def in_words(study: Study, curve: dict[str, Any]) -> str:
    """For those who cannot see the figure."""
    dataset, metric = curve["dataset"], curve["metric"]
    parts = []
    for group in study.groups(dataset):
        for told in curve["modes"].values():
            listed = []
            for epsilon, row in told["points"]:
                entry = study.get(dataset, group, row, metric)
                listed.append(f"{float(epsilon):g}: {plus_minus(entry.mean, entry.ci95)}")
            if listed:
                parts.append(f"{group} clients, {told['title']}, by epsilon: {', '.join(listed)}.")
        for name, title in curve["lines"].items():
            entry = study.get(dataset, group, name, metric)
            parts.append(f"{group} clients, {title}: {plus_minus(entry.mean, entry.ci95)}.")
    return f"{measure(metric).title} against {curve['x_label']}. " + " ".join(parts)
