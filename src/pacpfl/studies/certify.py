"""From a run folder to certificates (docs/certificates.md). Nothing is printed or drawn here.

The prior of a client is one of the k particles, drawn with equal chances; its posterior draws a
particle with weights of its own and then a function from that particle's Gaussian-process posterior.
The bound is for this randomised predictor, with the exact expectation of a bounded loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl import config as configuration
from pacpfl import hyper
from pacpfl.bounds import ClientPremises, Condition, mixture_kl, participation, sampling_epsilon
from pacpfl.bounds.checks import not_negative, probability
from pacpfl.bounds.entropy import participation_margin
from pacpfl.bounds.privacy_cost import Unit
from pacpfl.certificate import Candidate, Certificate, Privacy, certify_client
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_clients, from_samples
from pacpfl.engines.checkpoint import load_checkpoint
from pacpfl.engines.simulate import to_device
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.mixture import MixturePrior
from pacpfl.studies import tempered
from pacpfl.studies.build import build_federation, build_method, temperatures
from pacpfl.studies.run import digest
from pacpfl.studies.tempered import TEMPERATURES, Loss, Spectrum
from pacpfl.types import Client, Data, Federation, Samples

# Each beta of the grid is the best one for that many nats of divergence and confidence together.
NATS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
DRAWS_ALONE = 8  # priors drawn from the hyper-prior, to tell what a client could do alone


@dataclass(frozen=True)
class Trained:
    """What a finished run left behind, in memory."""

    config: Config
    record: dict[str, Any]
    federation: Federation
    method: PACPFL
    particles: jax.Array  # [k, size]
    dtype: type


@dataclass(frozen=True)
class ClientCertificate:
    """One client's certificate with what stands beside it.

    `certificate` is for the posterior with the tightest bound, `in_use` for the model the client
    predicts with (temperature 1, the run's mixture weights). Both hold at once: the theorem is for
    all posteriors at the same time. Test risks are measured, and None without test samples.
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


def load_run(folder: Path) -> Trained:
    """Federation, method and particles of a complete run."""
    if not folder.is_dir():
        raise InputError(f"There is no run folder {folder}; give the folder a run has written.")
    if not (folder / "config.toml").is_file():
        raise InputError(f"{folder} holds no config.toml, so it is no run folder; give one.")
    config = configuration.load_file(folder / "config.toml")
    again = "start the same run again, it goes on where it stopped"
    if not (folder / "run.json").is_file():
        raise InputError(f"The run in {folder} is not complete (no run.json); {again}.")
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        status = record["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'run.json'} cannot be read ({error}); {again}.") from error
    if status != "complete":
        raise InputError(f"The run in {folder} is not complete (status {status!r}); {again}.")
    if "pacpfl" not in config.run.methods:
        raise InputError(f"The run in {folder} trained no particles: certify a run of pacpfl.")
    federation = build_federation(config)
    method = build_method("pacpfl", config, federation)
    assert isinstance(method, PACPFL)
    base_of(method.prior)
    store = from_clients(federation.existing)
    dtype = np.float64 if config.run.precision == "float64" else np.float32
    example = jax.tree.map(lambda a: a[0], to_device(store.gather(np.array([0]), dtype)))
    template = method.init(jax.random.fold_in(jax.random.key(config.seed), 0), example)
    name = configuration.identity(config, samples=digest(store))
    try:
        found = load_checkpoint(folder / "checkpoint.safetensors", (template, ()), name)
    except InputError as error:
        raise InputError(f"The run in {folder} has no particles to certify: {error}") from error
    if found is None or found.round < config.train.rounds:
        reached = "there is no checkpoint" if found is None else f"round {found.round}"
        raise InputError(f"The run in {folder} is not complete ({reached}); {again}.")
    particles = jnp.asarray(found.state[0].particles)
    return Trained(config, record, federation, method, particles, dtype)


def base_of(prior: Prior) -> GPPrior:
    """The Gaussian-process family behind a prior; others have no exact certificates."""
    base = prior.base if isinstance(prior, MixturePrior) else prior
    if not isinstance(base, GPPrior):
        raise InputError("Certificates are exact for Gaussian-process priors only: use such a run.")
    return base


class Views:
    """What priors say about samples, component by component; compiled once for all clients."""

    def __init__(self, prior: Prior, stores: list[ClientStore], dtype: type) -> None:
        self.prior, self.base, self.dtype = prior, base_of(prior), dtype
        self.longest = max(store.longest for store in stores)
        self._view = jax.jit(jax.vmap(self._one, (0, None, None)))

    def _one(self, phi: jax.Array, x: jax.Array, others: jax.Array) -> Any:
        if isinstance(self.prior, MixturePrior):
            log_weights, members = self.prior.split(phi)
        else:
            log_weights, members = jnp.zeros(1, phi.dtype), phi[None]

        def member(part: jax.Array) -> Any:
            base = self.base
            return (
                base.mean_function(part, x),
                base.covariance(part, x),
                jnp.sqrt(base.noise_variance(part)),
                base.mean_function(part, others),
                base.covariance(part, others, x),
                base.variance(part),
            )

        return jnp.exp(log_weights), *jax.vmap(member)(members)

    def __call__(
        self, particles: jax.Array, samples: Samples, others: Samples | None = None
    ) -> tuple[np.ndarray, Spectrum, tempered.Inputs]:
        """Prior weights [k, members] within each particle; the rest has k * members components."""
        others = samples if others is None else others
        m, t = len(samples), len(others)
        x, other_x = self._padded(samples.x), self._padded(others.x)
        parts = [np.asarray(a, np.float64) for a in self._view(particles, x, other_x)]
        weights, *rest = parts
        mean, kernel, noise, other_mean, cross, variance = (
            a.reshape(weights.size, *a.shape[2:]) for a in rest
        )
        spectrum = tempered.decompose(kernel[:, :m, :m], mean[:, :m], samples.y, noise)
        inputs = tempered.Inputs(other_mean[:, :t], cross[:, :t, :m], variance)
        return weights / weights.sum(1, keepdims=True), spectrum, inputs

    def _padded(self, x: np.ndarray) -> jax.Array:
        rows = max(self.longest, len(x))
        return jnp.asarray(np.pad(x, ((0, rows - len(x)), (0, 0))), self.dtype)


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
    views = Views(method.prior, [store, *([from_samples(tests)] if tests else [])], trained.dtype)
    key = jax.random.fold_in(jax.random.key(trained.config.seed), 3)
    alone = hyper.sample(key, method.hyper_prior(trained.dtype), DRAWS_ALONE)
    noise = _noise_stds(method.prior, trained.particles)
    personalize = jax.jit(lambda state, data: _in_use(method, state, data))
    found = []
    number = 0
    for group, clients in federation.groups().items():
        for client in clients:
            progress(client.name)
            privacy = privacy_of(trained, group, client, loss, noise, epsilon, unit)
            data = to_device(store.gather(np.array([number]), trained.dtype))
            weights = personalize(trained.particles, jax.tree.map(lambda a: a[0], data))
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
    loss: Loss,
    noise_std: np.ndarray,
    epsilon: float | None,
    unit: Unit,
) -> Privacy:
    """How far the particles depend on this client's samples, and who vouches for it."""
    if group == "new":
        return Privacy(
            "independent", "the client took no part in the training that made the particles"
        )
    if epsilon is not None:
        not_negative(epsilon, "epsilon")
        return Privacy(
            "assumed",
            "given by hand: true if the training was that private towards a change of this "
            f"{unit}'s data, which nothing in the run folder proves"
            if unit == "client"
            else "given by hand: true if the training was that private towards a change of one "
            "sample, which nothing in the run folder proves",
            epsilon,
            unit,
        )
    recorded = trained.record.get("methods", {}).get("pacpfl", {}).get("privacy") or {}
    if recorded.get("mode") == "laplace" and recorded.get("epsilon") is not None:
        replaces = recorded.get("adjacency", "replace") == "replace"
        level = float(recorded["epsilon"]) * (1 if replaces else 2)
        doubled = "" if replaces else ", doubled because it was accounted for adding or removing"
        return Privacy(
            "proved", f"by the noise of the laplace mode, as run.json records{doubled}", level,
            "client",
        )  # fmt: skip
    m = len(client.train)
    beta = trained.config.train.beta or float(m)
    tau = temperatures(trained.config, trained.federation)["tau"]
    k = trained.method.particles
    level = float(sampling_epsilon([beta], tau, loss.training_width(noise_std), [m], k)[0])
    return Privacy(
        "assumed",
        f"which {k} draws from Q* with the bounded loss and tau = {tau:.3g} would have; particles "
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
    weights_in_use: np.ndarray,
) -> ClientCertificate:
    samples, m = client.personal, len(client.train)
    later = len(samples) - m
    a, b = loss.range.a, loss.range.b
    betas = beta_grid(len(samples), loss.range.width)
    inner, spectrum, inputs = views(trained.particles, samples, client.test)
    prior = (inner / len(inner)).ravel()
    kl = tempered.divergence(spectrum, TEMPERATURES)
    own = tempered.at_samples(spectrum, TEMPERATURES)
    risk = tempered.risks(loss, own, samples.y, spectrum.noise_std)

    def best(beta: float) -> tuple[Candidate, int, np.ndarray]:
        weights = tempered.tightest_weights(prior, risk, kl, beta)
        mixed = np.sum(weights * risk, -1)
        divergences = mixture_kl(weights, prior, kl)
        place = int(np.argmin(mixed + divergences / beta))
        candidate = Candidate(beta, float(mixed[place]), float(divergences[place]))
        return candidate, place, weights[place]

    options = [best(float(beta)) for beta in betas]
    name = client.name
    spend: dict[str, Any] = {"m": m, "later": later, "privacy": privacy, "delta": delta}
    certificate = certify_client(
        name, loss.range, [option[0] for option in options], **spend,
        posterior="tempered posterior",
    )  # fmt: skip
    chosen, place, weights = options[int(np.argmin(np.abs(betas - certificate.beta)))]
    one = int(np.argmin(np.abs(TEMPERATURES - 1)))
    used = weights_in_use / weights_in_use.sum()
    used_kl = float(mixture_kl(used, prior, kl[one]))
    used_risk = float(used @ risk[one])
    in_use = certify_client(
        name, loss.range, [Candidate(float(beta), used_risk, used_kl) for beta in betas], **spend,
        posterior="model in use",
    )  # fmt: skip

    def test_risk(index: int, mixture: np.ndarray) -> float | None:
        if client.test is None:
            return None
        moments = tempered.at_inputs(spectrum, inputs, TEMPERATURES[[index]])
        each = tempered.risks(loss, moments, client.test.y, spectrum.noise_std)
        return float(mixture @ each[0])

    beta = certificate.beta
    given = ClientPremises(
        beta, m, a, b, delta, later=later, epsilon=privacy.epsilon, unit=privacy.unit,
        choices=len(betas),
    )  # fmt: skip
    members = inner.shape[1]

    def floors(inner: np.ndarray, risk: np.ndarray, kl: np.ndarray) -> np.ndarray:
        """ln Z per particle, from below."""
        shape = (len(TEMPERATURES), -1, members)
        by_particle = [np.moveaxis(v.reshape(shape), 0, 1) for v in (risk, kl)]
        return tempered.log_evidence_floor(inner[:, None], *by_particle, beta, b)

    other_inner, other, _ = views(alone, samples)
    other_risk = tempered.risks(
        loss, tempered.at_samples(other, TEMPERATURES), samples.y, other.noise_std
    )
    after = floors(inner, risk, kl)
    before = floors(other_inner, other_risk, tempered.divergence(other, TEMPERATURES))
    constraint = (float(after.mean()), float(before.mean()), given)
    free = [c.beta * (b - c.risk) - c.kl for c, _, _ in options]  # nats left for all other terms
    spent = math.log(len(betas) / delta) + betas**2 * loss.range.width**2 / (8 * len(samples))
    scaled = trained.config.data.standardize == "client"
    return ClientCertificate(
        client=name,
        group=group,
        samples=m,
        later=later,
        privacy=privacy,
        certificate=_not_scaled(certificate) if scaled else certificate,
        temperature=float(TEMPERATURES[place]),
        kl=chosen.kl,
        test_risk=test_risk(place, weights),
        in_use=_not_scaled(in_use) if scaled else in_use,
        in_use_kl=used_kl,
        in_use_test_risk=test_risk(one, used),
        tolerated_epsilon=max(0.0, float(np.max(free - spent))),
        participation=participation(*constraint),
        margin=participation_margin(*constraint),
        margin_error=float(before.std(ddof=1) / math.sqrt(len(before)) / beta),
    )


