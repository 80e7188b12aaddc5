"""A particle of Gaussian processes, and a few samples in more slots than there are samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data


def small(features: int, **settings: Any) -> GPPrior:
    """A Gaussian process with these settings, whose networks are small."""
    widths: dict[str, Any] = {"mean_widths": (3,), "kernel_widths": (4, 3), "noise_widths": (3,)}
    return GPPrior(features, GPSettings(**widths | settings))


def make_particle(prior: GPPrior, seed: int = 0) -> np.ndarray:
    phi = 0.7 * np.random.default_rng(seed).normal(size=prior.size)
    phi[-1] = -0.5  # the noise
    return phi


def make_samples(features: int, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=count)


def padded(x: np.ndarray, y: np.ndarray, slots: int) -> Data:
    """The samples in random slots, in their order, and in the others what nobody may look at."""
    chosen = np.sort(np.random.default_rng(2).choice(slots, len(y), replace=False))
    all_x, all_y = np.full((slots, x.shape[1]), 50.0), np.full(slots, np.nan)
    all_x[chosen], all_y[chosen] = x, y
    return Data(all_x, all_y, np.isin(np.arange(slots), chosen))
