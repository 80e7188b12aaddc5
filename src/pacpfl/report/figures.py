"""Figures of what methods predict: box plots, calibration, bands, single samples, certificates.

Each function takes a run and returns a figure, or nothing where the run holds nothing to draw.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pacpfl.folder import thinned
from pacpfl.report.folder import Facts, Run
from pacpfl.report.measures import ACCURACY, BOXED, CE, CLASS_BOXED, RSMSE, Measure
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import (
    COLOURS,
    INK,
    WIDTH,
    Look,
    grid,
    key,
    legend,
    logarithmic,
    looks,
    mark,
    panels,
    short,
    wrapped,
)

DOTS = 150  # clients drawn as dots per box; more would only blacken the figure
DRAWN_CLIENTS = 4  # of a group: the best, the worst, and two between
SAMPLES_IN_A_ROW = 100  # with several features: test samples against their index
LEAST_IN_A_BIN = 20  # fewer samples say nothing about how often an answer is right
SHOWN_CLASSES = 3  # of a sample, the likeliest
KINDS = ("right and confident", "right but in doubt", "wrong")  # of examples, by number
LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SHADES = ((0, 5, 0.17), (1, 4, 0.2), (2, 3, 0.36))  # of bands: two quantiles, and how opaque
CERTIFIED = 120  # clients of a group whose certificates are drawn
RING: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.6}
OWN_RISK = RING | {"markersize": 3.5, "markeredgewidth": 0.8}


def finite(run: Run, method: str, group: str, measure: Measure) -> np.ndarray:
    """Return what the clients of a group scored with a method, without values nobody can draw."""
    values: np.ndarray = run.rows(method, group)[measure.key].to_numpy(dtype=float)
    return values[np.isfinite(values)]


def boxed(run: Run) -> tuple[Measure, ...]:
    """Return the measures that every client has a value of, and that are worth a box."""
    return CLASS_BOXED if run.classification else BOXED


def boxes(run: Run) -> Figure | None:
    """Draw one row per measure, one column per group, one box per method, one dot per client."""
    measures = [m for m in boxed(run) if np.isfinite(run.clients[m.key]).any()]
    if not measures:
        return None
    height = len(measures) * (0.75 + 0.34 * len(run.titles)) + 0.3
    figure, axes = panels(len(measures), len(run.groups), height, sharex="row", sharey=True)
    styles = looks(run.titles)
    for row, measure in enumerate(measures):
        line = axes[row * len(run.groups) : (row + 1) * len(run.groups)]
        for axis, group in zip(line, run.groups, strict=True):
            columns = [run.rows(m, group)[measure.key].to_numpy(dtype=float) for m in run.titles]
            _draw_boxes(axis, columns, styles)
            if row == 0:
                axis.set_title(GROUP_TITLES[group])
            axis.set_xlabel(f"{measure.title} ({measure.goal})")
        line[0].set_yticks(
            range(len(run.titles)), [wrapped(short(title, 40), 18) for title in run.titles.values()]
        )
        line[0].set_ylim(len(run.titles) - 0.45, -0.55)
        _choose_scale(line, run, measure)
    return figure


def _draw_boxes(axis: Axes, columns: list[np.ndarray], styles: dict[str, Look]) -> None:
    for position, (column, look) in enumerate(zip(columns, styles.values(), strict=True)):
        values = column[np.isfinite(column)]
        if not values.size:
            words = "not measured" if np.isnan(column).all() else "not finite"
            axis.text(
                0.02, position, words, transform=axis.get_yaxis_transform(),
                va="center", fontsize=8, style="italic", alpha=0.75,
            )  # fmt: skip
            continue
        dots = values[thinned(len(values), DOTS)]
        # Neighbours in value get different heights, the same in every drawing: no randomness.
        order = np.argsort(np.argsort(dots, kind="stable"), kind="stable")
        heights = position + 0.26 * (2 * ((order * 0.618034) % 1) - 1)
        axis.plot(
            dots, heights, linestyle="none", marker=look.marker, markersize=3,
            color=look.colour, alpha=0.35, markeredgewidth=0,
        )  # fmt: skip
        axis.boxplot(
            [values], positions=[position], widths=0.6, orientation="horizontal",
            showfliers=False, patch_artist=True, manage_ticks=False,
            boxprops={"facecolor": to_rgba(look.colour, 0.18), "edgecolor": look.colour},
            whiskerprops={"color": look.colour}, capprops={"color": look.colour},
            medianprops={"color": INK, "linewidth": 1.8, "solid_capstyle": "butt"},
        )  # fmt: skip
    grid(axis, "x")
    axis.tick_params(axis="y", length=0)


def _choose_scale(line: Sequence[Axes], run: Run, measure: Measure) -> None:
    """Take a logarithmic axis where one method is so far off that the others would melt into a line."""
    columns = [finite(run, m, g, measure) for m in run.titles for g in run.groups]
    columns = [values for values in columns if values.size]
    if measure in (CE, ACCURACY):  # never above one: there is nothing to compress
        for axis in line if measure is CE else ():
            axis.set_xlim(left=0)
        return
    values = np.concatenate(columns)
    # The symmetric axis below is straight up to one: below that there is nothing to compress.
    smallest = min(np.median(np.abs(column)) for column in columns)
    if values.max() <= 20 * max(smallest, 0.0 if measure is RSMSE else 1.0):
        return
    for axis in line:
        logarithmic(axis, symmetric=measure is not RSMSE or values.min() <= 0)


def calibration(run: Run) -> Figure | None:
    """Draw observed frequency against level: mean over clients, and the middle half of them."""
    levels = run.arrays.get("calibration/levels", np.zeros(0))

    def curves(values: np.ndarray) -> np.ndarray:
        return values[np.isfinite(values).all(axis=1)] if len(levels) else np.zeros(0)

    def draw(axis: Axes, values: np.ndarray, look: Look) -> None:
        low, high = np.quantile(values, [0.25, 0.75], axis=0)
        axis.fill_between(levels, low, high, color=look.colour, alpha=0.14, linewidth=0)
        axis.plot(
            levels, values.mean(axis=0), color=look.colour, linestyle=look.dash,
            marker=look.marker, markersize=3.2, markevery=3, linewidth=1.5,
        )  # fmt: skip

    return _by_the_diagonal(run, curves, draw, "level promised", "frequency observed")


def reliability(run: Run) -> Figure | None:
    """Draw how often answers are right against their confidence, all clients of a group together."""

    def draw(axis: Axes, tables: np.ndarray, look: Look) -> None:
        table = tables.sum(axis=0)
        samples, right, sure = table[table[:, 0] >= LEAST_IN_A_BIN].T
        x, y, share = sure / samples, right / samples, samples / table[:, 0].sum()
        axis.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=1.3)
        axis.scatter(
            x, y, s=8 + 70 * np.sqrt(share), color=look.colour, marker=look.marker,
            linewidths=0, alpha=0.8, zorder=3,
        )  # fmt: skip

    return _by_the_diagonal(run, lambda tables: tables, draw, "confidence", "share that is right")


def _by_the_diagonal(
    run: Run,
    usable: Callable[[np.ndarray], np.ndarray],
    draw: Callable[[Axes, np.ndarray, Look], None],
    across: str,
    upwards: str,
) -> Figure | None:
    """Draw a square for each group, with the `calibration` of each method beside what would be perfect."""
    found = {
        group: {
            method: values
            for method in run.titles
            if (stored := run.per_client(f"calibration/{method}", group)) is not None
            and (values := usable(stored)).size
        }
        for group in run.groups
    }
    groups = [group for group in run.groups if found[group]]
    if not groups:
        return None
    figure, axes = panels(1, len(groups), 4.0, sharex=True, sharey=True)
    styles = looks(run.titles)
    for axis, group in zip(axes, groups, strict=True):
        axis.plot([0, 1], [0, 1], color=INK, alpha=0.6, linewidth=0.9)
        for method, values in found[group].items():
            draw(axis, values, styles[method])
        axis.set(title=GROUP_TITLES[group], xlabel=across, xlim=(0, 1), ylim=(0, 1))
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        grid(axis)
    axes[0].set_ylabel(upwards)
    shown = [method for method in run.titles if any(method in found[g] for g in groups)]
    handles = [key(run.titles[method], styles[method]) for method in shown]
    legend(figure, [*handles, key("perfect", alpha=0.6, linewidth=0.9)], length=3)
    return figure


def drawn_clients(run: Run, group: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the clients of a group whose predictions are drawn, each with what was kept of it: by the
    first measure the best, the worst and two between, in the order of the table."""
    scores = run.rows(run.main, group).set_index("client")[run.measures[0].key]
    kept = {n: own for n, own in run.predictions(group).items() if own and n in scores}
    ranked = sorted(kept, key=lambda name: np.nan_to_num(scores[name], nan=np.inf))
    chosen = {ranked[place] for place in thinned(len(ranked), DRAWN_CLIENTS)}
    return {name: own for name, own in kept.items() if name in chosen}


