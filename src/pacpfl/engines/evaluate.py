"""Personalise every client and measure it on its own test data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from pacpfl import metrics, predictive
from pacpfl.data.store import ClientStore, from_samples
from pacpfl.engines.simulate import divide, to_device
from pacpfl.methods.base import Method
from pacpfl.types import Client, Data, Prediction, Samples

COVERAGES = (50, 90, 95)
QUANTILES = np.array([0.025, 0.05, 0.25, 0.75, 0.95, 0.975])


class Evaluation(NamedTuple):
    """Results of one method for one group of clients, a list entry or row per client."""

    rows: list[dict[str, float]]
    calibration: np.ndarray  # [clients, levels]
    means: list[np.ndarray]
    stds: list[np.ndarray]
    quantiles: list[np.ndarray]
    weights: np.ndarray | None  # [clients, k]
    responsibilities: np.ndarray | None  # [clients, K]


def evaluate(
    method: Method,
    state: Any,
    clients: Sequence[Client],
    *,
    client_states: Any = (),
    pool: Sequence[Client] = (),
    seed: int = 0,
    dtype: type = np.float32,
    matrices_per_client: int = 1,
) -> Evaluation:
    """Every client's own model, measured on its test samples.

    `pool` is whose data a central method (Pooled) sees; all clients then share its model.
    """
    tests = [client.test for client in clients]
    if any(test is None or not len(test) for test in tests):
        raise ValueError("every client needs test samples to be measured")
    test_store = from_samples([test for test in tests if test is not None])
    if method.central:
        owners = from_samples([_concatenate([client.personal for client in pool])])
    else:
        owners = from_samples([client.personal for client in clients])
    predictions, weights, responsibilities = _predict(
        method, state, client_states, owners, test_store, seed, dtype, matrices_per_client
    )
    rows, curves, means, stds, quantiles = [], [], [], [], []
    levels = metrics.calibration_levels()
    for index, client in enumerate(clients):
        assert client.test is not None
        count = len(client.test)
        own = Prediction(
            jnp.asarray(predictions.weights[index]),
            jnp.asarray(predictions.means[index][:, :count]),
            jnp.asarray(predictions.stds[index][:, :count]),
        )
        row, curve, mean, std, quantile = measure(own, client.test.y, levels)
        rows.append(row)
        curves.append(curve)
        means.append(mean)
        stds.append(std)
        quantiles.append(quantile)
    return Evaluation(rows, np.array(curves), means, stds, quantiles, weights, responsibilities)


@jax.jit
def _summary(
    prediction: Prediction, y: jax.Array, levels: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    return (
        predictive.mean(prediction),
        predictive.std(prediction),
        predictive.cdf(prediction, y),
        predictive.log_density(prediction, y),
        predictive.quantiles(prediction, levels),
    )


def measure(
    prediction: Prediction, y: np.ndarray, levels: np.ndarray
) -> tuple[dict[str, float], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Metrics of one client, its calibration curve, and its predictive mean, std and quantiles."""
    targets = jnp.asarray(y, prediction.means.dtype)
    mean, std, cdf, log_density, quantiles = map(
        np.asarray, _summary(prediction, targets, jnp.asarray(QUANTILES, targets.dtype))
    )
    row = {
        "rsmse": metrics.rsmse(y, mean),
        "ce": metrics.calibration_error(cdf, levels),
        "nll": float(-log_density.mean()),
    }
    for percent in COVERAGES:
        low = quantiles[np.searchsorted(QUANTILES, 0.5 - percent / 200 - 1e-9)]
        high = quantiles[np.searchsorted(QUANTILES, 0.5 + percent / 200 - 1e-9)]
        row[f"coverage_{percent}"] = metrics.coverage(y, low, high)
        row[f"width_{percent}"] = float(np.mean(high - low))
    return row, metrics.calibration_curve(cdf, levels), mean, std, quantiles


def _predict(
    method: Method,
    state: Any,
    client_states: Any,
    owners: ClientStore,
    tests: ClientStore,
    seed: int,
    dtype: type,
    matrices: int,
) -> tuple[Prediction, np.ndarray | None, np.ndarray | None]:
    """Predictions for all clients, block by block; personalised in the same compiled call."""
    key = jax.random.fold_in(jax.random.key(seed), 2)
    n = tests.clients
    longest = max(owners.longest, tests.longest)
    block = divide(n, longest, matrices, np.dtype(dtype).itemsize)[1]

    def one(client_state: Any, data: Data, x: jax.Array, client: jax.Array) -> Any:
        model = method.personalize(state, client_state, data, jax.random.fold_in(key, client))
        extra = (
            (model.weights, model.responsibilities()) if hasattr(model, "responsibilities") else None
        )
        return model(x), extra

    many = jax.jit(jax.vmap(one))
    shared = None
    if method.central:
        pooled = jax.tree.map(lambda a: a[0], to_device(owners.gather(np.array([0]), dtype)))
        shared = jax.jit(jax.vmap(jax.jit(method.personalize)(state, (), pooled, key)))
    parts = []
    for start in range(0, n, block):
        chosen = np.minimum(np.arange(start, start + block), n - 1)  # the last block may repeat
        x = to_device(tests.gather(chosen, dtype).x)
        if shared is not None:
            parts.append((shared(x), None))
            continue
        own = jax.tree.map(lambda a: a[chosen], client_states)  # noqa: B023
        parts.append(many(own, to_device(owners.gather(chosen, dtype)), x, chosen))
    whole = jax.tree.map(lambda *a: np.concatenate([np.asarray(b) for b in a])[:n], *parts)
    prediction, extra = whole
    if extra is None:
        return prediction, None, None
    weights, responsibilities = extra
    if responsibilities.shape[-1] == 1:
        return prediction, weights, None
    return prediction, weights, agree(responsibilities).mean(1)


def agree(responsibilities: np.ndarray) -> np.ndarray:
    """Particles number their base priors each in their own order; renumber them all like the first.

    [clients, k, K] -> the same, with each particle's columns permuted to overlap most.
    """
    aligned = responsibilities.copy()
    for particle in range(1, responsibilities.shape[1]):
        overlap = responsibilities[:, 0].T @ responsibilities[:, particle]
        _, order = linear_sum_assignment(-overlap)
        aligned[:, particle] = responsibilities[:, particle][:, order]
    return aligned


def _concatenate(parts: Sequence[Samples]) -> Samples:
    return Samples(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
