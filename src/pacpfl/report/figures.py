"""Figures of what methods predict: box plots, calibration, bands, reliability, single samples.

Each function takes a run and returns a figure, or nothing where the run holds nothing to draw.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    LogLocator,
    NullFormatter,
    StrMethodFormatter,
    SymmetricalLogLocator,
)

from pacpfl.report.folder import Run
from pacpfl.report.measures import ACCURACY, BOXED, CE, CLASS_BOXED, RSMSE, Measure
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import COLOURS, INK, WIDTH, Look, grid, looks, panels, short, wrapped

DOTS = 150  # clients drawn as dots per box; more would only blacken the figure
DRAWN_CLIENTS = 6
BAND_POINTS = 300
SAMPLES_IN_A_ROW = 100  # with several features: test samples against their index
LEAST_IN_A_BIN = 20  # fewer samples say nothing about how often an answer is right
SHOWN_CLASSES = 3  # of a sample, the likeliest
KINDS = ("right and confident", "right but in doubt", "wrong")  # of examples, by number
LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def thinned(count: int, at_most: int) -> np.ndarray:
    """Return evenly spread indices: all of them when there are few, the first and the last always."""
    if count <= at_most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, at_most).round().astype(int))


def finite(run: Run, method: str, group: str, measure: Measure) -> np.ndarray:
    """Return what the clients of a group scored with a method, without values nobody can draw."""
    values: np.ndarray = run.rows(method, group)[measure.key].to_numpy(dtype=float)
    return values[np.isfinite(values)]


def boxed(run: Run) -> tuple[Measure, ...]:
    """Return the measures that every client has a value of, and that are worth a box."""
    return CLASS_BOXED if run.classification else BOXED


def boxes(run: Run) -> Figure | None:
    """Draw one row per measure, one column per group, one box per method, one dot per client."""
    measures = [
        measure
        for measure in boxed(run)
        if any(finite(run, m, g, measure).size for m in run.titles for g in run.groups)
    ]
    if not measures:
        return None
    height = len(measures) * (0.75 + 0.34 * len(run.titles)) + 0.3
    figure, axes = panels(len(measures), len(run.groups), height, sharex="row", sharey=True)
    styles = looks(list(run.titles))
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
        if measure is RSMSE and values.min() > 0:
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(numticks=5))
        else:
            axis.set_xscale("symlog", linthresh=1)
            locator = SymmetricalLogLocator(base=10, linthresh=1)
            locator.set_params(numticks=5)
            axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(f"{axis.get_xlabel()[:-1]}, logarithmic)")


def calibration(run: Run) -> Figure | None:
    """Draw observed frequency against level: mean over clients, and the middle half of them."""
    levels = run.arrays.get("calibration/levels")
    curves = {
        group: {
            method: values
            for method in run.titles
            if (values := run.arrays.get(f"calibration/{method}/{group}")) is not None
            and (values := values[np.isfinite(values).all(axis=1)]).size
        }
        for group in run.groups
    }
    groups = [group for group in run.groups if curves[group]]
    if levels is None or not groups:
        return None
    figure, axes = panels(1, len(groups), 3.9, sharex=True, sharey=True)
    styles = looks(list(run.titles))
    for axis, group in zip(axes, groups, strict=True):
        axis.plot([0, 1], [0, 1], color=INK, alpha=0.6, linewidth=0.9)
        for method, values in curves[group].items():
            look = styles[method]
            low, high = np.quantile(values, [0.25, 0.75], axis=0)
            axis.fill_between(levels, low, high, color=look.colour, alpha=0.14, linewidth=0)
            axis.plot(
                levels, values.mean(axis=0), color=look.colour, linestyle=look.dash,
                marker=look.marker, markersize=3.2, markevery=3, linewidth=1.5,
            )  # fmt: skip
        axis.set(title=GROUP_TITLES[group], xlabel="level promised", xlim=(0, 1), ylim=(0, 1))
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        grid(axis)
    axes[0].set_ylabel("frequency observed")
    shown = [method for method in run.titles if any(method in curves[g] for g in groups)]
    handles = [_line_handle(styles[method], run.titles[method], 1.5) for method in shown]
    handles.append(Line2D([], [], color=INK, alpha=0.6, linewidth=0.9, label="perfect"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=3
    )
    return figure


def _line_handle(look: Look, title: str, width: float) -> Line2D:
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash, marker=look.marker if width > 1 else "",
        markersize=3.2, linewidth=width, label=short(title),
    )  # fmt: skip


def drawn_clients(run: Run, group: str) -> list[str]:
    """Return the clients of a group whose predictions the run kept for drawing."""
    return [name for name in run.names(group) if f"bands/{group}/{name}/quantiles" in run.arrays]


def has_one_feature(run: Run, group: str, client: str) -> bool:
    """Tell whether a drawn client can be drawn against its input."""
    inputs = run.arrays[f"bands/{group}/{client}/x"]
    return inputs.ndim == 1 or inputs.shape[1] == 1


def bands(run: Run, group: str) -> Figure | None:
    """Draw what the main method predicts for a few clients, with 50, 90 and 95% bands.

    With one feature they are drawn against it, two clients side by side; with several against
    the index of the test sample, which needs the whole width.
    """
    clients = drawn_clients(run, group)[:DRAWN_CLIENTS]
    if not clients:
        return None
    one_feature = has_one_feature(run, group, clients[0])
    columns = min(len(clients), 2 if one_feature else 1)
    rows = -(-len(clients) // columns)
    height = (2.25 if one_feature else 1.45) * rows + 0.8
    figure, axes = panels(rows, columns, height, sharex=not one_feature)
    styles = looks(list(run.titles))
    others: dict[str, None] = {}
    for axis, client in zip(axes, clients, strict=False):
        others |= dict.fromkeys(_draw_bands(axis, run, f"bands/{group}/{client}", styles))
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
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=look.colour, linewidth=1.4, label=short(run.titles[run.main]))
    ]
    handles += [
        Patch(facecolor=to_rgba(look.colour, alpha), label=f"{level}% band")
        for alpha, level in ((0.58, 50), (0.34, 90), (0.17, 95))
    ]
    handles.append(_dots("test point", hollow=True))
    if one_feature:
        handles.append(_dots("training point", hollow=False))
    handles += [_line_handle(styles[method], run.titles[method], 0.9) for method in others]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=2.5)
    return figure


def _dots(label: str, hollow: bool) -> Line2D:
    return Line2D(
        [], [], linestyle="none", marker="o" if hollow else "D", markersize=3 if hollow else 4,
        markerfacecolor="none" if hollow else INK, markeredgecolor=INK,
        markeredgewidth=0.6 if hollow else 0, label=label,
    )  # fmt: skip


def _draw_bands(axis: Axes, run: Run, key: str, styles: dict[str, Look]) -> list[str]:
    """Draw one client; returns the other methods drawn beside the main one."""
    arrays = run.arrays
    quantiles = arrays[f"{key}/quantiles"]
    x = arrays[f"{key}/x"].reshape(quantiles.shape[1], -1)
    one_feature = x.shape[1] == 1
    if one_feature:
        order = np.argsort(x[:, 0], kind="stable")
        shown = order[thinned(len(order), BAND_POINTS)]
        horizontal = x[shown, 0]
    else:
        shown = np.arange(min(len(x), SAMPLES_IN_A_ROW))
        horizontal = shown.astype(float)
    # Neighbouring samples need not be alike: steps do not pretend a curve between them.
    step, style = (None, "default") if one_feature else ("mid", "steps-mid")
    look = styles[run.main]
    for low, high, alpha in ((0, 5, 0.17), (1, 4, 0.2), (2, 3, 0.36)):
        axis.fill_between(
            horizontal, quantiles[low, shown], quantiles[high, shown],
            color=look.colour, alpha=alpha, linewidth=0, step=step,  # type: ignore[arg-type]
        )  # fmt: skip
    others = [
        method for method in run.titles if method != run.main and f"{key}/{method}/mean" in arrays
    ]
    for method in others:
        other = styles[method]
        axis.plot(
            horizontal, arrays[f"{key}/{method}/mean"][shown], drawstyle=style,
            color=other.colour, linestyle=other.dash, linewidth=0.9,
        )  # fmt: skip
    mean = arrays[f"{key}/mean"][shown]
    axis.plot(horizontal, mean, drawstyle=style, color=look.colour, linewidth=1.4)
    axis.plot(
        horizontal, arrays[f"{key}/y"][shown], linestyle="none", marker="o", markersize=3,
        markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.6, alpha=0.7,
    )  # fmt: skip
    if one_feature and f"{key}/train_x" in arrays:
        axis.plot(
            arrays[f"{key}/train_x"].reshape(-1), arrays[f"{key}/train_y"], linestyle="none",
            marker="D", markersize=4, color=INK, markeredgewidth=0,
        )  # fmt: skip
    axis.margins(x=0.02)
    return others


def reliability(run: Run) -> Figure | None:
    """Draw how often answers are right against their confidence, all clients of a group together."""
    tables = {
        group: {
            method: table.sum(axis=0)
            for method in run.titles
            if (table := run.per_client(f"calibration/{method}", group)) is not None
        }
        for group in run.groups
    }
    groups = [group for group in run.groups if tables[group]]
    if not groups:
        return None
    figure, axes = panels(1, len(groups), 4.2, sharex=True, sharey=True)
    styles = looks(list(run.titles))
    for axis, group in zip(axes, groups, strict=True):
        axis.plot([0, 1], [0, 1], color=INK, alpha=0.6, linewidth=0.9)
        for method, table in tables[group].items():
            samples, right, sure = table[table[:, 0] >= LEAST_IN_A_BIN].T
            look, share = styles[method], samples / table[:, 0].sum()
            x, y = sure / samples, right / samples
            axis.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=1.3)
            axis.scatter(
                x, y, s=8 + 70 * np.sqrt(share), color=look.colour, marker=look.marker,
                linewidths=0, alpha=0.8, zorder=3,
            )  # fmt: skip
        axis.set(title=GROUP_TITLES[group], xlabel="confidence", xlim=(0, 1), ylim=(0, 1.02))
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        grid(axis)
    axes[0].set_ylabel("share that is right")
    shown = [method for method in run.titles if any(method in tables[g] for g in groups)]
    handles = [
        Line2D(
            [], [], color=styles[m].colour, linestyle=styles[m].dash, marker=styles[m].marker,
            markersize=4, linewidth=1.3, label=short(run.titles[m]),
        )
        for m in shown
    ]  # fmt: skip
    handles.append(Line2D([], [], color=INK, alpha=0.6, linewidth=0.9, label="perfect"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=3
    )
    return figure


def class_name(number: int, classes: int) -> str:
    """Return a digit for digits, a character for the 62 classes of EMNIST, else the number of the class."""
    return LETTERS[number] if classes in (10, len(LETTERS)) else str(number)


def examples_of(run: Run, group: str) -> list[list[int]]:
    """Return places in the group's examples, one list for each of KINDS that has any."""
    kinds = run.arrays.get(f"examples/{group}/kind")
    if kinds is None:
        return []
    found = [[int(place) for place in np.flatnonzero(kinds == n)] for n in range(len(KINDS))]
    return [places for places in found if places]


