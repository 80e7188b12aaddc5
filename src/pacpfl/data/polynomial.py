"""The paper's Polynomial data set: clients of two kinds, each drawn from its own Gaussian process.

A client of kind j has h ~ GP(p_j, s^2 k_j) with p_j a polynomial of order 7 and k_j a squared
exponential kernel of length l_j, and sees y = h(x) + noise at inputs x uniform on [-2, 2]. The paper
gives no coefficients; these are ours, in the Legendre basis of x / 2 and scaled to unit variance over
the interval, so that both kinds have targets of about unit size. With `opposite` the second kind's
mean is the negative of the first kind's: no single prior mean can serve both.
"""

from __future__ import annotations

import numpy as np

from pacpfl.types import Client, Federation, Samples

HALF_WIDTH = 2.0
COEFFICIENTS = np.array(
    [
        [0.0, 0.9, -0.5, -0.8, 0.6, 0.5, -0.3, 0.7],
        [0.2, -0.6, 0.9, 0.4, -0.9, 0.6, 0.5, -0.6],
    ]
)
LENGTHS = (0.5, 1.0)
AMPLITUDE = 0.3  # s: how far a client strays from its kind's polynomial


def kind_mean(kind: int, x: np.ndarray, opposite: bool = False) -> np.ndarray:
    """p_j(x), scaled to unit variance for x uniform on the interval."""
    coefficients = COEFFICIENTS[0] if opposite else COEFFICIENTS[kind]
    # For u uniform on [-1, 1] the Legendre polynomials are orthogonal with variance 1 / (2 d + 1).
    degrees = np.arange(1, len(coefficients))
    scale = np.sqrt(np.sum(coefficients[1:] ** 2 / (2 * degrees + 1)))
    value = np.polynomial.legendre.legval(x / HALF_WIDTH, coefficients) / scale
    return -value if opposite and kind == 1 else value


def polynomial(
    clients: int = 24,
    new_clients: int = 24,
    samples: int = 10,
    test_samples: int = 100,
    noise: float = 0.15,
    opposite: bool = False,
    seed: int = 0,
) -> Federation:
    """Draw clients; half of each group is of kind 0, half of kind 1 (in turn)."""

    def client(name: str, kind: int, seed: np.random.SeedSequence) -> Client:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-HALF_WIDTH, HALF_WIDTH, samples + test_samples)
        factor = np.linalg.cholesky(covariance(kind, x, x) + 1e-8 * np.eye(len(x)))
        h = kind_mean(kind, x, opposite) + factor @ rng.normal(size=len(x))
        y = h + noise * rng.normal(size=len(x))
        rows = x[:, None]
        train, test = Samples(rows[:samples], y[:samples]), Samples(rows[samples:], y[samples:])
        return Client(name, train, None, test, kind)

    def group(prefix: str, count: int, seeds: np.random.SeedSequence) -> tuple[Client, ...]:
        return tuple(
            client(f"{prefix}-{i:02d}", i % 2, s) for i, s in enumerate(seeds.spawn(count))
        )

    existing, new = np.random.SeedSequence([20250, seed]).spawn(2)
    return Federation(
        "polynomial", group("existing", clients, existing), group("new", new_clients, new)
    )


def covariance(kind: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """s^2 k_j between inputs."""
    distance = (left[:, None] - right[None, :]) / LENGTHS[kind]
    return np.asarray(AMPLITUDE**2 * np.exp(-0.5 * distance**2))
