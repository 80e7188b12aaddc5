"""A world with finitely many hypotheses, priors and outcomes, where everything is a plain sum.

Nothing of the theorems comes from the package: Gibbs posteriors, Z^C, Z^S, Q*, true risks, later samples
and density ratios are written out, so that the theorems are tested against something else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax
from scipy.stats import beta as beta_distribution
from scipy.stats import multinomial


@dataclass(frozen=True)
class World:
    """J priors over H hypotheses, losses of H hypotheses on K outcomes, n clients."""

    hyper_prior: np.ndarray  # [J]
    priors: np.ndarray  # [J, H]
    losses: np.ndarray  # [H, K]
    data: np.ndarray  # [n, K]: the clients' distributions over outcomes
    samples: tuple[int, ...]  # m_i
    betas: tuple[float, ...]
    a: float = 0.0
    b: float = 1.0

    @property
    def clients(self) -> int:
        return len(self.samples)

    @property
    def true_risks(self) -> np.ndarray:
        """L(h, D_i), [n, H]."""
        return self.data @ self.losses.T


def random_world(
    rng: np.random.Generator,
    clients: int,
    samples: Sequence[int],
    betas: Sequence[float],
    a: float = 0.0,
    b: float = 1.0,
    priors: int = 4,
    hypotheses: int = 5,
    outcomes: int = 3,
) -> World:
    """Spiky random distributions and losses in [a, b], the ends included."""
    losses = rng.uniform(a, b, (hypotheses, outcomes))
    losses[rng.random(losses.shape) < 0.3] = a
    losses[rng.random(losses.shape) < 0.3] = b
    hyper_prior = rng.dirichlet(np.ones(priors))
    chances = rng.dirichlet(np.full(hypotheses, 0.5), priors)
    data = rng.dirichlet(np.ones(outcomes), clients)
    return World(hyper_prior, chances, losses, data, tuple(samples), tuple(betas), a, b)


def sure_world(
    losses: np.ndarray, data: np.ndarray, samples: Sequence[int], betas: Sequence[float], b: float
) -> World:
    """Prior j is sure of hypothesis j, and no prior is likelier than another."""
    faces = len(losses)
    even = np.full(faces, 1 / faces)
    return World(even, np.eye(faces), losses, data, tuple(samples), tuple(betas), 0.0, b)


def coin_world(
    clients: int, samples: int, beta: float, width: float = 1.0, faces: int = 1
) -> World:
    """Fair coins: hypothesis j loses `width` where face j comes up, each with probability 1/2.

    Losses of the largest possible variance, so that the deviation terms are nearly tight.
    All faces are independent (2^faces outcomes).
    """
    outcomes = np.array(list(itertools.product((0.0, width), repeat=faces)))
    data = np.full((clients, len(outcomes)), 1 / len(outcomes))
    return sure_world(outcomes.T.copy(), data, (samples,) * clients, (beta,) * clients, width)


def draw(world: World, rng: np.random.Generator, repetitions: int) -> np.ndarray:
    """How often each outcome occurs in each client's S_i: [R, n, K]."""
    counts = [
        rng.multinomial(m, p, repetitions) for m, p in zip(world.samples, world.data, strict=True)
    ]
    return np.stack(counts, axis=1)


def data_sets(outcomes: int, size: int) -> np.ndarray:
    """All count vectors of `size` samples: [*, K]."""
    rows = [
        np.bincount(np.array(choice, dtype=int), minlength=outcomes)
        for choice in itertools.combinations_with_replacement(range(outcomes), size)
    ]
    return np.array(rows).reshape(len(rows), outcomes)


def data_set_probability(counts: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """Multinomial probability of count vectors, [*, K] -> [*]."""
    return np.asarray(multinomial.pmf(counts, counts[0].sum(), distribution))


def evidence(world: World, counts: np.ndarray, beta: float) -> np.ndarray:
    """Z_beta(P_j, S) for count vectors [..., K] -> [..., J]."""
    average = counts @ world.losses.T / counts.sum(axis=-1, keepdims=True)
    return np.exp(-beta * average) @ world.priors.T


def gibbs(world: World, counts: np.ndarray, beta: float) -> np.ndarray:
    """Q*(P_j, S)(h): [..., K] -> [..., J, H]."""
    average = counts @ world.losses.T / counts.sum(axis=-1, keepdims=True)
    weights = world.priors * np.exp(-beta * average)[..., None, :]
    return weights / weights.sum(axis=-1, keepdims=True)


def log_evidences(world: World, counts: np.ndarray) -> np.ndarray:
    """ln Z_{beta_i}(P_j, S_i): [R, n, K] -> [R, n, J]."""
    parts = [np.log(evidence(world, counts[:, i], beta)) for i, beta in enumerate(world.betas)]
    return np.stack(parts, axis=1)


def optimum(world: World, counts: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Q*(P_j) and Z^S_tau: [R, n, K] -> [R, J], [R]."""
    weights = world.hyper_prior * np.exp(tau * log_evidences(world, counts).sum(axis=1))
    partition = weights.sum(axis=1)
    return weights / partition[:, None], partition


def divergence(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """KL(q || p) over the last axis, with 0 ln 0 = 0."""
    ratio = np.where(q > 0, q / p, 1.0)
    return np.sum(q * np.log(ratio), axis=-1)


def risks(world: World, counts: np.ndarray, later: Sequence[int]) -> np.ndarray:
    """E_{S~_i} L(Q*(P_j, S_i u S~_i), D_i), summed over all S~_i: [R, n, K] -> [R, n, J]."""
    columns = []
    for i, size in enumerate(later):
        extra = data_sets(world.data.shape[1], size)
        chances = data_set_probability(extra, world.data[i])
        total = sum(
            chance * (gibbs(world, counts[:, i] + more, world.betas[i]) @ world.true_risks[i])
            for chance, more in zip(chances, extra, strict=True)
        )
        columns.append(total)
    return np.stack(columns, axis=1)


def failures_at_most(failed: np.ndarray, delta: float) -> bool:
    """Is a failure probability of at most delta certain to 99.9% (Clopper-Pearson)?"""
    k, n = int(np.sum(failed)), failed.size
    return bool(beta_distribution.ppf(0.999, k + 1, n - k) <= delta)


def failures_above(failed: np.ndarray, delta: float) -> bool:
    """Is a failure probability above delta certain to 99.9% (Clopper-Pearson)?"""
    k, n = int(np.sum(failed)), failed.size
    return k > 0 and bool(beta_distribution.ppf(0.001, k, n - k + 1) > delta)


def minimiser(
    value: Callable[[np.ndarray], float], least: float, rng: np.random.Generator, size: int
) -> tuple[np.ndarray, float]:
    """Check that no distribution has a value below `least`; return scipy's best one, and its value."""
    for q in rng.dirichlet(np.ones(size), 300):
        assert value(q) >= least
    found = minimize(lambda x: value(softmax(x)), np.zeros(size), method="BFGS", tol=1e-12)
    assert found.fun >= least - 1e-12
    return softmax(found.x), float(found.fun)
