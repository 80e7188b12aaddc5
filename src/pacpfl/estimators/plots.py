"""One call, one picture: what a client's model predicts along a feature, and how honest it is.

Both return matplotlib's Axes. `theme` is light, dark, or auto: whatever the figure's background is.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pacpfl.client import ClientModel
from pacpfl.errors import InputError
from pacpfl.report.style import COLOURS, DARK_COLOURS, DASHES, INK, MARKERS

THEMES = {"light": ("#ffffff", INK, COLOURS), "dark": ("#14181d", "#e8ebef", DARK_COLOURS)}


def predictions(
    model: ClientModel,
    column: int,
    label: str,
    *,
    ax: Axes | None = None,
    theme: str = "auto",
    points: int = 200,
) -> Axes:
    """Draw what a client's model predicts along one feature, the others at the medians of its rows.

    Of a number: mean, 50% and 90% intervals, and the client's rows. Of classes: their probabilities.
    """
    own = model.samples
    low, high = float(own.x[:, column].min()), float(own.x[:, column].max())
    margin = 0.1 * (high - low) or 1.0
    line = np.linspace(low - margin, high + margin, points)
    inputs = np.tile(np.median(own.x, axis=0), (points, 1))
    inputs[:, column] = line
    ax, colours = _prepare(ax, theme)
    if model.shared.schema.classes is None:
        predicted = model.predict(inputs, (0.05, 0.25, 0.75, 0.95))
        for share, ends in (("90%", (0, -1)), ("50%", (1, 2))):
            below, above = predicted.quantiles[[*ends]]
            words = f"{share} interval"
            ax.fill_between(line, below, above, color=colours[0], alpha=0.22, lw=0, label=words)
        ax.plot(line, predicted.mean, color=colours[0], label="mean")
        ax.plot(own.x[:, column], own.y, "o", ms=3.5, color=colours[1], label="rows")
        ax.set_ylabel("target")
    else:
        probabilities = model.probabilities(inputs)
        for number, name in enumerate(model.shared.schema.classes):
            colour, dash = colours[number % len(colours)], DASHES[number % len(DASHES)]
            ax.plot(line, probabilities[:, number], color=colour, linestyle=dash, label=name)
            there = own.x[own.y == number, column]
            ax.plot(there, np.full(len(there), -0.03 - 0.02 * number), "|", color=colour)
        ax.set_ylabel("probability")
    ax.set_xlabel(label)
    ax.set_title(f"Client {model.name}", loc="left", fontsize="medium")
    return _finished(ax)


def calibration(
    promised: np.ndarray,
    observed: np.ndarray,
    error: float,
    labels: tuple[str, str],
    *,
    ax: Axes | None = None,
    theme: str = "auto",
) -> Axes:
    """Draw what was observed against what was promised; the diagonal is perfect."""
    ax, colours = _prepare(ax, theme)
    ax.plot(promised, observed, MARKERS[0] + "-", color=colours[0], ms=3.5, label="predictions")
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.plot([0, 1], [0, 1], color=ax.xaxis.label.get_color(), lw=0.8, ls=":", label="perfect")
    ax.set_title(f"Calibration error {error:.3f}", loc="left", fontsize="medium")
    return _finished(ax)


def _prepare(ax: Axes | None, theme: str) -> tuple[Axes, tuple[str, ...]]:
    if theme not in ("auto", *THEMES):
        raise InputError(f"theme = {theme!r} is not one of auto, {', '.join(THEMES)}; choose one.")
    if ax is None:
        _, ax = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
    figure = ax.get_figure()
    if theme == "auto":
        background = figure.get_facecolor() if isinstance(figure, Figure) else "white"
        red, green, blue = to_rgb(background)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
        return ax, THEMES["dark" if dark else "light"][2]
    background, ink, colours = THEMES[theme]
    if isinstance(figure, Figure):
        figure.set_facecolor(background)
    ax.set_facecolor(background)
    ax.tick_params(colors=ink)
    plt.setp((ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title), color=ink)  # type: ignore[attr-defined]
    ax.spines[:].set_edgecolor(ink)
    return ax, colours


def _finished(ax: Axes) -> Axes:
    """Without a box, and with a legend in the ink of the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", labelcolor=ax.xaxis.label.get_color())
    return ax
