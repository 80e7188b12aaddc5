"""Figures of what methods predict: box plots, calibration, bands, single samples, certificates.

Each function takes a run and returns a figure with its words, or nothing where the run holds nothing to
draw.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pacpfl.folder import thinned
from pacpfl.metrics import coverage
from pacpfl.report.folder import Facts, Run
from pacpfl.report.measures import ACCURACY, CE, NLL, RSMSE, Measure, number, percent
from pacpfl.report.sentences import GROUP_TITLES
from pacpfl.report.style import (
    COLOURS,
    INK,
    WIDTH,
    Look,
    Shown,
    grid,
    key,
    legend,
    logarithmic,
    looks,
    panels,
    short,
    wrapped,
)

DOTS = 150  # clients drawn as dots per box; more would only blacken the figure
GAINS_DRAWN = 60  # clients of a group as lines from alone to together
DRAWN_CLIENTS = 4  # of a group: the best, the worst, and two between
SAMPLES_IN_A_ROW = 100  # with several features: test samples against their index
LEAST_IN_A_BIN = 20  # fewer samples say nothing about how often an answer is right
SHOWN_CLASSES = 3  # of a sample, the likeliest
KINDS = ("right and confident", "right but in doubt", "wrong")  # of examples, by number
LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SHADES = ((0, 5, 0.17), (1, 4, 0.2), (2, 3, 0.36))  # of bands: two quantiles, and how opaque
CERTIFIED = 120  # clients of a group whose certificates are drawn
Style = dict[str, Any]
RING: Style = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.6}
TEST_POINT: Style = RING | {"linestyle": "none", "marker": "o", "markersize": 3}
TRAINING_POINT: Style = {"linestyle": "none", "marker": "D", "markersize": 4, "markeredgewidth": 0}
OWN_RISK: Style = TEST_POINT | {"markersize": 3.5, "markeredgewidth": 0.8}
TEST_RISK: Style = {"linestyle": "none", "marker": "x", "markersize": 4.5, "color": COLOURS[1]}
FREQUENCIES = (
    "A predictive quantile at level 0.8 should lie above the true value eight times in ten. The closer a "
    "curve is to the diagonal, the better calibrated the method. A curve that is flat in the middle and "
    "steep at the ends (above the diagonal on the left, below it on the right) is over-confident; the "
    "other way round it is too cautious. Lines are means over clients; the shaded bands contain the "
    "middle half of the clients."
)
CONFIDENCE = (
    "Answers are grouped by the probability of the class they name. On the diagonal, answers given with "
    "80% confidence are right eight times in ten; below it the method is over-confident, above it too "
    "cautious. All clients of a group are counted together. The larger a mark, the more answers it "
    f"stands for; marks for fewer than {LEAST_IN_A_BIN} are not drawn."
)


def gains(run: Run, judged: pd.DataFrame) -> Shown | None:
    """Draw a line for each client from going alone to taking part, the largest gain on top."""
    known = judged[np.isfinite(judged["gain"])]
    if run.alone is None or known.empty:
        return None
    groups = [group for group in run.groups if (known["group"] == group).any()]
    most = min(GAINS_DRAWN, int(known["group"].value_counts().max()))
    figure, axes = panels(1, len(groups), 1.1 + max(0.8, 0.085 * most), sharex=True)
    styles, lead = looks(run.titles), run.measures[0]
    alone, main = styles[run.alone], styles[run.main]
    told, handles = [], [key(f"{run.titles[run.alone]}, alone", alone, linestyle="none")]
    for axis, group in zip(axes, groups, strict=True):
        rows = known[known["group"] == group].sort_values("gain", kind="stable")
        better, count = int((rows["gain"] > 0).sum()), len(rows)
        told.append(f"{better} of {count} {group} clients gain")
        drawn = rows.iloc[thinned(count, GAINS_DRAWN)]
        height = np.arange(len(drawn))
        ends = drawn["alone"].to_numpy(float), drawn["own"].to_numpy(float)
        colours = np.where(drawn["gain"] >= 0, main.colour, INK)
        axis.hlines(height, *ends, colors=list(colours), alpha=0.45, linewidth=1.2)
        for values, look in zip(ends, (alone, main), strict=True):
            axis.plot(values, height, linestyle="none", **_mark(look))
        axis.set(title=f"{GROUP_TITLES[group]}: {better} of {count} gain", yticks=[])
        axis.set_xlabel(f"{lead.title} ({lead.goal})")
        grid(axis, "x")
    values = [known[name].to_numpy(float) for name in ("alone", "own")]
    _choose_scale(axes, lead, values)
    legend(figure, [*handles, key(f"{run.titles[run.main]}, taking part", main, linestyle="none")])
    caption = (
        "Each line is one client, from its own model alone to the one it gets by taking part; the largest "
        "gain is on top, and lines in the colour of the text are clients who do better alone."
    )
    if max(known["group"].value_counts()) > GAINS_DRAWN:
        caption += (
            f" Of each group {GAINS_DRAWN} are drawn, evenly from the largest gain to the least."
        )
    words = f"Going alone against taking part: {'; '.join(told)}."
    return Shown("gains", "gains", "From alone to together", caption, words, figure)


def _mark(look: Look) -> Style:
    return {"marker": look.marker, "color": look.colour, "markersize": 4, "markeredgewidth": 0}


def boxes(run: Run) -> Shown | None:
    """Draw one row per measure, one column per group, one box per method, one dot per client."""
    measures = [m for m in run.boxed if np.isfinite(run.clients[m.key]).any()]
    if not measures:
        return None
    height = len(measures) * (0.75 + 0.34 * len(run.titles)) + 0.3
    figure, axes = panels(len(measures), len(run.groups), height, sharex="row", sharey=True)
    styles, titles, told = looks(run.titles), list(run.titles.values()), ["Box plots."]
    for axis, group in zip(axes, run.groups, strict=False):
        axis.set_title(GROUP_TITLES[group])
    for measure in measures:
        line, axes = axes[: len(run.groups)], axes[len(run.groups) :]
        drawn: list[np.ndarray] = []
        for axis, group in zip(line, run.groups, strict=True):
            medians = []
            for place, (method, look) in enumerate(styles.items()):
                values = run.rows(method, group)[measure.key].to_numpy(dtype=float)
                drawn.append(_draw_box(axis, place, values, look))
                if drawn[-1].size:
                    medians.append(f"{titles[place]} {number(float(np.median(drawn[-1])))}")
            grid(axis, "x")
            axis.tick_params(axis="y", length=0)
            axis.set_xlabel(f"{measure.title} ({measure.goal})")
            if medians:
                told.append(f"Median {measure.title} of {group} clients: {', '.join(medians)}.")
        line[0].set_yticks(range(len(titles)), [wrapped(short(t, 40), 18) for t in titles])
        line[0].set_ylim(len(titles) - 0.45, -0.55)
        _choose_scale(line, measure, [values for values in drawn if values.size])
    caption = (
        "Each faint mark is one client. The box contains the middle half of the clients, the thick "
        "line is the median, and the whiskers reach to the furthest client within one and a half "
        "box lengths. Further left is better"
        + (", except for the accuracy, where further right is better" if run.classification else "")
        + "; a short box means that nobody is left behind."
    )
    if infinite := int(np.isinf(run.clients[NLL.key]).sum()):
        caption += f" {infinite} values of NLL are infinite and not drawn."
    return Shown("boxes", "results", "Client by client", caption, " ".join(told), figure)


def _draw_box(axis: Axes, place: int, column: np.ndarray, look: Look) -> np.ndarray:
    """Draw what the clients scored with one method; return the values that can be drawn."""
    values = column[np.isfinite(column)]
    if not values.size:
        words = "not measured" if np.isnan(column).all() else "not finite"
        axis.text(
            0.02, place, words, transform=axis.get_yaxis_transform(),
            va="center", fontsize=8, style="italic", alpha=0.75,
        )  # fmt: skip
        return values
    dots = values[thinned(len(values), DOTS)]
    # Neighbours in value get different heights, the same in every drawing: no randomness.
    order = np.argsort(np.argsort(dots, kind="stable"), kind="stable")
    heights = place + 0.26 * (2 * ((order * 0.618034) % 1) - 1)
    axis.plot(
        dots, heights, linestyle="none", marker=look.marker, markersize=3,
        color=look.colour, alpha=0.35, markeredgewidth=0,
    )  # fmt: skip
    axis.boxplot(
        [values], positions=[place], widths=0.6, orientation="horizontal",
        showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": to_rgba(look.colour, 0.18), "edgecolor": look.colour},
        whiskerprops={"color": look.colour}, capprops={"color": look.colour},
        medianprops={"color": INK, "linewidth": 1.8, "solid_capstyle": "butt"},
    )  # fmt: skip
    return values


def _choose_scale(line: Sequence[Axes], measure: Measure, columns: list[np.ndarray]) -> None:
    """Take a logarithmic axis where one method is so far off that the others would melt into a line."""
    if measure in (CE, ACCURACY):  # never above one: there is nothing to compress
        for axis in line if measure is CE else ():
            axis.set_xlim(left=0)
        return
    values = np.concatenate(columns)
    # The symmetric axis below is straight up to one: below that there is nothing to compress.
    smallest = min(np.median(np.abs(column)) for column in columns)
    if values.max() > 20 * max(smallest, 0.0 if measure is RSMSE else 1.0):
        for axis in line:
            logarithmic(axis, symmetric=measure is not RSMSE or values.min() <= 0)


def calibration(run: Run) -> Shown | None:
    """Draw a square for each group, with the `calibration` of each method beside what would be perfect:
    how often a level holds against the level, or how often answers are right against their confidence."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for group in run.groups:
        for method in run.titles:
            values = run.per_client(f"calibration/{method}", group)
            if values is not None:
                usable = values[np.isfinite(values.reshape(len(values), -1)).all(axis=1)]
                if usable.any():
                    found.setdefault(group, {})[method] = usable
    if not found:
        return None
    figure, axes = panels(1, len(found), 4.0, sharex=True, sharey=True)
    draw = _draw_reliability if run.classification else _draw_frequencies
    styles, told = looks(run.titles), []
    for axis, (group, methods) in zip(axes, found.items(), strict=True):
        axis.plot([0, 1], [0, 1], color=INK, alpha=0.6, linewidth=0.9)
        for method, values in methods.items():
            words = draw(axis, values, styles[method], run)
            told.append(f"{run.titles[method]}, {group} clients: {words}.")
        across = "confidence" if run.classification else "level promised"
        axis.set(title=GROUP_TITLES[group], xlabel=across, xlim=(0, 1), ylim=(0, 1))
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        grid(axis)
    axes[0].set_ylabel("share that is right" if run.classification else "frequency observed")
    shown = [method for method in run.titles if any(method in own for own in found.values())]
    handles = [key(run.titles[method], styles[method]) for method in shown]
    legend(figure, [*handles, key("perfect", alpha=0.6, linewidth=0.9)], length=3)
    words = " ".join(told)
    if run.classification:
        title, words = "Confidence and accuracy", f"Reliability diagram of the methods. {words}"
        return Shown("reliability", "calibration", title, CONFIDENCE, words, figure)
    title, words = (
        "Promised and observed frequencies",
        f"Calibration curves of the methods. {words}",
    )
    return Shown("calibration", "calibration", title, FREQUENCIES, words, figure)


