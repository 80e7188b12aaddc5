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

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl.bounds import Condition, ServerPremises, new_client_bound, particle_cloud_kl
from pacpfl.bounds.bound import Bound
from pacpfl.bounds.losses import monte_carlo_upper
from pacpfl.certify import gaussian_processes as tempered
from pacpfl.certify.certificate import (
    CHOICES_INDEPENDENT,
    CLIENTS_INDEPENDENT,
    MONTE_CARLO_SHARE,
    SAMPLES_INDEPENDENT,
    Certificate,
    certify_federation,
)
from pacpfl.certify.clients import beta_grid
from pacpfl.certify.gaussian_networks import ClassLoss, drawn_risks, fit, variational
from pacpfl.certify.gaussian_processes import TEMPERATURES, Loss
from pacpfl.certify.views import Views
from pacpfl.data.store import from_clients
from pacpfl.engine.rounds import to_device
from pacpfl.priors.bnn import BNNPrior
from pacpfl.trained import Trained
from pacpfl.types import Data

BANDWIDTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
PILOT_DRAWS = 24
MOST_DRAWS = 600
# Each lambda is the best one for that many nats of divergence and confidence together.
NEWCOMER_NATS = (10.0, 100.0, 1000.0, 10000.0)
# For networks: powers of the likelihood, networks drawn to choose one and then to judge it, pairs, and
# the largest KL / beta of a posterior in units of b - a (the draws need a bound on what they can be).
NETWORK_TEMPERATURES = (0.0, 0.25, 1.0)
NETWORKS_PER_PAIR = 16
MOST_NETWORK_PAIRS = 200
LARGEST_SHARE = 0.5


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
    """How a pair of a prior and a client (its place) is judged at several betas: -ln Z / beta from
    above, at most `largest`, and the empirical risk of the posterior that gives it."""

    judge: Callable[
        [np.ndarray, int, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]
    ]
    largest: float
    draws: int


def certify_average(trained: Trained, loss: Loss | ClassLoss, delta: float) -> AverageCertificates:
    """Server-level and new-client bounds for the particles with noise."""
    clients = trained.federation.existing
    sizes = [len(client.train) for client in clients]
    pairs = network_pairs(trained, loss) if isinstance(loss, ClassLoss) else gp_pairs(trained, loss)
    betas = beta_grid(len(sizes) / sum(1 / m for m in sizes), loss.range.width)
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

    a, b = loss.range.a, loss.range.b
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
                loss.range, evidence, kl, float(risk.mean()), premises, cloud, other_failures=rest
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
    trained: Trained, loss: Loss | ClassLoss, beta: float, delta: float, lambda_: float = math.inf
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


def gp_pairs(trained: Trained, loss: Loss) -> Pairs:
    """Pairs for Gaussian processes: nothing but the pairs themselves is drawn."""
    clients = trained.federation.existing
    longest = max(len(client.train) for client in clients)
    views = Views(trained.method.prior, longest, 0, trained.dtype)

    def judge(
        phi: np.ndarray, place: int, betas: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        samples = clients[place].train
        inner, spectrum = views.spectrum(jnp.asarray(phi[None], trained.dtype), samples)
        kl = tempered.divergence(spectrum, TEMPERATURES)
        moments = tempered.at_samples(spectrum, TEMPERATURES)
        risk = tempered.risks(loss, moments, samples.y, spectrum.noise_std)
        best = tempered.tightest(inner[0], risk, kl, betas)
        # Clipping to [a, b] keeps it a bound: ln Z never leaves [-beta b, -beta a].
        return np.clip(-best.log_evidence / betas, loss.range.a, loss.range.b), best.risk

    return Pairs(judge, loss.range.b, int(np.clip(5e9 / longest**3, 64, MOST_DRAWS)))


def network_pairs(trained: Trained, loss: ClassLoss) -> Pairs:
    """Pairs for networks. Some drawn networks choose the posterior's temperature at each beta, others
    then give its risk; their mean is L^ on average, so that a pair's value is right on average."""
    prior = trained.method.prior
    assert isinstance(prior, BNNPrior)
    family = variational(prior)
    store = from_clients(trained.federation.existing)
    powers = jnp.asarray(NETWORK_TEMPERATURES, trained.dtype)
    largest = LARGEST_SHARE * loss.range.width

    def judge(
        phi: np.ndarray, place: int, betas: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        data = Data(*to_device(store.gather(np.array([place]), trained.dtype)))
        particle = jnp.asarray(phi, trained.dtype)
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 1 + 2 * NETWORKS_PER_PAIR)
        posterior = fit(family, particle, data, powers, keys[0])
        (drawn,) = drawn_risks(family, loss, particle, posterior, (data,), keys[1:])
        halves = np.asarray(drawn, np.float64)[..., 0].reshape(2, NETWORKS_PER_PAIR, -1)
        pilot, judged = halves.mean(1)
        cost = posterior.divergence()[:, 0] / betas[:, None]  # [beta, temperature]
        best = np.argmin(np.where(cost <= largest, pilot + cost, np.inf), axis=1)
        risk = np.clip(judged[best], loss.range.a, loss.range.b)
        return risk + cost[np.arange(len(betas)), best], risk

    return Pairs(judge, loss.range.b + largest, min(MOST_NETWORK_PAIRS, MOST_DRAWS))


def _newcomers(
    trained: Trained,
    loss: Loss | ClassLoss,
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
