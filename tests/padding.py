"""Samples in more slots than there are samples."""

from __future__ import annotations

import numpy as np

from pacpfl.types import Data


def padded(x: np.ndarray, y: np.ndarray, slots: int) -> Data:
    """The samples in random slots, in their order, and in the others what nobody may look at."""
    chosen = np.sort(np.random.default_rng(2).choice(slots, len(y), replace=False))
    all_x, all_y = np.full((slots, x.shape[1]), 50.0), np.full(slots, np.nan)
    all_x[chosen], all_y[chosen] = x, y
    return Data(all_x, all_y, np.isin(np.arange(slots), chosen))
