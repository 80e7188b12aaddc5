"""Plots show what is predicted, in colours that can be read on both backgrounds."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from pacpfl import PACPFLClassifier, PACPFLRegressor, metrics
from pacpfl.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:PACPFL.* is fitted without groups")

QUICK = {"rounds": 0, "particles": 1, "precision": "float64", "random_state": 0}


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    x = random.normal(size=(20, 2))
    return x, 10 + x[:, 1] + 0.2 * random.normal(size=20), np.array(["p", "q"])[np.arange(20) % 2]


@pytest.fixture(scope="module")
def regressor() -> PACPFLRegressor:
    x, y, groups = table()
    return PACPFLRegressor(**QUICK, mean="linear", kernel="ard").fit(x, y, groups)


@pytest.fixture(scope="module")
def classifier() -> PACPFLClassifier:
    x, y, _ = table()
    frame = pd.DataFrame(x, columns=["age", "weight"])
    labels = np.where(y > 10, "heavy", "light")
    return PACPFLClassifier(**QUICK, networks=2, widths=(4,)).fit(frame, labels)


@pytest.fixture(autouse=True)
def agg(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def curve(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = (line for line in ax.get_lines() if line.get_label() == label)
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_the_band_is_the_clients_prediction_along_a_feature(regressor):
    x, y, groups = table()
    ax = regressor.plot_predictions("q", feature=1, points=30)
    along, mean = curve(ax, "mean")
    own = x[groups == "q"]
    inputs = np.column_stack([np.full(30, np.median(own[:, 0])), along])
    np.testing.assert_allclose(mean, regressor.predict(inputs, ["q"] * 30))
    assert along[0] < own[:, 1].min() < own[:, 1].max() < along[-1]
    at, values = curve(ax, "rows")
    np.testing.assert_array_equal(at, own[:, 1])
    np.testing.assert_array_equal(values, y[groups == "q"])
    bands = {band.get_label(): band.get_paths()[0].vertices for band in ax.collections}
    assert set(bands) == {"90% interval", "50% interval"}
    quantiles = regressor.predict_quantiles(inputs, [0.05, 0.95], ["q"] * 30)
    assert bands["90% interval"][:, 1].min() == pytest.approx(quantiles.min())
    assert bands["90% interval"][:, 1].max() == pytest.approx(quantiles.max())
    assert ax.get_xlabel() == "feature 1"


def test_the_classes_are_drawn_with_their_probabilities(classifier):
    ax = classifier.plot_predictions(feature="weight")
    _, light = curve(ax, "light")
    _, heavy = curve(ax, "heavy")
    np.testing.assert_allclose(light + heavy, 1)
    assert ax.get_xlabel() == "weight"


def test_calibration_of_a_number(regressor):
    x, y, groups = table()
    ax = regressor.plot_calibration(x, y + 1, groups)
    levels, shares = curve(ax, "predictions")
    for level, share in zip(levels[1:-1], shares[1:-1], strict=True):
        below = y + 1 <= regressor.predict_quantiles(x, [level], groups)[:, 0]
        assert share == pytest.approx(below.mean())
    assert ax.get_title("left") == f"Calibration error {np.mean(np.abs(shares - levels)):.3f}"


def test_calibration_of_classes(classifier):
    x, y, _ = table()
    frame = pd.DataFrame(x, columns=["age", "weight"])
    labels = np.where(y > 10, "heavy", "light")
    ax = classifier.plot_calibration(frame, labels)
    said, right = curve(ax, "predictions")
    numbers = (labels == "light").astype(int)
    probabilities = classifier.predict_proba(frame)
    error = metrics.classification_calibration_error(probabilities, numbers, 10)
    assert f"{error:.3f}" in ax.get_title("left")
    assert ((said >= 0.5) & (said <= 1) & (right >= 0) & (right <= 1)).all()


def luminance(colour: object) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: object, other: object) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", ["light", "dark", "default", "dark_background"])
def test_everything_can_be_read_on_light_and_dark(regressor, style):
    """The styles are matplotlib's, and what is drawn follows them; the themes are ours."""
    theme = style if style in ("light", "dark") else "auto"
    with plt.style.context(style if theme == "auto" else "default"):
        ax = regressor.plot_predictions("p", theme=theme)
    background = ax.get_figure().get_facecolor()
    assert (luminance(background) < 0.2) == style.startswith("dark")
    for line in ax.get_lines():
        assert contrast(line.get_color(), background) >= 3
    texts = [ax.xaxis.label, ax.yaxis.label, ax.get_xticklabels()[0], *ax.get_legend().get_texts()]
    for text in texts:
        assert contrast(text.get_color(), background) >= 4.5


def test_given_axes_are_used(regressor):
    figure, (left, right) = plt.subplots(1, 2)
    assert regressor.plot_predictions("p", ax=right) is right
    assert not left.get_lines()
    assert figure.axes == [left, right]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "There are 2 clients; name one, such as group='p'"),
        ({"group": "z"}, "'z' is not known"),
        ({"group": "p", "feature": "height"}, "There is no feature 'height'; there are numbers"),
        ({"group": "p", "feature": 2}, "no feature 2; there are numbers from 0 to 1"),
        ({"group": "p", "theme": "sepia"}, "theme = 'sepia' is not one of auto, light, dark"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(regressor, arguments, words):
    with pytest.raises(InputError, match=words):
        regressor.plot_predictions(**arguments)
