"""Linear regression at several clients, where every method's loss is a quadratic."""

from __future__ import annotations

import numpy as np

from pacpfl.types import Data

FEATURES = 2
START = np.array([0.4, -0.7, 0.2])  # slopes and intercept


def make_clients(slots: int, lengths: np.ndarray) -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(lengths), slots, FEATURES))
    y = (x @ rng.normal(size=(len(lengths), FEATURES, 1)))[..., 0] + 1.0
    return Data(x, y + 0.3 * rng.normal(size=y.shape), np.arange(slots) < lengths[:, None])


def curvatures(data: Data, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """H_i and the minimiser of L_i(w) = (w - w_i)^T H_i (w - w_i) / 2 + constant."""
    h, best = [], []
    for x, y, mask in zip(*data, strict=True):
        rows = np.c_[x, np.ones(len(x))][mask]
        h.append(rows.T @ rows / (len(rows) * noise**2))
        best.append(np.linalg.lstsq(rows, y[mask])[0])
    return np.array(h), np.array(best)