def bands(run: Run, group: str) -> Figure | None:
    """Draw what the main method predicts for a few clients, with 50, 90 and 95% bands.

    With one feature they are drawn against it, two clients side by side; with several against
    the index of the test sample, which needs the whole width.
    """
    clients = drawn_clients(run, group)
    if not clients:
        return None
    one_feature = all("x" in own for own in clients.values())
    columns = min(len(clients), 2 if one_feature else 1)
    rows = -(-len(clients) // columns)
    height = (2.25 if one_feature else 1.45) * rows + 0.8
    figure, axes = panels(rows, columns, height, sharex=not one_feature)
    styles = looks(run.titles)
    for axis, (client, own) in zip(axes, clients.items(), strict=False):
        _draw_bands(axis, run, own, styles)
        axis.set_title(short(client))
        grid(axis)
    for axis in axes[len(clients) :]:
        axis.set_axis_off()
    facts = run.record.get("clients", {})
    feature = short(str((facts.get("features") or ["x"])[0]))
    for axis in axes[len(clients) - columns : len(clients)]:
        axis.set_xlabel(feature if one_feature else "index of the test sample")
    for axis in axes[: len(clients) : columns]:
        axis.set_ylabel(short(str(facts.get("target", "y"))))
    look = styles[run.main]
    handles: list[Artist] = [key(run.titles[run.main], look, marker="", linestyle="-")]
    handles += [
        Patch(facecolor=to_rgba(look.colour, alpha), label=f"{level}% band")
        for alpha, level in ((0.58, 50), (0.34, 90), (0.17, 95))
    ]
    handles.append(mark("test point", "o", markersize=3, **RING))
    if one_feature:
        handles.append(mark("training point", "D", markersize=4, markeredgewidth=0))
    handles += [
        key(title, styles[method], marker="", linewidth=0.9)
        for method, title in run.titles.items()
        if any(f"{method}/mean" in own for own in clients.values())
    ]
    legend(figure, handles)
    return figure


def _draw_bands(axis: Axes, run: Run, own: dict[str, np.ndarray], styles: dict[str, Look]) -> None:
    """Draw one client."""
    one_feature = "x" in own
    shown = slice(None if one_feature else SAMPLES_IN_A_ROW)
    across = own["x"] if one_feature else np.arange(len(own["y"][shown]))
    # Neighbouring samples need not be alike: steps do not pretend a curve between them.
    step, style = (None, "default") if one_feature else ("mid", "steps-mid")
    look = styles[run.main]
    for low, high, alpha in SHADES:
        axis.fill_between(
            across, own["quantiles"][low, shown], own["quantiles"][high, shown],
            color=look.colour, alpha=alpha, linewidth=0, step=step,  # type: ignore[arg-type]
        )  # fmt: skip
    for method in run.titles:
        if f"{method}/mean" in own:
            other = styles[method]
            axis.plot(
                across, own[f"{method}/mean"][shown], drawstyle=style,
                color=other.colour, linestyle=other.dash, linewidth=0.9,
            )  # fmt: skip
    axis.plot(across, own["mean"][shown], drawstyle=style, color=look.colour, linewidth=1.4)
    axis.plot(
        across, own["y"][shown], linestyle="none", marker="o", markersize=3, alpha=0.7, **RING
    )
    if one_feature:
        axis.plot(
            own["train_x"], own["train_y"], linestyle="none",
            marker="D", markersize=4, color=INK, markeredgewidth=0,
        )  # fmt: skip
    axis.margins(x=0.02)


def class_name(number: int, classes: int) -> str:
    """Return a digit for digits, a character for the 62 classes of EMNIST, else the number of the class."""
    return LETTERS[number] if classes in (10, len(LETTERS)) else str(number)


def examples_of(run: Run, group: str) -> dict[str, list[int]]:
    """Return the places of a group's examples, for each of KINDS that has any."""
    kinds = run.arrays.get(f"examples/{group}/kind", np.zeros(0))
    places = {kind: np.flatnonzero(kinds == number).tolist() for number, kind in enumerate(KINDS)}
    return {kind: found for kind, found in places.items() if found}


def examples(run: Run, group: str) -> Figure | None:
    """Draw test samples with the likeliest classes, a row for each kind of answer."""
    rows = examples_of(run, group)
    if not rows:
        return None
    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(WIDTH, 1.55 * len(rows) + 0.2), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (kind, places) in zip(parts, rows.items(), strict=True):
        part.suptitle(kind.capitalize(), x=0.01, ha="left", fontsize=9.5)
        axes = part.subplots(
            1, 2 * columns, squeeze=False, gridspec_kw={"width_ratios": [1, 0.8] * columns}
        )[0]
        for place, picture, bars in zip(places, axes[::2], axes[1::2], strict=False):
            _draw_example(run, group, place, picture, bars)
        for axis in axes[2 * len(places) :]:
            axis.set_axis_off()
    return figure


def _draw_example(run: Run, group: str, place: int, picture: Axes, bars: Axes) -> None:
    image = run.arrays[f"examples/{group}/images"][place]
    probabilities = run.arrays[f"examples/{group}/probabilities"][place]
    truth = int(run.arrays[f"examples/{group}/labels"][place])
    # On paper of its own: a photograph of ink does not turn with the page's theme.
    picture.imshow(
        1 - image.astype(float) / max(float(image.max()), 1.0), cmap="gray", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    picture.set_xticks([])
    picture.set_yticks([])
    for spine in picture.spines.values():
        spine.set(visible=True, alpha=0.3)
    picture.set_xlabel(f"is {class_name(truth, len(probabilities))}", labelpad=2, fontsize=8)
    likeliest = np.argsort(-probabilities, kind="stable")[:SHOWN_CLASSES]
    heights = range(len(likeliest))
    bars.barh(
        heights,
        probabilities[likeliest],
        height=0.7,
        color=[COLOURS[0] if c == truth else COLOURS[1] for c in likeliest],
        alpha=0.8,
        hatch=["" if c == truth else "////" for c in likeliest],
        edgecolor=INK,
        linewidth=0.4,
    )
    bars.set_yticks(heights, [class_name(int(c), len(probabilities)) for c in likeliest])
    bars.set(xlim=(0, 1), ylim=(len(likeliest) - 0.4, -0.6))
    bars.set_xticks([0, 1], ["0", "1"])
    bars.tick_params(axis="y", length=0)
    bars.tick_params(labelsize=7.5)
    for side in ("left", "bottom"):
        bars.spines[side].set_alpha(0.4)


def certificates(document: Facts) -> Figure:
    """Draw empirical risk, bound and test risk client by client, a panel for each group."""
    groups, clients = list(document["groups"]), document["clients"]
    figure, axes = panels(len(groups), 1, 2.3 * len(groups) + 0.6, sharey=True)
    a, b = document["loss"]["a"], document["loss"]["b"]
    for axis, group in zip(axes, groups, strict=True):
        rows = sorted((r for r in clients if r["group"] == group), key=lambda row: row["bound"])
        _draw_certificates(axis, [rows[place] for place in thinned(len(rows), CERTIFIED)], b)
        axis.set_title(GROUP_TITLES[group])
        axis.set_ylabel("loss")
    risks = [row[risk] for row in clients for risk in ("empirical_risk", "test_risk")]
    low = min(risk for risk in risks if risk is not None)
    axes[0].set_ylim(max(a, low) - 0.06 * (b - low), b + 0.1 * (b - low))
    axes[-1].set_xlabel("clients, sorted by bound")
    handles = [
        key("bound", color=COLOURS[0], linewidth=2.4),
        mark("on its own samples", "o", **OWN_RISK),
    ]
    if any(row["test_risk"] is not None for row in clients):
        handles.append(mark("on test samples", "x", markersize=4.5, color=COLOURS[1]))
    legend(figure, [*handles, key("largest loss", linewidth=0.9, linestyle="--")], length=2)
    return figure


def _draw_certificates(axis: Axes, rows: list[Facts], largest: float) -> None:
    place = np.arange(len(rows))
    own = np.array([row["empirical_risk"] for row in rows])
    test = np.array([row["test_risk"] for row in rows], float)  # NaN where there is none
    bound = np.minimum([row["bound"] for row in rows], largest)
    axis.axhline(largest, color=INK, linewidth=0.9, linestyle="--", alpha=0.7)
    axis.vlines(place, own, bound, color=COLOURS[0], linewidth=0.8, alpha=0.45)
    axis.hlines(bound, place - 0.38, place + 0.38, color=COLOURS[0], linewidth=2.4)
    axis.plot(place, own, linestyle="none", marker="o", **OWN_RISK)
    axis.plot(place, test, linestyle="none", marker="x", markersize=4.5, color=COLOURS[1])
    axis.set_xticks([])
    axis.set_xlim(-0.8, len(rows) - 0.2)
    grid(axis, "y")