def examples(run: Run, group: str) -> Figure | None:
    """Draw test samples with the likeliest classes, a row for each kind of answer."""
    rows = examples_of(run, group)
    if not rows:
        return None
    columns = max(len(places) for places in rows)
    figure = Figure(figsize=(WIDTH, 1.55 * len(rows) + 0.2), layout="constrained")
    kinds = run.arrays[f"examples/{group}/kind"]
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, places in zip(parts, rows, strict=True):
        part.suptitle(KINDS[int(kinds[places[0]])].capitalize(), x=0.01, ha="left", fontsize=9.5)
        axes = part.subplots(
            1, 2 * columns, squeeze=False, gridspec_kw={"width_ratios": [1, 0.8] * columns}
        )[0]
        for column in range(columns):
            pair = axes[2 * column : 2 * column + 2]
            if column < len(places):
                _draw_example(run, group, places[column], pair)
            else:
                for axis in pair:
                    axis.set_axis_off()
    return figure


def _draw_example(run: Run, group: str, place: int, pair: Sequence[Axes]) -> None:
    image = run.arrays[f"examples/{group}/images"][place]
    probabilities = run.arrays[f"examples/{group}/probabilities"][place]
    truth = int(run.arrays[f"examples/{group}/labels"][place])
    picture, bars = pair
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