def _not_scaled(certificate: Certificate) -> Certificate:
    """The theorem needs independent samples; scaled by their own mean and std they are not."""
    broken = Condition(
        "samples not changed by their own statistics",
        "does not hold",
        'data.standardize = "client" scales them by their own means and standard deviations',
    )
    words = f"NOT VALID, because a premise does not hold: {broken.name} ({broken.reason}). "
    verdict = certificate.verdict
    return replace(
        certificate,
        conditions=(*certificate.conditions, broken),
        verdict=verdict if verdict.startswith("No statement") else words + verdict,
    )


def _in_use(method: PACPFL, particles: jax.Array, data: Data) -> jax.Array:
    """The weights of the run's own rule, [k * members]."""
    state: Any = _Particles(particles)
    model = method.personalize(state, (), data, jax.random.key(0))
    return (model.weights[:, None] * model.responsibilities()).reshape(-1)


@dataclass(frozen=True)
class _Particles:
    particles: jax.Array


def _noise_stds(prior: Prior, particles: jax.Array) -> np.ndarray:
    if isinstance(prior, MixturePrior):
        particles = jax.vmap(lambda phi: prior.split(phi)[1])(particles).reshape(
            -1, prior.base.size
        )
    return np.sqrt(np.asarray(jax.vmap(base_of(prior).noise_variance)(particles), np.float64))
