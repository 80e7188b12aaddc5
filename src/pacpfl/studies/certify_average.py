"""Certificates for averages: the federation's clients, and clients yet to come.

Both theorems hold for every hyper-posterior at once, however it was found, so SVGD's particles need no
privacy here. But bare particles are infinitely far from the hyper-prior. The statements are therefore
about the particles WITH NOISE, Q = (1/k) sum_j N(phi_j, (c sigma)^2) with sigma the hyper-prior's stds:
its divergence is bounded by convexity, and c may be chosen after the fact. What is expected under Q
is drawn: pairs of a prior from Q and a client, with the price of the draws in the probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pacpfl.bounds import Condition, ServerPremises, new_client_bound, particle_cloud_kl
from pacpfl.bounds.bound import Bound
from pacpfl.certificate import (
    CHOICES_INDEPENDENT,
    CLIENTS_INDEPENDENT,
    MONTE_CARLO_SHARE,
    SAMPLES_INDEPENDENT,
    Certificate,
    certify_federation,
)
from pacpfl.losses import monte_carlo_upper
from pacpfl.studies import tempered
from pacpfl.studies.certify_clients import beta_grid, not_scaled
from pacpfl.studies.tempered import TEMPERATURES, Loss
from pacpfl.studies.trained import Trained
from pacpfl.studies.views import Views

BANDWIDTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
PILOT_DRAWS = 24
MOST_DRAWS = 600
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


def certify_average(trained: Trained, loss: Loss, delta: float) -> AverageCertificates:
    """Server-level and new-client bounds for the particles with noise."""
    clients = trained.federation.existing
    sizes = [len(client.train) for client in clients]
    views = Views(trained.method.prior, max(sizes), 0, trained.dtype)
    betas = beta_grid(len(sizes) / sum(1 / m for m in sizes), loss.range.width)
    prior = trained.method.hyper_prior(trained.dtype)
    mean, std = (np.asarray(a, np.float64) for a in prior)
    particles = np.asarray(trained.particles, np.float64)
    divergences = [particle_cloud_kl(particles, c * std, mean, std).upper for c in BANDWIDTHS]
    # The choice of the noise is free, but its draws must not serve twice.
    pilot, final = np.random.SeedSequence([7, trained.config.seed]).spawn(2)
    guesses = []
    for c, kl in zip(BANDWIDTHS, divergences, strict=True):
        values, _ = _draw(trained, loss, views, betas, c * std, PILOT_DRAWS, pilot)
        guesses.append(np.min(values.mean(0) + kl / (len(sizes) * betas)))
    choice = int(np.argmin(guesses))
    kl = divergences[choice]
    draws = int(np.clip(5e9 / max(sizes) ** 3, 64, MOST_DRAWS))
    values, risks = _draw(trained, loss, views, betas, BANDWIDTHS[choice] * std, draws, final)

    a, b = loss.range.a, loss.range.b
    for_draws = MONTE_CARLO_SHARE * delta
    uppers = [monte_carlo_upper(v, a, b, for_draws / len(betas)) for v in values.T]
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
                loss.range, evidence, kl, float(risk.mean()), premises, cloud, other_failures=rest
            )
        )
    best = int(np.argmin([certificate.bound for certificate in federation]))
    newcomers = _newcomers(trained, loss, betas, uppers, risks, kl, delta, for_draws, cloud)
    scaled = trained.config.data.standardize == "client"
    return AverageCertificates(
        federation=not_scaled(federation[best]) if scaled else federation[best],
        newcomers=not_scaled(newcomers) if scaled else newcomers,
        bandwidth=BANDWIDTHS[choice],
        kl=kl,
        draws=draws,
        mean=float(values[:, best].mean()),
        standard_error=float(values[:, best].std(ddof=1) / math.sqrt(draws)),
    )


def _premises(
    trained: Trained, loss: Loss, beta: float, delta: float, lambda_: float = math.inf
) -> ServerPremises:
    clients = trained.federation.existing
    return ServerPremises(
        betas=[beta] * len(clients),
        samples=[len(client.train) for client in clients],
        a=loss.range.a,
        b=loss.range.b,
        delta=delta,
        later=[0 if client.later is None else len(client.later) for client in clients],
        lambda_=lambda_,
        upsilon=trained.config.train.upsilon,
    )


def _draw(
    trained: Trained,
    loss: Loss,
    views: Views,
    betas: np.ndarray,
    std: np.ndarray,
    count: int,
    seed: np.random.SeedSequence,
) -> tuple[np.ndarray, np.ndarray]:
    """For independent pairs (prior from Q, client): -ln Z / beta from above, and the posterior's
    empirical risk; one row per pair, one column per beta."""
    rng = np.random.default_rng(seed)
    clients, particles = trained.federation.existing, np.asarray(trained.particles, np.float64)
    values, risks = [], []
    for _ in range(count):
        client = clients[rng.integers(len(clients))]
        phi = particles[rng.integers(len(particles))] + std * rng.standard_normal(std.size)
        inner, spectrum = views.spectrum(jnp.asarray(phi[None], trained.dtype), client.train)
        kl = tempered.divergence(spectrum, TEMPERATURES)
        moments = tempered.at_samples(spectrum, TEMPERATURES)
        risk = tempered.risks(loss, moments, client.train.y, spectrum.noise_std)
        best = tempered.tightest(inner[0], risk, kl, betas)
        values.append(-best.log_evidence / betas)
        risks.append(best.risk)
    # Clipping to [a, b] keeps it a bound: ln Z never leaves [-beta b, -beta a].
    return np.clip(values, loss.range.a, loss.range.b), np.array(risks)


def _newcomers(
    trained: Trained,
    loss: Loss,
    betas: np.ndarray,
    uppers: list[float],
    risks: np.ndarray,
    kl: float,
    delta: float,
    for_draws: float,
    cloud: Condition,
) -> Certificate:
    clients = trained.federation.existing
    n, width = len(clients), loss.range.width
    n_2 = sum(client.later is not None for client in clients)
    options: list[tuple[Bound, int]] = []
    share = (delta - for_draws) / (len(betas) * len(NEWCOMER_NATS))
    for place, (beta, upper) in enumerate(zip(betas, uppers, strict=True)):
        for nats in NEWCOMER_NATS:
            lambda_ = (n_2 + trained.config.train.upsilon) * math.sqrt(8 * n * nats) / width
            premises = _premises(trained, loss, float(beta), share, lambda_)
            options.append((new_client_bound(np.full(n, -beta * upper), kl, premises), place))
    bound, place = min(options, key=lambda option: option[0].value)
    who = "the average client yet to come"
    if bound.value >= loss.range.b:
        verdict = (
            f"No statement: the bound {bound.value:.4g} for {who} is not below {loss.range.b:g}, "
            f"the largest value of the loss ({loss.range.name}); a given newcomer has its own."
        )
    else:
        verdict = (
            f"With probability at least {1 - delta:.6g}, {who} has an expected loss "
            f"({loss.range.name}) of at most {bound.value:.4g}."
        )
    return Certificate(
        subject="clients yet to come",
        loss=loss.range,
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
        verdict=verdict,
    )
