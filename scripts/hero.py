"""Draw the picture at the top of the README: what a new house gains, and how its band narrows.

    python scripts/hero.py     # about a minute; needs pacpfl[pv]; writes docs/assets/hero.svg and hero.json

Twenty-four houses with solar panels learn together in synthetic weather (`pacpfl.data.pv`, settings of
docs/results/regression). Twenty-four others join with their first ten hours of records. Left, for each of
these: the error of ridge regression on its ten hours, its penalty chosen by cross-validation, and of the
model that pacpfl makes of them. Right: what one of them predicts as its records arrive.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from sklearn.linear_model import RidgeCV

from pacpfl import PACPFLRegressor
from pacpfl.data.pv import pv
from pacpfl.data.weather import synthetic_weather
from pacpfl.types import Client

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
HOUSES, HOURS, FEW = 24, 150, 10
STAGES = (1, 10, 50)  # rows that the house on the right has
SHOWN = slice(100, 140)  # its test hours, ten a day
BLUE, GREY, RED, INK = "#00568a", "#8a949e", "#c4481c", "#20262c"


def error(predicted: np.ndarray, client: Client) -> float:
    """Return the error in units of the targets' spread."""
    return float(np.sqrt(np.mean((predicted - client.test.y) ** 2)) / np.std(client.test.y))


def alone(client: Client) -> float:
    """Return the error of ridge regression on a house's first hours."""
    x, y = client.train.x[:FEW], client.train.y[:FEW]
    scale = x.std(0) + 1e-6
    fitted = RidgeCV(np.logspace(-2, 3, 11)).fit(x / scale, y)
    return error(fitted.predict(client.test.x / scale), client)


def trained(clients: tuple[Client, ...], rounds: int) -> PACPFLRegressor:
    """Learn the priors from all houses of the city that took part."""
    model = PACPFLRegressor(
        mean="mlp", kernel="deep", tau=0.2, hyper_std=0.3, rounds=rounds, learning_rate=0.01,
        random_state=0,
    )  # fmt: skip
    owners = np.repeat([client.name for client in clients], [len(c.train) for c in clients])
    x, y = (np.concatenate([getattr(c.train, part) for c in clients]) for part in "xy")
    return model.fit(x, y, groups=owners)


def together(model: PACPFLRegressor, client: Client, rows: int) -> np.ndarray:
    """Return mean and 5%, 95% quantiles, [3, hours], of a newcomer's model from its first rows."""
    model.personalize(client.train.x[:rows], client.train.y[:rows], group=client.name)
    whose = [client.name] * len(client.test)
    mean = model.predict(client.test.x, groups=whose)
    band = model.predict_quantiles(client.test.x, [0.05, 0.95], groups=whose).T
    model.forget(client.name)
    return np.stack([mean, *band])


def dumbbells(axis: Axes, before: np.ndarray, after: np.ndarray) -> None:
    """Draw a line for each client from its error alone to its error together, the largest gain on top."""
    order = np.argsort(before - after)
    for place, client in enumerate(order):
        colour = BLUE if after[client] < before[client] else RED
        axis.plot([before[client], after[client]], [place, place], color=colour, lw=1.4, alpha=0.45)
    places = np.arange(len(order))
    axis.plot(before[order], places, "o", color=GREY, ms=4.5, label="alone: ridge regression")
    axis.plot(after[order], places, "o", color=BLUE, ms=5, label="with pacpfl")
    axis.set(yticks=[], xlabel="RSMSE on the following year (1: guessing the mean)", xlim=(0, None))
    gained = int((after < before).sum())
    axis.set_title(
        f"{gained} of {len(order)} new houses gain, with {FEW} hours of records", loc="left"
    )
    axis.legend(frameon=False, loc="lower right")


def band(axis: Axes, client: Client, said: np.ndarray, rows: int) -> float:
    """Draw a newcomer's predictions for some hours; return the share of all hours inside its band."""
    hours, (mean, low, high) = np.arange(SHOWN.stop - SHOWN.start), said[:, SHOWN]
    axis.fill_between(hours, low, high, color=BLUE, alpha=0.2, lw=0)
    axis.plot(hours, mean, color=BLUE, lw=1.4)
    axis.plot(hours, client.test.y[SHOWN], "o", color=INK, ms=2.2)
    inside = float(np.mean((said[1] <= client.test.y) & (client.test.y <= said[2])))
    records = f"{rows} hour{'s' * (rows > 1)} of records"
    width = float(np.mean(said[2] - said[1]))
    words = f"{records}: 90% band {width:.1f} kW wide, {inside:.0%} inside"
    axis.set_title(words, loc="left", fontsize=8.5)
    axis.set(ylabel="kW", xticks=range(0, len(hours) + 1, 10), xlim=(0, len(hours) - 1))
    return inside


def main(rounds: int = 300, out: Path = ASSETS) -> None:
    plt.rcParams |= {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
        "text.color": INK, "axes.edgecolor": GREY, "svg.hashsalt": "pacpfl",
    }  # fmt: skip
    federation = pv("EW", HOUSES, HOUSES, HOURS, "random", synthetic_weather(seed=0), seed=0)
    model = trained(federation.existing, rounds)
    before = np.array([alone(client) for client in federation.new])
    after = np.array([error(together(model, c, FEW)[0], c) for c in federation.new])
    figure = plt.figure(figsize=(10, 4.6), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(len(STAGES), 2, width_ratios=(1, 1.15), wspace=0.06)
    dumbbells(figure.add_subplot(grid[:, 0]), before, after)
    chosen = federation.new[0]
    axes = [figure.add_subplot(grid[row, 1]) for row in range(len(STAGES))]
    inside = [
        band(axis, chosen, together(model, chosen, rows), rows)
        for axis, rows in zip(axes, STAGES, strict=True)
    ]
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, top)
    axes[-1].set_xlabel(f"{chosen.name}: hours of daylight, four days of the following year")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "hero.svg", metadata={"Date": None})
    numbers = {
        "rounds": rounds, "rows": FEW, "alone": before.round(4).tolist(),
        "together": after.round(4).tolist(), "inside": np.round(inside, 3).tolist(),
    }  # fmt: skip
    (out / "hero.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    print(f"alone {before.mean():.3f}, together {after.mean():.3f}: {out / 'hero.svg'}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