def _draw_frequencies(axis: Axes, curves: np.ndarray, look: Look, run: Run) -> str:
    """Draw the mean over clients, and the middle half of them; say how far off it is."""
    levels, middle = run.arrays["calibration/levels"], curves.mean(axis=0)
    low, high = np.quantile(curves, [0.25, 0.75], axis=0)
    axis.fill_between(levels, low, high, color=look.colour, alpha=0.14, linewidth=0)
    axis.plot(
        levels, middle, color=look.colour, linestyle=look.dash,
        marker=look.marker, markersize=3.2, markevery=3, linewidth=1.5,
    )  # fmt: skip
    return f"at most {number(float(np.abs(middle - levels).max()), 2)} from the diagonal"


def _draw_reliability(axis: Axes, tables: np.ndarray, look: Look, run: Run) -> str:
    """Draw all clients of a group together, a mark for each bin of confidence; say the averages."""
    table = tables.sum(axis=0)
    answers, right, sure = table.sum(axis=0)
    told = f"{percent(sure / answers, 1)} confident on average, {percent(right / answers, 1)} right"
    samples, right, sure = table[table[:, 0] >= LEAST_IN_A_BIN].T
    x, y = sure / samples, right / samples
    axis.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=1.3)
    axis.scatter(
        x, y, s=8 + 70 * np.sqrt(samples / answers), color=look.colour, marker=look.marker,
        linewidths=0, alpha=0.8, zorder=3,
    )  # fmt: skip
    return told


