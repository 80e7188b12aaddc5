"""Certificates for averages: the federation's clients, and clients yet to come.

Both theorems hold for every hyper-posterior at once, however it was found, so SVGD's particles need no
privacy here. But bare particles are infinitely far from the hyper-prior. The statements are therefore
about the particles WITH NOISE, Q = (1/k) sum_j N(phi_j, (c sigma)^2) with sigma the hyper-prior's stds:
its divergence is bounded by convexity, and c may be chosen after the fact. What is expected under Q
is drawn: pairs of a prior from Q and a client, with the price of the draws in the probability.

A pair's value is an upper bound on -ln Z / beta, which for every posterior is L^ + KL / beta, L^ its risk
on the client's samples. Gaussian processes have both in closed form; where the posterior is a Gaussian
over networks, the risk of drawn ones stands for L^, whose expectation it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pacpfl.bounds import Condition, ServerPremises, new_client_bound, particle_cloud_kl
from pacpfl.bounds.conditions import Bound
from pacpfl.bounds.losses import LossRange, monte_carlo_upper
from pacpfl.certify.certificate import (
    CHOICES_INDEPENDENT,
    CLIENTS_INDEPENDENT,
    MONTE_CARLO_SHARE,
    SAMPLES_INDEPENDENT,
    Certificate,
    certify_federation,
)
from pacpfl.certify.clients import beta_grid
from pacpfl.trained import Trained

BANDWIDTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
PILOT_DRAWS = 24
# Each lambda is the best one for that many nats of divergence and confidence together.
NEWCOMER_NATS = (10.0, 100.0, 1000.0, 10000.0)


@dataclass(frozen=True)
class AverageCertificates:
    """The two certificates, and how the numbers in them were found."""

    federation: Certificate
    newcomers: Certificate
    bandwidth: float
    kl: float
    draws: int
    mean: float
    standard_error: float


class Pairs(NamedTuple):
    """The judge of pairs of a prior and a client (its place) at several betas.

    It returns -ln Z / beta from above, at most `largest`, and the empirical risk of the posterior that
    gives it.
    """

    judge: Callable[
        [np.ndarray, int, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]
    ]
    largest: float
    draws: int


def certify_average(
    trained: Trained, loss: LossRange, pairs: Pairs, delta: float
) -> AverageCertificates:
    """Return server-level and new-client bounds for the particles with noise."""
    clients = trained.federation.existing
    sizes = [len(client.train) for client in clients]
    betas = beta_grid(len(sizes) / sum(1 / m for m in sizes), loss.width)
    prior = trained.method.hyper_prior(trained.dtype)
    mean, std = (np.asarray(a, np.float64) for a in prior)
    particles = np.asarray(trained.particles, np.float64)
    divergences = [particle_cloud_kl(particles, c * std, mean, std).upper for c in BANDWIDTHS]
    # The choice of the noise is free, but its draws must not serve twice.
    pilot, final = np.random.SeedSequence([7, trained.config.seed]).spawn(2)
    guesses = []
    for c, kl in zip(BANDWIDTHS, divergences, strict=True):
        values, _ = _draw(trained, pairs, betas, c * std, PILOT_DRAWS, pilot)
        guesses.append(np.min(values.mean(0) + kl / (len(sizes) * betas)))
    choice = int(np.argmin(guesses))
    kl = divergences[choice]
    values, risks = _draw(trained, pairs, betas, BANDWIDTHS[choice] * std, pairs.draws, final)

    a, b = loss.a, loss.b
    for_draws = MONTE_CARLO_SHARE * delta
    # -ln Z / beta itself never leaves [a, b].
    uppers = [
        min(b, monte_carlo_upper(v, a, pairs.largest, for_draws / len(betas))) for v in values.T
    ]
    cloud = Condition(
        "hyper-posterior with a finite divergence",
        "holds",
        f"priors are the {len(particles)} particles with noise of {BANDWIDTHS[choice]:g} times the "
        f"hyper-prior's std added, not the bare particles; KL at most {kl:.4g} by convexity",
    )
    federation = []
    for beta, upper, risk in zip(betas, uppers, risks.T, strict=True):
        premises = _premises(trained, loss, float(beta), (delta - for_draws) / len(betas))
        evidence = np.full(len(sizes), -beta * upper)
        rest = {
            "draws": for_draws,
            "choice of beta": (delta - for_draws) * (1 - 1 / len(betas)),
        }
        federation.append(
            certify_federation(
                loss, evidence, kl, float(risk.mean()), premises, cloud, other_failures=rest
            )
        )
    best = int(np.argmin([certificate.bound for certificate in federation]))
    newcomers = _newcomers(trained, loss, betas, uppers, risks, kl, delta, for_draws, cloud)
    return AverageCertificates(
        federation=federation[best],
        newcomers=newcomers,
        bandwidth=BANDWIDTHS[choice],
        kl=kl,
        draws=pairs.draws,
        mean=float(values[:, best].mean()),
        standard_error=float(values[:, best].std(ddof=1) / math.sqrt(pairs.draws)),
    )


def _premises(
    trained: Trained, loss: LossRange, beta: float, delta: float, lambda_: float = math.inf
) -> ServerPremises:
    clients = trained.federation.existing
    return ServerPremises(
        betas=[beta] * len(clients),
        samples=[len(client.train) for client in clients],
        a=loss.a,
        b=loss.b,
        delta=delta,
        later=[0 if client.later is None else len(client.later) for client in clients],
        lambda_=lambda_,
        upsilon=trained.config.train.upsilon,
    )


def _draw(
    trained: Trained,
    pairs: Pairs,
    betas: np.ndarray,
    std: np.ndarray,
    count: int,
    seed: np.random.SeedSequence,
) -> tuple[np.ndarray, np.ndarray]:
    """Values and risks of independent pairs (prior from Q, client): a row per pair, a column per
    beta."""
    rng = np.random.default_rng(seed)
    clients, particles = trained.federation.existing, np.asarray(trained.particles, np.float64)
    found = []
    for _ in range(count):
        client = int(rng.integers(len(clients)))
        phi = particles[rng.integers(len(particles))] + std * rng.standard_normal(std.size)
        found.append(pairs.judge(phi, client, betas, rng))
    values, risks = zip(*found, strict=True)
    return np.array(values), np.array(risks)


def _newcomers(
    trained: Trained,
    loss: LossRange,
    betas: np.ndarray,
    uppers: list[float],
    risks: np.ndarray,
    kl: float,
    delta: float,
    for_draws: float,
    cloud: Condition,
) -> Certificate:
    clients = trained.federation.existing
    n, width = len(clients), loss.width
    n_2 = sum(client.later is not None for client in clients)
    options: list[tuple[Bound, int]] = []
    share = (delta - for_draws) / (len(betas) * len(NEWCOMER_NATS))
    for place, (beta, upper) in enumerate(zip(betas, uppers, strict=True)):
        for nats in NEWCOMER_NATS:
            lambda_ = (n_2 + trained.config.train.upsilon) * math.sqrt(8 * n * nats) / width
            premises = _premises(trained, loss, float(beta), share, lambda_)
            options.append((new_client_bound(np.full(n, -beta * upper), kl, premises), place))
    bound, place = min(options, key=lambda option: option[0].value)
    return Certificate(
        subject="clients yet to come",
        loss=loss,
        posterior="Gibbs posteriors, average over new clients",
        empirical_risk=float(risks[:, place].mean()),
        bound=bound.value,
        terms=bound.terms,
        delta=delta,
        delta_split={"bound": delta - for_draws, "draws": for_draws},
        beta=float(betas[place]),
        betas=tuple(map(float, betas)),
        conditions=(
            cloud,
            Condition(
                "new clients like the existing ones",
                "assumed",
                "clients and their sample sizes are taken as draws from one distribution",
                "world",
            ),
            SAMPLES_INDEPENDENT,
            CLIENTS_INDEPENDENT,
            CHOICES_INDEPENDENT,
        ),
    )
