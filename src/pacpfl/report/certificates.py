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
from pacpfl.report.exhibits import Exhibit
from pacpfl.report.figures import GROUP_TITLES, thinned
from pacpfl.report.folder import Run
from pacpfl.report.measures import number
from pacpfl.report.style import COLOURS, INK, grid, panels

CLIENTS_DRAWN = 120
BOUND, TEST = COLOURS[0], COLOURS[1]


def read_certificates(folder: Path, run: Run) -> dict[str, Any] | None:
    """certificates.json, or None where there is none, or one of an earlier run in this folder."""
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
        "own samples, the bar is what is guaranteed for all samples to come, the cross is what the "
        "test samples show. A cross above its bar would be a broken promise. Bars on the dashed "
        "line, the largest value of the loss, say nothing."
    )
    if len(document["clients"]) > CLIENTS_DRAWN:
        caption += f" At most {CLIENTS_DRAWN} clients of each group are drawn."
    yield Exhibit(
        "certificates", "certificates", "Promised and measured risk", caption,
        "Empirical risk, bound and test risk of each client. " + " ".join(parts), figure(document),
    )  # fmt: skip


def figure(document: dict[str, Any]) -> Figure:
    """A panel for each group: empirical risk, bound and test risk, client by client."""
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
    """The words and tables above the figure. Everything that comes from the run is escaped."""
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
            sentences=sentences(document),
            loss=f"{loss['name']}, b = {loss['b']:g}",
            delta=f"{document['delta']:g}",
            titles=titles,
            rows=rows,
            conditions=conditions(document),
        )
    )


def sentences(document: dict[str, Any]) -> list[str]:
    """What is guaranteed to whom, in words."""
    found = []
    b = document["loss"]["b"]
    for group, facts in document["groups"].items():
        text = (
            f"{facts['below']} of {facts['clients']} {group} clients have a bound below {b:g}, the "
            f"largest value of the loss; the median bound is {number(facts['bound'])}. "
        )
        if facts["proved"] == facts["clients"]:
            text += "Every premise of these certificates that can be checked holds."
        elif facts["proved"] == 0:
            text += (
                "They rest on a premise that is not proved. They would stay below "
                f"{b:g} for any training that is epsilon-DP towards a whole client with epsilon "
                f"up to {facts['tolerated_epsilon']:.3g} (median)."
            )
        else:
            text += f"Of these certificates {facts['proved']} are proved."
        if facts["tested"]:
            text += (
                f" Against test samples {facts['covered']} of {facts['tested']} bounds hold; at "
                f"least {100 * (1 - document['delta']):g}% of them should."
            )
        if facts.get("networks_test_risk") is not None:
            text += (
                " The networks in use are not what is certified: drawn from a client's mixture, one "
                f"has a median test risk of {number(facts['networks_test_risk'])}."
            )
        found.append(text)
    found += [document["federation"]["verdict"], document["newcomers"]["verdict"]]
    return found


def conditions(document: dict[str, Any]) -> list[dict[str, str]]:
    """Each condition once, with whom it concerns and, where it differs, for how many of them.

    Where reasons differ from client to client, that of the first client is given.
    """
    named = [(GROUP_TITLES[row["group"]], row) for row in document["clients"]]
    named += [
        ("Federation", document["federation"]),
        ("Clients yet to come", document["newcomers"]),
    ]
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for who, row in named:
        for condition in (*row["conditions"], *filter(None, [row.get("participation")])):
            statuses = reasons.setdefault((who, condition["name"]), {})
            first = f"{row['subject']}: {condition['reason']}"
            found = statuses.setdefault(condition["status"], [first])
            found.append(condition["reason"])
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (who, name), statuses in reasons.items():
        total = sum(len(found) - 1 for found in statuses.values())
        for status, (first, *found) in statuses.items():
            share = f" for {len(found)} of {total}" if len(found) < total else ""
            reason = found[0] if len(set(found)) == 1 else first
            merged.setdefault((name, status + share, reason), []).append(who)
    return [
        {"who": ", ".join(who), "name": name, "status": status, "reason": reason}
        for (name, status, reason), who in merged.items()
    ]