def drawn_clients(run: Run, group: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the clients of a group whose predictions are drawn, each with what was kept of it: by the
    first measure the best, the worst and two between, in the order of the table."""
    scores = run.rows(run.main, group).set_index("client")[run.measures[0].key]
    kept = {n: own for n, own in run.predictions(group).items() if own and n in scores}
    ranked = sorted(kept, key=lambda name: np.nan_to_num(scores[name], nan=np.inf))
    chosen = {ranked[place] for place in thinned(len(ranked), DRAWN_CLIENTS)}
    return {name: own for name, own in kept.items() if name in chosen}


def bands(run: Run, group: str) -> Shown | None:
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
    main, look = run.titles[run.main], styles[run.main]
    patches = [
        Patch(facecolor=to_rgba(look.colour, alpha), label=f"{level}% band")
        for alpha, level in ((0.58, 50), (0.34, 90), (0.17, 95))
    ]
    points = [key("test point", **TEST_POINT), key("training point", **TRAINING_POINT)]
    others = [
        key(title, styles[method], marker="", linewidth=0.9)
        for method, title in run.titles.items()
        if any(f"{method}/mean" in own for own in clients.values())
    ]
    line = key(main, look, marker="", linestyle="-")
    legend(figure, [line, *patches, *points[: 1 + one_feature], *others])
    against = (
        "The solid diamonds are the samples the client learned from. "
        if one_feature
        else "There are several features, so the test samples are drawn side by side in the order of "
        f"the data (the first {SAMPLES_IN_A_ROW} at most). "
    )
    shares = ", ".join(
        f"{client} {percent(coverage(own['y'], own['quantiles'][1], own['quantiles'][4]))}"
        for client, own in clients.items()
    )
    caption = (
        f"The line is the mean that {main} predicts, the shaded areas are its 50, 90 and 95% bands, and "
        f"the rings are test points it has never seen. {against}About nine rings in ten should lie "
        "inside the 90% band, and the band should be wide where data is scarce. Thin lines are the means "
        "of the other methods."
    )
    title, told = (
        f"Predictions for {group} clients",
        f"Prediction bands of {len(clients)} {group} clients.",
    )
    told += f" Test points inside the 90% band: {shares}."
    return Shown(f"bands_{group}", "predictions", title, caption, told, figure)


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
    for method, other in styles.items():
        if f"{method}/mean" in own:
            axis.plot(
                across, own[f"{method}/mean"][shown], drawstyle=style,
                color=other.colour, linestyle=other.dash, linewidth=0.9,
            )  # fmt: skip
    axis.plot(across, own["mean"][shown], drawstyle=style, color=look.colour, linewidth=1.4)
    axis.plot(across, own["y"][shown], alpha=0.7, **TEST_POINT)
    if one_feature:
        axis.plot(own["train_x"], own["train_y"], color=INK, **TRAINING_POINT)
    axis.margins(x=0.02)


def class_name(number: int, classes: int) -> str:
    """Return a digit for digits, a character for the 62 classes of EMNIST, else the number of the class."""
    return LETTERS[number] if classes in (10, len(LETTERS)) else str(number)


def examples(run: Run, group: str) -> Shown | None:
    """Draw test samples with the likeliest classes, a row for each kind of answer."""
    kinds = run.arrays.get(f"examples/{group}/kind", np.zeros(0))
    rows = {kind: np.flatnonzero(kinds == number).tolist() for number, kind in enumerate(KINDS)}
    rows = {kind: places for kind, places in rows.items() if places}
    if not rows:
        return None
    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(WIDTH, 1.55 * len(rows) + 0.2), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    told = [f"Images of {len(kinds)} test samples."]
    for part, (kind, places) in zip(parts, rows.items(), strict=True):
        part.suptitle(kind.capitalize(), x=0.01, ha="left", fontsize=9.5)
        axes = part.subplots(
            1, 2 * columns, squeeze=False, gridspec_kw={"width_ratios": [1, 0.8] * columns}
        )[0]
        pairs = zip(places, axes[::2], axes[1::2], strict=False)
        words = [_draw_example(run, group, *one) for one in pairs]
        told.append(f"{kind.capitalize()}: {', '.join(words)}.")
        for axis in axes[2 * len(places) :]:
            axis.set_axis_off()
    caption = (
        f"Test samples of {group} clients that {run.titles[run.main]} had never seen: some that it "
        "classified correctly with high confidence, those it classified correctly with the least "
        "confidence, and those it classified wrongly with the most. The bars are the probabilities of "
        "the likeliest classes; the true one is plain, the others are hatched."
    )
    title = f"Predictions for {group} clients"
    return Shown(f"examples_{group}", "predictions", title, caption, " ".join(told), figure)


def _draw_example(run: Run, group: str, place: int, picture: Axes, bars: Axes) -> str:
    """Draw an image beside its likeliest classes; say what it was taken for."""
    image, probabilities, truth = (
        run.arrays[f"examples/{group}/{key}"][place]
        for key in ("images", "probabilities", "labels")
    )
    names = [class_name(number, len(probabilities)) for number in range(len(probabilities))]
    # On paper of its own: a photograph of ink does not turn with the page's theme.
    picture.imshow(
        1 - image.astype(float) / max(float(image.max()), 1.0), cmap="gray", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    picture.set(xticks=[], yticks=[])
    for spine in picture.spines.values():
        spine.set(visible=True, alpha=0.3)
    picture.set_xlabel(f"is {names[truth]}", labelpad=2, fontsize=8)
    likeliest = np.argsort(-probabilities, kind="stable")[:SHOWN_CLASSES]
    heights, right = range(len(likeliest)), likeliest == truth
    bars.barh(
        heights, probabilities[likeliest], height=0.7, alpha=0.8, edgecolor=INK, linewidth=0.4,
        color=np.where(right, COLOURS[0], COLOURS[1]), hatch=np.where(right, "", "////").tolist(),
    )  # fmt: skip
    bars.set_yticks(heights, [names[c] for c in likeliest])
    bars.set(xlim=(0, 1), ylim=(len(likeliest) - 0.4, -0.6))
    bars.set_xticks([0, 1], ["0", "1"])
    bars.tick_params(axis="y", length=0)
    bars.tick_params(labelsize=7.5)
    for side in ("left", "bottom"):
        bars.spines[side].set_alpha(0.4)
    sure = percent(float(probabilities.max()))
    return f"a {names[truth]} taken for {names[likeliest[0]]} ({sure})"


def certificates(document: Facts) -> Shown:
    """Draw empirical risk, bound and test risk client by client, a panel for each group."""
    groups, clients = document["groups"], document["clients"]
    figure, axes = panels(len(groups), 1, 2.3 * len(groups) + 0.6, sharey=True)
    a, b = document["loss"]["a"], document["loss"]["b"]
    told = ["Empirical risk, bound and test risk of each client."]
    for axis, (group, facts) in zip(axes, groups.items(), strict=True):
        rows = sorted((r for r in clients if r["group"] == group), key=lambda row: row["bound"])
        _draw_certificates(axis, [rows[place] for place in thinned(len(rows), CERTIFIED)], b)
        axis.set(title=GROUP_TITLES[group], ylabel="loss")
        text = (
            f"{GROUP_TITLES[group]}: median empirical risk {number(facts['empirical_risk'])}, "
            f"median bound {number(facts['bound'])}"
        )
        if facts["tested"]:
            text += (
                f", median test risk {number(facts['test_risk'])}; the bound holds against the "
                f"test samples for {facts['covered']} of {facts['tested']} clients"
            )
        told.append(text + ".")
    tested = [row["test_risk"] for row in clients if row["test_risk"] is not None]
    low = min([row["empirical_risk"] for row in clients] + tested)
    axes[0].set_ylim(max(a, low) - 0.06 * (b - low), b + 0.1 * (b - low))
    axes[-1].set_xlabel("clients, sorted by bound")
    handles = [
        key("bound", color=COLOURS[0], linewidth=2.4),
        key("on its own samples", **OWN_RISK),
        key("on test samples", **TEST_RISK),
        key("largest loss", linewidth=0.9, linestyle="--"),
    ]
    legend(figure, handles if tested else [*handles[:2], handles[3]], length=2)
    caption = (
        "One column per client, sorted by its bound. The ring is the average loss on the client's "
        "own samples, the bar is what is guaranteed for all samples to come, and the cross is the "
        "average loss on test samples: a cross above its bar would be a broken promise. A bar at the "
        "dashed line, the largest possible loss, guarantees nothing."
    )
    if len(clients) > CERTIFIED:
        caption += f" At most {CERTIFIED} clients of each group are drawn."
    name, title = "certificates", "Promised and measured risk"
    return Shown(name, name, title, caption, " ".join(told), figure)


def _draw_certificates(axis: Axes, rows: list[Facts], largest: float) -> None:
    place = np.arange(len(rows))
    own = np.array([row["empirical_risk"] for row in rows])
    test = np.array([row["test_risk"] for row in rows], float)  # NaN where there is none
    bound = np.minimum([row["bound"] for row in rows], largest)
    axis.axhline(largest, color=INK, linewidth=0.9, linestyle="--", alpha=0.7)
    axis.vlines(place, own, bound, color=COLOURS[0], linewidth=0.8, alpha=0.45)
    axis.hlines(bound, place - 0.38, place + 0.38, color=COLOURS[0], linewidth=2.4)
    axis.plot(place, own, **OWN_RISK)
    axis.plot(place, test, **TEST_RISK)
    axis.set_xticks([])
    axis.set_xlim(-0.8, len(rows) - 0.2)
    grid(axis, "y")
