"""The certificate of the federation's average.

The theorem holds for every hyper-posterior at once, however it was found, so SVGD's particles need no
privacy here. But bare particles are infinitely far from the hyper-prior. The statement is therefore
about the particles WITH NOISE, Q = (1/k) sum_j N(phi_j, (c sigma)^2) with sigma the hyper-prior's stds:
its divergence is bounded by convexity, and c may be chosen after the fact. What is expected under Q
is drawn: pairs of a prior from Q and a client, with the price of the draws in the probability.

A pair's value is an upper bound on -ln Z / beta, which for every posterior is L^ + KL / beta, L^ its risk
on the client's samples. Gaussian processes have both in closed form; where the posterior is a Gaussian
over networks, the risk of drawn ones stands for L^, whose expectation it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pacpfl.bounds import Condition, ServerPremises, betting_bound, particle_cloud_kl
from pacpfl.certify.certificate import MONTE_CARLO_SHARE, Certificate, certify_federation
from pacpfl.certify.clients import Family, beta_grid, scaling_condition

BANDWIDTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
PILOT_DRAWS = 24


@dataclass(frozen=True)
class AverageCertificate:
    """The certificate of the federation's average, and how the numbers in it were found."""

    federation: Certificate
    bandwidth: float
    kl: float
    mean: float
    standard_error: float


def certify_average(family: Family, delta: float) -> AverageCertificate:
    """Return the server-level bound for the particles with noise."""
    trained, loss = family.trained, family.loss
    clients, upsilon = trained.federation.existing, trained.config.train.upsilon
    n, sizes = len(clients), [len(client.train) for client in clients]
    later = [0 if client.later is None else len(client.later) for client in clients]
    betas = beta_grid(n / sum(1 / m for m in sizes), loss.width)
    prior = trained.method.hyper_prior(trained.dtype)
    particles = np.asarray(trained.particles, np.float64)
    mean, std = (np.broadcast_to(np.asarray(a, np.float64), particles.shape) for a in prior)
    # By convexity each particle may be held against its own part of a mixture; where nothing is spread
    # they are equal, and any equal stds give the divergence of 0.
    spread, free = np.where(std > 0, std, 1.0), std > 0
    divergences = [
        particle_cloud_kl(particles, np.where(free, c * std, 1.0), mean, spread).upper
        for c in BANDWIDTHS
    ]
    # The choice of the noise is free, but its draws must not serve twice.
    pilot, final = np.random.SeedSequence([7, trained.config.seed]).spawn(2)
    guesses = []
    for c, kl in zip(BANDWIDTHS, divergences, strict=True):
        values, _ = _draw(family, betas, c * std, PILOT_DRAWS, pilot)
        guesses.append(np.min(values.mean(0) + kl / (n * betas)))
    choice = int(np.argmin(guesses))
    bandwidth, kl = BANDWIDTHS[choice], divergences[choice]
    values, risks = _draw(family, betas, bandwidth * std, family.pairs, final)
    for_draws = MONTE_CARLO_SHARE * delta
    for_bounds = delta - for_draws
    # -ln Z / beta itself never leaves [a, b].
    uppers = [
        min(loss.b, betting_bound(v, loss.a, family.largest, for_draws / len(betas)))
        for v in values.T
    ]
    cloud = Condition(
        "hyper-posterior with a finite divergence",
        "holds",
        f"priors are the {len(particles)} particles with noise of {bandwidth:g} times the "
        f"hyper-prior's std added, not the bare particles; KL at most {kl:.4g} by convexity",
    )

    # The best of bounds that each fail with an equal part of delta.
    share = for_bounds / len(betas)
    failures = {"draws": for_draws, "choice of beta": for_bounds - share}
    options = []
    for beta, upper, risk in zip(map(float, betas), uppers, risks.mean(0), strict=True):
        given = ServerPremises([beta] * n, sizes, loss.a, loss.b, share, later, math.inf, upsilon)
        options.append(
            certify_federation(
                loss,
                np.full(n, -beta * upper),
                kl,
                float(risk),
                given,
                cloud,
                other_failures=failures,
            )
        )
    best = int(np.argmin([option.bound for option in options]))
    scaling = scaling_condition(trained.config, "existing")
    return AverageCertificate(
        federation=options[best].under(scaling),
        bandwidth=bandwidth,
        kl=kl,
        mean=float(values[:, best].mean()),
        standard_error=float(values[:, best].std(ddof=1) / math.sqrt(family.pairs)),
    )


def _draw(
    family: Family, betas: np.ndarray, std: np.ndarray, count: int, seed: np.random.SeedSequence
) -> tuple[np.ndarray, np.ndarray]:
    """Draw values and risks of independent pairs (prior from Q, client): [pairs, beta]."""
    rng, trained = np.random.default_rng(seed), family.trained
    clients, particles = trained.federation.existing, np.asarray(trained.particles, np.float64)
    found = []
    for _ in range(count):
        client = int(rng.integers(len(clients)))
        place = rng.integers(len(particles))
        phi = particles[place] + std[place] * rng.standard_normal(std.shape[1])
        found.append(family.judge_pair(phi, client, betas, rng))
    values, risks = zip(*found, strict=True)
    return np.array(values), np.array(risks)
