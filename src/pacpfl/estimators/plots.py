"""One call, one picture: predictions of a client along a feature, and calibration.

Both return matplotlib's Axes. `theme` is light, dark, or auto: whatever the figure's background is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.special import ndtr

from pacpfl import metrics, warp
from pacpfl.estimators.errors import InvalidInput
from pacpfl.estimators.settings import check_choice
from pacpfl.report.style import COLOURS, DARK_COLOURS, DASHES, INK, MARKERS
from pacpfl.types import WarpedPrediction

if TYPE_CHECKING:
    from pacpfl.estimators.base import FederatedEstimator

THEMES = {"light": ("#ffffff", INK, COLOURS), "dark": ("#14181d", "#e8ebef", DARK_COLOURS)}
BANDS = ((0.05, 0.95), (0.25, 0.75))


def predictions(
    estimator: FederatedEstimator,
    group: Any = None,
    feature: int | str = 0,
    *,
    ax: Axes | None = None,
    theme: str = "auto",
    points: int = 200,
) -> Axes:
    """Draw what a client's model predicts along one feature, the others at the medians of its rows.

    Of a number: mean, 50% and 90% intervals, and the client's rows. Of classes: their probabilities.
    """
    group = _group(estimator, group)
    column, label = _column(estimator, feature)
    own = estimator._owners[group].samples
    low, high = float(own.x[:, column].min()), float(own.x[:, column].max())
    margin = 0.1 * (high - low) or 1.0
    line = np.linspace(low - margin, high + margin, points)
    inputs = np.tile(np.median(own.x, axis=0), (points, 1))
    inputs[:, column] = line
    asked, groups = _like_fitted(estimator, inputs), [group] * points
    ax, colours = _prepare(ax, theme)
    if hasattr(estimator, "classes_"):
        _classes(ax, colours, estimator, line, estimator.predict_proba(asked, groups))
        for number in range(len(estimator.classes_)):
            there = own.x[own.y == number, column]
            marks = np.full(len(there), -0.03 - 0.02 * number)
            ax.plot(there, marks, "|", color=colours[number % len(colours)])
    else:
        levels = [level for band in BANDS for level in band]
        quantiles = estimator.predict_quantiles(asked, levels, groups).T
        _numbers(ax, colours, line, estimator.predict(asked, groups), quantiles)
        ax.plot(own.x[:, column], own.y, "o", ms=3.5, color=colours[1], label="rows")
    ax.set_xlabel(label)
    ax.set_title(f"Client {group}", loc="left", fontsize="medium")
    return _finished(ax)


def _classes(
    ax: Axes, colours: tuple[str, ...], estimator: Any, line: np.ndarray, probabilities: np.ndarray
) -> None:
    for number, name in enumerate(estimator.classes_):
        ax.plot(
            line,
            probabilities[:, number],
            color=colours[number % len(colours)],
            linestyle=DASHES[number % len(DASHES)],
            label=str(name),
        )
    ax.set_ylabel("probability")


def _numbers(
    ax: Axes, colours: tuple[str, ...], line: np.ndarray, mean: np.ndarray, quantiles: np.ndarray
) -> None:
    for (lower, upper), below, above in zip(BANDS, quantiles[::2], quantiles[1::2], strict=True):
        words = f"{upper - lower:.0%} interval"
        ax.fill_between(line, below, above, color=colours[0], alpha=0.22, lw=0, label=words)
    ax.plot(line, mean, color=colours[0], label="mean")
    ax.set_ylabel("target")


def calibration(
    estimator: FederatedEstimator,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    ax: Axes | None = None,
    theme: str = "auto",
) -> Axes:
    """Draw how honest the uncertainty is, on rows the model has not seen; the diagonal is perfect.

    Of a number: the share of targets below each predicted quantile. Of classes: the share of right
    answers against their predicted probability.
    """
    ax, colours = _prepare(ax, theme)
    look: dict[str, Any] = {"color": colours[0], "marker": MARKERS[0], "ms": 3.5}
    if hasattr(estimator, "classes_"):
        probabilities = estimator.predict_proba(X, groups)
        table = metrics.reliability(probabilities, estimator._class_numbers(y), 10)
        error, used = metrics.reliability_error(table), table[table[:, 0] > 0]
        ax.plot(used[:, 2] / used[:, 0], used[:, 1] / used[:, 0], label="predictions", **look)
        ax.set_xlabel("predicted probability")
        ax.set_ylabel("share that is right")
    else:
        said = estimator.predict_distribution(X, groups)
        targets = np.asarray(y, np.float64)[:, None]
        if isinstance(said, WarpedPrediction):
            with jax.enable_x64(True):
                targets = np.asarray(warp.forward(said.warps, jnp.asarray(targets)))
        below = np.asarray(said.weights * ndtr((targets - said.means) / said.stds)).sum(1)
        levels = metrics.calibration_levels()
        error = metrics.calibration_error(below, levels)
        ax.plot(levels, metrics.calibration_curve(below, levels), label="predictions", **look)
        ax.set_xlabel("predicted quantile")
        ax.set_ylabel("share of targets below")
    ax.plot([0, 1], [0, 1], color=ax.xaxis.label.get_color(), lw=0.8, ls=":", label="perfect")
    ax.set_title(f"Calibration error {error:.3f}", loc="left", fontsize="medium")
    return _finished(ax)


def _group(estimator: FederatedEstimator, group: Any) -> Any:
    """Return the client that is named, or the only one there is."""
    known = estimator.clients_
    if group is None and len(known) != 1:
        raise InvalidInput(
            f"There are {len(known)} clients; name one, such as group={known[0]!r}."
            if known
            else "There is no client yet; make one with personalize."
        )
    return estimator._known(known[0] if group is None else group)


def _column(estimator: FederatedEstimator, feature: int | str) -> tuple[int, str]:
    """Return number and label of a feature that is given by number or name."""
    names = list(getattr(estimator, "feature_names_in_", []))
    if feature in names:
        return names.index(feature), str(feature)
    if isinstance(feature, str) or not 0 <= int(feature) < estimator.n_features_in_:
        there = ", ".join(names) or f"numbers from 0 to {estimator.n_features_in_ - 1}"
        raise InvalidInput(f"There is no feature {feature!r}; there are {there}.")
    return int(feature), names[int(feature)] if names else f"feature {int(feature)}"


def _like_fitted(estimator: FederatedEstimator, inputs: np.ndarray) -> Any:
    """With column names where the estimator was fitted with them: else scikit-learn warns."""
    if not hasattr(estimator, "feature_names_in_"):
        return inputs
    import pandas as pd

    return pd.DataFrame(inputs, columns=estimator.feature_names_in_)


def _prepare(ax: Axes | None, theme: str) -> tuple[Axes, tuple[str, ...]]:
    check_choice("A plot", "theme", theme, ("auto", *THEMES))
    if ax is None:
        import matplotlib.pyplot as plt

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
    for part in (ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title):  # type: ignore[attr-defined]
        part.set_color(ink)
    for spine in ax.spines.values():
        spine.set_edgecolor(ink)
    return ax, colours


def _finished(ax: Axes) -> Axes:
    """Without a box, and with a legend in the ink of the axes."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.legend(frameon=False, fontsize="small", labelcolor=ax.xaxis.label.get_color())
    return ax
