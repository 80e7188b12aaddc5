"""Figures of a classification run: how often a sure answer is right, and single samples.

Each function takes a run and returns a figure, or nothing where the run holds nothing to draw.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacpfl.report.figures import GROUP_TITLES
from pacpfl.report.folder import Run
from pacpfl.report.measures import percent
from pacpfl.report.style import COLOURS, INK, WIDTH, grid, looks, panels, short

LEAST_IN_A_BIN = 20  # fewer samples say nothing about how often an answer is right
SHOWN_CLASSES = 3  # of a sample, the likeliest
KINDS = ("right and sure", "right but in doubt", "wrong")  # of examples, by number
LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def reliability(run: Run) -> Figure | None:
    """How often answers are right against how sure they are, all clients of a group together."""
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
        axis.set(title=GROUP_TITLES[group], xlabel="how sure", xlim=(0, 1), ylim=(0, 1.02))
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        grid(axis)
    axes[0].set_ylabel("how often right")
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
    """Digits by their digit, the 62 classes of EMNIST by their character, others by their number."""
    return LETTERS[number] if classes in (10, len(LETTERS)) else str(number)


def examples_of(run: Run, group: str) -> list[list[int]]:
    """Places in the group's examples, one list for each of KINDS that has any."""
    kinds = run.arrays.get(f"examples/{group}/kind")
    if kinds is None:
        return []
    found = [[int(place) for place in np.flatnonzero(kinds == n)] for n in range(len(KINDS))]
    return [places for places in found if places]


def examples(run: Run, group: str) -> Figure | None:
    """Test samples with the classes the main method thinks likeliest, a row for each kind of answer."""
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


def reliability_words(run: Run) -> tuple[str, str]:
    """Caption, and what the figure shows for those who cannot see it."""
    caption = (
        "Answers are sorted by the probability of the class they name. On the diagonal an answer that "
        "is 80% sure is right eight times in ten; below it the method is over-confident, above it too "
        "careful. All clients of a group are counted together; the larger a mark, the more answers it "
        f"stands for, and fewer than {LEAST_IN_A_BIN} are not drawn."
    )
    parts = []
    for group in run.groups:
        for method, title in run.titles.items():
            tables = run.per_client(f"calibration/{method}", group)
            if tables is not None:
                samples, right, sure = tables.sum(axis=(0, 1))
                parts.append(
                    f"{title}, {group} clients: {percent(sure / samples, 1)} sure on average, "
                    f"{percent(right / samples, 1)} right."
                )
    return caption, "Reliability diagram of the methods. " + " ".join(parts)


def examples_words(run: Run, group: str) -> tuple[str, str]:
    title = run.titles[run.main]
    caption = (
        f"Test samples of {group} clients that {title} had never seen: some of those it was surest of, "
        "the ones named rightly with the least confidence, and the ones named wrongly with the most. "
        "The bars are the probabilities of the likeliest classes; the true one is plain, others are "
        "hatched."
    )
    labels = run.arrays[f"examples/{group}/labels"]
    probabilities = run.arrays[f"examples/{group}/probabilities"]
    parts = []
    for places in examples_of(run, group):
        kind = KINDS[int(run.arrays[f"examples/{group}/kind"][places[0]])]
        told = []
        for place in places:
            chances = probabilities[place]
            first = int(np.argmax(chances))
            count = len(chances)
            told.append(
                f"a {class_name(int(labels[place]), count)} taken for "
                f"{class_name(first, count)} ({percent(float(chances[first]))})"
            )
        parts.append(f"{kind.capitalize()}: {', '.join(told)}.")
    return caption, f"Images of {len(labels)} test samples. " + " ".join(parts)
