"""Scaling of features and target by each client's own TRAINING statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pacpfl.types import Client, Federation, Samples


@dataclass(frozen=True)
class Scaler:
    """(value - mean) / std, for every feature and for the target."""

    x_mean: np.ndarray
    x_std: np.ndarray
    y_mean: float
    y_std: float

    def __call__(self, samples: Samples) -> Samples:
        return Samples(
            (samples.x - self.x_mean) / self.x_std, (samples.y - self.y_mean) / self.y_std
        )

    def target(self, scaled: np.ndarray) -> np.ndarray:
        """Back to the target's own units (means and quantiles; a std only by `y_std`)."""
        return scaled * self.y_std + self.y_mean


def fit_scaler(train: Samples) -> Scaler:
    """From training samples alone. A target that never changes keeps its unit."""
    return Scaler(
        train.x.mean(0), train.x.std(0), float(train.y.mean()), float(train.y.std()) or 1.0
    )


def standardize_client(client: Client) -> Client:
    scale = fit_scaler(client.train)
    return replace(
        client,
        train=scale(client.train),
        later=None if client.later is None else scale(client.later),
        test=None if client.test is None else scale(client.test),
    )


def standardize_clients(federation: Federation) -> Federation:
    return replace(
        federation,
        existing=tuple(map(standardize_client, federation.existing)),
        new=tuple(map(standardize_client, federation.new)),
    )
