"""The section of the page about guarantees: a figure, the verdicts, and what they rest on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacpfl.errors import InputError
from pacpfl.report import sentences
from pacpfl.report.figures import thinned
from pacpfl.report.folder import Run
from pacpfl.report.gallery import Exhibit
from pacpfl.report.measures import number
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, INK, grid, panels

CLIENTS_DRAWN = 120
BOUND, TEST = COLOURS[0], COLOURS[1]


def read_certificates(folder: Path, run: Run) -> dict[str, Any] | None:
    """Read certificates.json; None where there is none, or one of an earlier run in this folder."""
    path = folder / "certificates.json"
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        current = bool(document["finished"] == run.record.get("finished") and document["clients"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); delete it, or certify the run again."
        ) from error
    return document if current else None


def certificate_exhibits(document: dict[str, Any] | None) -> Iterator[Exhibit]:
    if document is None:
        return
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
    caption = (
        "One column per client, sorted by its bound. The ring is the average loss on the client's "
        "own samples, the bar is what is guaranteed for all samples to come, and the cross is the "
        "average loss on test samples: a cross above its bar would be a broken promise. A bar at the "
        "dashed line, the largest possible loss, guarantees nothing."
    )
    if len(document["clients"]) > CLIENTS_DRAWN:
        caption += f" At most {CLIENTS_DRAWN} clients of each group are drawn."
    yield Exhibit(
        "certificates", "certificates", "Promised and measured risk", caption,
        "Empirical risk, bound and test risk of each client. " + " ".join(parts), figure(document),
    )  # fmt: skip


def figure(document: dict[str, Any]) -> Figure:
    """Draw empirical risk, bound and test risk client by client, a panel for each group."""
    groups = list(document["groups"])
    drawing, axes = panels(len(groups), 1, 2.3 * len(groups) + 0.6, sharey=True)
    a, b = document["loss"]["a"], document["loss"]["b"]
    tested = False
    for axis, group in zip(axes, groups, strict=True):
        rows = [row for row in document["clients"] if row["group"] == group]
        rows.sort(key=lambda row: row["bound"])
        rows = [rows[index] for index in thinned(len(rows), CLIENTS_DRAWN)]
        _draw_group(axis, rows, b)
        tested = tested or any(row["test_risk"] is not None for row in rows)
        axis.set_title(GROUP_TITLES[group])
        axis.set_ylabel("loss")
    low = min(row["empirical_risk"] for row in document["clients"])
    low = min([low, *(r["test_risk"] for r in document["clients"] if r["test_risk"] is not None)])
    axes[0].set_ylim(max(a, low) - 0.06 * (b - low), b + 0.1 * (b - low))
    axes[-1].set_xlabel("clients, sorted by bound")
    handles = [
        Line2D([], [], color=BOUND, linewidth=2.4, label="bound"),
        Line2D([], [], color=INK, marker="o", markersize=3.5, markerfacecolor="none",
               markeredgewidth=0.8, linestyle="none", label="on its own samples"),
    ]  # fmt: skip
    if tested:
        handles.append(
            Line2D([], [], color=TEST, marker="x", markersize=4.5, linestyle="none",
                   label="on test samples")
        )  # fmt: skip
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle="--", label="largest loss"))
    drawing.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=2)
    return drawing


def _draw_group(axis: Axes, rows: list[dict[str, Any]], largest: float) -> None:
    place = np.arange(len(rows))
    own = np.array([row["empirical_risk"] for row in rows])
    bound = np.minimum([row["bound"] for row in rows], largest)
    axis.axhline(largest, color=INK, linewidth=0.9, linestyle="--", alpha=0.7)
    axis.vlines(place, own, bound, color=BOUND, linewidth=0.8, alpha=0.45)
    axis.hlines(bound, place - 0.38, place + 0.38, color=BOUND, linewidth=2.4)
    axis.plot(
        place, own, linestyle="none", marker="o", markersize=3.5, markerfacecolor="none",
        markeredgecolor=INK, markeredgewidth=0.8,
    )  # fmt: skip
    shown = [(x, row["test_risk"]) for x, row in enumerate(rows) if row["test_risk"] is not None]
    if shown:
        axis.plot(
            *zip(*shown, strict=True), linestyle="none", marker="x", markersize=4.5, color=TEST
        )
    axis.set_xticks([])
    axis.set_xlim(-0.8, len(rows) - 0.2)
    grid(axis, "y")


def page_part(document: dict[str, Any] | None) -> Markup:
    """Render the words and tables above the figure; everything that comes from the run is escaped."""
    if document is None:
        return Markup()
    titles = [
        "own risk",
        "bound",
        "in use",
        "test risk",
        "below b",
        "proved",
        "helped by the federation",
    ]
    rows = []
    for group, facts in document["groups"].items():
        counts = [f"{facts[key]} of {facts['clients']}" for key in ("below", "proved", "helped")]
        values = ("empirical_risk", "bound", "bound_in_use", "test_risk")
        rows.append((GROUP_TITLES[group], [*(number(facts[v]) for v in values), *counts]))
    loss = document["loss"]
    template = files("pacpfl.report").joinpath("certificates.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return Markup(
        environment.from_string(template).render(
            sentences=sentences.certificates(document),
            loss=f"{loss['name']}, b = {loss['b']:g}",
            delta=f"{document['delta']:g}",
            titles=titles,
            rows=rows,
            conditions=sentences.conditions(document),
        )
    )
