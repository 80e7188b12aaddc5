"""A certificate for every client of a run.

The prior of a client is one of the k particles, drawn with equal chances; its posterior draws a
particle with weights of its own and then a function from that particle's Gaussian-process posterior.
The bound is for this randomised predictor, with the exact expectation of a bounded loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from pacpfl import hyper
from pacpfl.bounds import ClientPremises, Condition, mixture_kl, participation, sampling_epsilon
from pacpfl.bounds.checks import not_negative, probability
from pacpfl.bounds.entropy import participation_margin
from pacpfl.bounds.losses import LossRange
from pacpfl.bounds.privacy_cost import Unit
from pacpfl.certify import gaussian_processes as tempered
from pacpfl.certify.certificate import Candidate, Certificate, Privacy, certify_client
from pacpfl.certify.gaussian_processes import TEMPERATURES, Loss
from pacpfl.certify.views import Views, least_noise, weights_in_use
from pacpfl.data.store import from_samples
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import to_device
from pacpfl.studies.build import temperatures
from pacpfl.trained import Trained
from pacpfl.types import Client

# Each beta of the grid is the best one for that many nats of divergence and confidence together.
NATS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
DRAWS_ALONE = 8  # priors drawn from the hyper-prior, to tell what a client could do alone


@dataclass(frozen=True)
class ClientCertificate:
    """One client's certificate with what stands beside it.

    `certificate` is for the posterior with the tightest bound, `in_use` for the model the client
    predicts with (the run's temperature and mixture weights). Both hold at once: the theorem is for
    all posteriors at the same time, though each pays for its own draws where there are any. Test
    risks are measured, and None without test samples.
    """

    client: str
    group: str
    samples: int
    later: int
    privacy: Privacy
    certificate: Certificate
    temperature: float
    kl: float
    test_risk: float | None
    in_use: Certificate
    in_use_kl: float
    in_use_test_risk: float | None
    tolerated_epsilon: float
    participation: Condition
    margin: float
    margin_error: float
    networks_test_risk: float | None = None  # of networks in use that cannot be certified


def certify_clients(
    trained: Trained,
    loss: Loss,
    delta: float,
    epsilon: float | None = None,
    unit: Unit = "client",
    progress: Callable[[str], None] = lambda text: None,
) -> list[ClientCertificate]:
    """A certificate for every client, existing and new."""
    probability(delta)
    method, federation = trained.method, trained.federation
    everyone = [client for group in federation.groups().values() for client in group]
    tests = [client.test for client in everyone if client.test is not None]
    store = from_samples([client.personal for client in everyone])
    views = Views(method.prior, store.longest, max(map(len, tests), default=0), trained.dtype)
    key = Keys.of(trained.config.seed).certificates()
    alone = hyper.sample(key, method.hyper_prior(trained.dtype), DRAWS_ALONE)
    noise = least_noise(method.prior, trained.particles)
    found = []
    number = 0
    for group, clients in federation.groups().items():
        for client in clients:
            progress(client.name)
            width = loss.training_width(noise)
            privacy = privacy_of(trained, group, client, width, epsilon, unit)
            data = jax.tree.map(lambda a: a[0], store.gather(np.array([number]), trained.dtype))
            weights = weights_in_use(
                method.prior,
                method.mixture_weights,
                trained.particles,
                to_device(data),
                method.settings.temperature,
            )
            found.append(
                _certify(
                    client, group, trained, loss, delta, privacy, views, alone, np.asarray(weights)
                )
            )
            number += 1
    return found


def beta_grid(samples: float, width: float) -> np.ndarray:
    """beta = sqrt(8 m c) / (b - a) minimises c / beta + beta (b-a)^2 / (8m), for each c of NATS."""
    return np.sqrt(8 * samples * np.asarray(NATS)) / width


def privacy_of(
    trained: Trained,
    group: str,
    client: Client,
    width: float,
    epsilon: float | None,
    unit: Unit,
    bounded: str = "the bounded loss",
) -> Privacy:
    """How far the particles depend on this client's samples, and who vouches for it.

    `width` is how far the training's loss spreads where it is `bounded`.
    """
    if group == "new":
        return Privacy(
            "independent", "the client took no part in the training that made the particles"
        )
    if epsilon is not None:
        not_negative(epsilon, "epsilon")
        change = "all of this client's data" if unit == "client" else "one of its samples"
        reason = (
            f"given by hand: true if the training was that private towards a change of {change}, "
            "which nothing in the run folder proves"
        )
        return Privacy("assumed", reason, epsilon, unit)
    run = trained.spent
    if run is not None and run.private and (run.plan.mode, run.plan.unit) == ("laplace", "client"):
        spent = run.spent()
        replaces = spent.adjacency == "replace"
        doubled = "" if replaces else ", doubled because it was accounted for adding or removing"
        return Privacy(
            "proved",
            f"by the noise of the laplace mode, as the run's ledger records{doubled}",
            spent.epsilon * (1 if replaces else 2),
            "client",
        )
    m = len(client.train)
    beta = trained.config.train.temperature * m
    tau = temperatures(trained.config, trained.federation.form)["tau"]
    k = trained.method.settings.particles
    level = float(sampling_epsilon([beta], tau, width, [m], k)[0])
    return Privacy(
        "assumed",
        f"which {k} draws from Q* with {bounded} and tau = {tau:.3g} would have; particles "
        "come from SVGD without noise and from the unbounded likelihood, so the premise is "
        "assumed, not proved",
        level,
        "sample",
    )


def _certify(
    client: Client,
    group: str,
    trained: Trained,
    loss: Loss,
    delta: float,
    privacy: Privacy,
    views: Views,
    alone: jax.Array,
    used: np.ndarray,
) -> ClientCertificate:
    samples, m = client.personal, len(client.train)
    later = len(samples) - m
    a, b = loss.range.a, loss.range.b
    betas = beta_grid(len(samples), loss.range.width)
    inner, spectrum = views.spectrum(trained.particles, samples)
    prior = (inner / len(inner)).ravel()
    kl = tempered.divergence(spectrum, TEMPERATURES)
    own = tempered.at_samples(spectrum, TEMPERATURES)
    risk = tempered.risks(loss, own, samples.y, spectrum.noise_std)

    best = tempered.tightest(prior, risk, kl, betas)
    divergences = [
        float(mixture_kl(weights, prior, kl[place]))
        for place, weights in zip(best.place, best.weights, strict=True)
    ]
    options = [
        Candidate(float(beta), float(value), divergence)
        for beta, value, divergence in zip(betas, best.risk, divergences, strict=True)
    ]
    name = client.name
    spend: dict[str, Any] = {"m": m, "later": later, "privacy": privacy, "delta": delta}
    certificate = certify_client(name, loss.range, options, **spend, posterior="tempered posterior")
    chosen = certificate.betas.index(certificate.beta)
    place = int(best.place[chosen])
    run = np.array([trained.method.settings.temperature])
    used = used.astype(np.float64) / used.sum(dtype=np.float64)
    used_kl = float(mixture_kl(used, prior, tempered.divergence(spectrum, run)[0]))
    own = tempered.at_samples(spectrum, run)
    used_risk = float(used @ tempered.risks(loss, own, samples.y, spectrum.noise_std)[0])
    in_use = certify_client(
        name, loss.range, [Candidate(float(beta), used_risk, used_kl) for beta in betas], **spend,
        posterior="model in use",
    )  # fmt: skip

    def test_risk(temperature: np.ndarray, mixture: np.ndarray) -> float | None:
        if client.test is None:
            return None
        inputs = views.inputs(trained.particles, samples, client.test)
        moments = tempered.at_inputs(spectrum, inputs, temperature)
        each = tempered.risks(loss, moments, client.test.y, inputs.noise_std)
        return float(mixture @ each[0])

    beta = certificate.beta
    given = ClientPremises(
        beta, m, a, b, delta, later=later, epsilon=privacy.epsilon, unit=privacy.unit,
        choices=len(betas),
    )  # fmt: skip
    other_inner, other = views.spectrum(alone, samples)
    other_risk = tempered.risks(
        loss, tempered.at_samples(other, TEMPERATURES), samples.y, other.noise_std
    )
    after = evidences(inner, risk, kl, beta, b)
    before = evidences(other_inner, other_risk, tempered.divergence(other, TEMPERATURES), beta, b)
    constraint = (float(after.mean()), float(before.mean()), given)
    return ClientCertificate(
        client=name,
        group=group,
        samples=m,
        later=later,
        privacy=privacy,
        certificate=certificate,
        temperature=float(TEMPERATURES[place]),
        kl=divergences[chosen],
        test_risk=test_risk(TEMPERATURES[[place]], best.weights[chosen]),
        in_use=in_use,
        in_use_kl=used_kl,
        in_use_test_risk=test_risk(run, used),
        tolerated_epsilon=tolerated(betas, best.risk, divergences, delta, len(samples), loss.range),
        participation=participation(*constraint),
        margin=participation_margin(*constraint),
        margin_error=float(before.std(ddof=1) / math.sqrt(len(before)) / beta),
    )


def tolerated(
    betas: np.ndarray,
    risk: ArrayLike,
    kl: ArrayLike,
    delta: float,
    samples: int,
    loss: LossRange,
) -> float:
    """The nats that are left for the privacy cost before the bound reaches b, at the best beta."""
    left = betas * (loss.b - np.asarray(risk)) - np.asarray(kl) - math.log(len(betas) / delta)
    return max(0.0, float(np.max(left - betas**2 * loss.width**2 / (8 * samples))))


def evidences(
    inner: np.ndarray, risk: np.ndarray, kl: np.ndarray, beta: float, largest: float
) -> np.ndarray:
    """ln Z_beta of the bounded loss for each particle, from below; never less than -beta b.

    `inner` holds the weights of each particle's members; `risk` and `kl` have one row per posterior
    and one column per member of a particle.
    """
    shape = (len(risk), *inner.shape)
    found = [
        tempered.tightest(weights, r, d, np.array([beta])).log_evidence[0]
        for weights, r, d in zip(
            inner,
            np.moveaxis(risk.reshape(shape), 1, 0),
            np.moveaxis(kl.reshape(shape), 1, 0),
            strict=True,
        )
    ]
    return np.maximum(found, -beta * largest)
