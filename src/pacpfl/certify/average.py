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
from dataclasses import dataclass

import numpy as np

from pacpfl.bounds import Condition, ServerPremises, new_client_bound, particle_cloud_kl
from pacpfl.bounds.conditions import Bound
from pacpfl.bounds.losses import monte_carlo_upper
from pacpfl.certify.certificate import (
    CHOICES_INDEPENDENT,
    CLIENTS_INDEPENDENT,
    MONTE_CARLO_SHARE,
    SAMPLES_INDEPENDENT,
    Certificate,
    certify_federation,
)
from pacpfl.certify.clients import Family, beta_grid, scaling_condition

BANDWIDTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
PILOT_DRAWS = 24
# Each lambda is the best one for that many nats of divergence and confidence together.
NEWCOMER_NATS = (10.0, 100.0, 1000.0, 10000.0)
NEW_LIKE_EXISTING = Condition(
    "new clients like the existing ones",
    "assumed",
    "clients and their sample sizes are taken as draws from one distribution",
    "world",
)


@dataclass(frozen=True)
class AverageCertificates:
    """The two certificates, and how the numbers in them were found."""

    federation: Certificate
    newcomers: Certificate
    bandwidth: float
    kl: float
    mean: float
    standard_error: float


@dataclass(frozen=True)
class Drawn:
    """What was drawn under the hyper-posterior, for each beta: E ln Z from below, and risks."""

    family: Family
    betas: np.ndarray
    log_evidences: np.ndarray  # [beta, clients]
    risks: np.ndarray  # [beta]
    kl: float  # of the hyper-posterior, at most
    cloud: Condition
    for_draws: float  # the part of delta that pays for them
    for_bounds: float

    def premises(self, beta: float, choices: int, lambda_: float = math.inf) -> ServerPremises:
        """Return the premises of one of so many bounds: each fails with an equal part of delta."""
        loss, clients = self.family.loss, self.family.trained.federation.existing
        return ServerPremises(
            betas=[beta] * len(clients),
            samples=[len(client.train) for client in clients],
            a=loss.a,
            b=loss.b,
            delta=self.for_bounds / choices,
            later=[0 if client.later is None else len(client.later) for client in clients],
            lambda_=lambda_,
            upsilon=self.family.trained.config.train.upsilon,
        )

    def federation(self) -> tuple[int, Certificate]:
        """Return the tightest server-level bound, and the place of its beta."""
        count = len(self.betas)
        rest = {"draws": self.for_draws, "choice of beta": self.for_bounds * (1 - 1 / count)}
        found = [
            certify_federation(
                self.family.loss, log_evidence, self.kl, float(risk),
                self.premises(float(beta), count), self.cloud, other_failures=rest,
            )
            for beta, log_evidence, risk in zip(
                self.betas, self.log_evidences, self.risks, strict=True
            )
        ]  # fmt: skip
        best = int(np.argmin([certificate.bound for certificate in found]))
        return best, found[best]

    def newcomers(self) -> Certificate:
        """Return the tightest new-client bound."""
        loss, form = self.family.loss, self.family.trained.federation.form
        weight = form.later + self.family.trained.config.train.upsilon
        options: list[tuple[Bound, int]] = []
        choices = len(self.betas) * len(NEWCOMER_NATS)
        for place, beta in enumerate(self.betas):
            for nats in NEWCOMER_NATS:
                lambda_ = weight * math.sqrt(8 * form.clients * nats) / loss.width
                premises = self.premises(float(beta), choices, lambda_)
                options.append(
                    (new_client_bound(self.log_evidences[place], self.kl, premises), place)
                )
        bound, place = min(options, key=lambda option: option[0].value)
        return Certificate(
            subject="clients yet to come",
            loss=loss,
            posterior="Gibbs posteriors, average over new clients",
            empirical_risk=float(self.risks[place]),
            bound=bound.value,
            terms=bound.terms,
            delta=self.for_bounds + self.for_draws,
            delta_split={"bound": self.for_bounds, "draws": self.for_draws},
            beta=float(self.betas[place]),
            betas=tuple(map(float, self.betas)),
            conditions=(
                self.cloud,
                NEW_LIKE_EXISTING,
                SAMPLES_INDEPENDENT,
                CLIENTS_INDEPENDENT,
                CHOICES_INDEPENDENT,
            ),
        )


def certify_average(family: Family, delta: float) -> AverageCertificates:
    """Return server-level and new-client bounds for the particles with noise."""
    trained, loss, pairs = family.trained, family.loss, family.pairs
    sizes = [len(client.train) for client in trained.federation.existing]
    betas = beta_grid(len(sizes) / sum(1 / m for m in sizes), loss.width)
    prior = trained.method.hyper_prior(trained.dtype)
    mean, std = (np.asarray(a, np.float64) for a in prior)
    particles = np.asarray(trained.particles, np.float64)
    divergences = [particle_cloud_kl(particles, c * std, mean, std).upper for c in BANDWIDTHS]
    # The choice of the noise is free, but its draws must not serve twice.
    pilot, final = np.random.SeedSequence([7, trained.config.seed]).spawn(2)
    guesses = []
    for c, kl in zip(BANDWIDTHS, divergences, strict=True):
        values, _ = _draw(family, betas, c * std, PILOT_DRAWS, pilot)
        guesses.append(np.min(values.mean(0) + kl / (len(sizes) * betas)))
    choice = int(np.argmin(guesses))
    bandwidth, kl = BANDWIDTHS[choice], divergences[choice]
    values, risks = _draw(family, betas, bandwidth * std, pairs.draws, final)
    for_draws = MONTE_CARLO_SHARE * delta
    # -ln Z / beta itself never leaves [a, b].
    uppers = [
        min(loss.b, monte_carlo_upper(v, loss.a, pairs.largest, for_draws / len(betas)))
        for v in values.T
    ]
    log_evidences = np.repeat(-(betas * uppers)[:, None], len(sizes), axis=1)
    cloud = Condition(
        "hyper-posterior with a finite divergence",
        "holds",
        f"priors are the {len(particles)} particles with noise of {bandwidth:g} times the "
        f"hyper-prior's std added, not the bare particles; KL at most {kl:.4g} by convexity",
    )
    means = np.array([risk.mean() for risk in risks.T])
    drawn = Drawn(family, betas, log_evidences, means, kl, cloud, for_draws, delta - for_draws)
    best, federation = drawn.federation()
    # What is said of clients yet to come, too, rests on the existing ones' samples.
    scaling = scaling_condition(trained.config, "existing")
    return AverageCertificates(
        federation=federation.under(scaling),
        newcomers=drawn.newcomers().under(scaling),
        bandwidth=bandwidth,
        kl=kl,
        mean=float(values[:, best].mean()),
        standard_error=float(values[:, best].std(ddof=1) / math.sqrt(pairs.draws)),
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
        phi = particles[rng.integers(len(particles))] + std * rng.standard_normal(std.size)
        found.append(family.pairs.judge(phi, client, betas, rng))
    values, risks = zip(*found, strict=True)
    return np.array(values), np.array(risks)
