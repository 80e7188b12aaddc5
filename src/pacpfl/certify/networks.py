"""A certificate for every client of a run whose models are Bayesian networks.

The prior of a client is one of the k particles, drawn with equal chances. Its posterior draws a particle
with weights of its own and then a network from that particle's Gaussian (`gaussian_networks`), found
by variational inference, whose divergence from the prior is exact. The client-level bound holds for every
posterior at once: it does not matter how well the inference went, only what came out.

Draws serve once. The first ones, of `search`, choose the likelihood's temperature and the particles'
weights; then the posterior is fixed, and new draws (DRAWS) give its risk on the client's samples, with the
upper bound of `losses.monte_carlo_upper` that a fifth of delta pays for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl import hyper
from pacpfl.bounds import ClientPremises, Condition, mixture_kl, participation
from pacpfl.bounds.checks import probability
from pacpfl.bounds.entropy import participation_margin
from pacpfl.bounds.privacy_cost import Unit, privacy_cost
from pacpfl.certify import gaussian_processes as tempered
from pacpfl.certify.certificate import Candidate, Certificate, Privacy, certify_client
from pacpfl.certify.clients import (
    ClientCertificate,
    beta_grid,
    evidences,
    privacy_of,
    tolerated,
)
from pacpfl.certify.gaussian_networks import (
    ClassLoss,
    Found,
    Gaussian,
    drawn_risks,
    fixed_weights,
    in_use,
    search,
    variational,
)
from pacpfl.data.store import ClientStore, from_samples
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import to_device
from pacpfl.priors.bnn import BNNPrior
from pacpfl.trained import Trained
from pacpfl.types import Client, Data, Samples

TEMPERATURES = (0.0, 1 / 16, 1 / 4, 1.0, 4.0)  # powers of the likelihood; 0 is the prior itself
DRAWS = 2000
DRAWS_ALONE = 4  # priors drawn from the hyper-prior, to tell what a client could do alone
MOST_CLIENTS, MOST_NUMBERS = 64, 2e7  # that are fitted together, and numbers of their posteriors


class Used(NamedTuple):
    """What the run's clients predict with."""

    weights: np.ndarray  # [clients, k]
    gaussians: list[Gaussian] | None  # of each particle, [1, clients, p], where they are Gaussian
    test_risk: np.ndarray  # [clients], of the networks themselves


class Numbers(NamedTuple):
    """All that one client's certificate is made of. Rows of `risk` and `kl` are posteriors; the last
    one is the run's own, or what stands for it."""

    risk: np.ndarray  # [rows, k], pilot
    kl: np.ndarray  # [rows, k]
    alone_risk: np.ndarray  # [rows, DRAWS_ALONE]
    alone_kl: np.ndarray
    used_weights: np.ndarray  # [k]
    networks_risk: float


class Choice(NamedTuple):
    """The posterior a client is certified for: a row, and weights of the particles."""

    row: int
    weights: np.ndarray


def certify_class_clients(
    trained: Trained,
    loss: ClassLoss,
    delta: float,
    epsilon: float | None = None,
    unit: Unit = "client",
    progress: Callable[[str], None] = lambda text: None,
) -> list[ClientCertificate]:
    """A certificate for every client, existing and new."""
    probability(delta)
    prior = trained.method.prior
    assert isinstance(prior, BNNPrior)
    family, own_kind = variational(prior), prior.inference.inference
    fit_key, pilot_key, draw_key, alone_key = jax.random.split(
        Keys.of(trained.config.seed).certificates(), 4
    )
    alone = hyper.sample(alone_key, trained.method.hyper_prior(trained.dtype), DRAWS_ALONE)
    labels = (*TEMPERATURES, prior.inference.temperature * trained.method.settings.temperature)
    members = [(group, c) for group, cs in trained.federation.groups().items() for c in cs]
    found: list[ClientCertificate] = []
    for places, data, tests in _blocks(trained, members):
        inside = [members[place] for place in places]
        progress(f"{inside[0][1].name} to {inside[-1][1].name}")
        used = _used(trained, loss, data, tests, places)
        fitted = TEMPERATURES if used.gaussians else labels
        keys = (fit_key, pilot_key)
        here = search(family, loss, trained.particles, data, fitted, keys, used.gaussians)
        others = search(family, loss, alone, data, fitted, keys)
        numbers = [
            Numbers(
                here.risk[:, :, i], here.kl[:, :, i], others.risk[:, :, i], others.kl[:, :, i],
                used.weights[i], float(used.test_risk[i]),
            )
            for i in range(len(inside))
        ]  # fmt: skip
        train = loss.training_range
        privacies = [
            privacy_of(trained, group, c, train.width, epsilon, unit, f"the {train.name}")
            for group, c in inside
        ]
        choices = [
            choose(n.risk, n.kl, c, loss, p, delta)
            for n, (_, c), p in zip(numbers, inside, privacies, strict=True)
        ]
        own, test = _draw(
            family, loss, trained.particles, here, choices, used, (data, tests), draw_key
        )
        for i, (group, client) in enumerate(inside):
            one = _certify(
                client, group, loss, delta, privacies[i], numbers[i], choices[i], own[:, :, i],
                test[:, i], labels, own_kind,
            )  # fmt: skip
            found.append(one)
    # The last block repeats clients, so that all blocks are of one size.
    return found[: len(members)]


def _blocks(
    trained: Trained, members: list[tuple[str, Client]]
) -> Iterator[tuple[np.ndarray, Data, Data]]:
    """Clients in blocks of one size: their places, samples and test samples, padded."""
    empty = Samples(np.zeros((0, len(trained.federation.features))), np.zeros(0))
    stores = [
        from_samples([client.personal for _, client in members]),
        from_samples([empty if client.test is None else client.test for _, client in members]),
    ]
    prior = trained.method.prior
    assert isinstance(prior, BNNPrior)
    numbers = (len(TEMPERATURES) + 1) * (prior.network.size - fixed_weights(prior))
    most = int(np.clip(MOST_NUMBERS / numbers, 1, MOST_CLIENTS))
    block = math.ceil(len(members) / math.ceil(len(members) / most))
    for start in range(0, len(members), block):
        places = np.minimum(np.arange(start, start + block), len(members) - 1)
        data, tests = (_gather(store, places, trained.dtype) for store in stores)
        yield places, data, tests


def _gather(store: ClientStore, places: np.ndarray, dtype: type) -> Data:
    return Data(*to_device(store.gather(places, dtype)))


def _used(trained: Trained, loss: ClassLoss, data: Data, tests: Data, places: np.ndarray) -> Used:
    """The run's own models, with the keys that `engine.evaluate` gives the clients of a group."""
    existing = len(trained.federation.existing)
    within = np.where(places < existing, places, places - existing)
    keys = jax.vmap(Keys.of(trained.config.seed).personal)(jnp.asarray(within))
    model = in_use(trained.method, loss, trained.state, data, tests, keys)
    weights = np.asarray(model.weights, np.float64)
    gaussians = None
    if model.gaussian is not None:
        gaussians = [
            Gaussian(*(part[None, :, j] for part in model.gaussian))
            for j in range(weights.shape[1])
        ]
    return Used(weights / weights.sum(1, keepdims=True), gaussians, np.asarray(model.test_risk))


def choose(
    risk: np.ndarray,
    kl: np.ndarray,
    client: Client,
    loss: ClassLoss,
    privacy: Privacy,
    delta: float,
) -> Choice:
    """The row and weights with the smallest bound, as far as the pilot's draws can tell."""
    samples, width = len(client.personal), loss.range.width
    betas = beta_grid(samples, width)
    best = tempered.tightest(np.full(risk.shape[1], 1 / risk.shape[1]), risk, kl, betas)
    cost = privacy_cost(privacy.epsilon, len(client.train), delta, unit=privacy.unit)
    nats = cost + math.log(len(betas) / delta) - best.log_evidence
    place = int(np.argmin(nats / betas + betas * width**2 / (8 * samples)))
    return Choice(int(best.place[place]), best.weights[place] / best.weights[place].sum())


def _draw(
    family: BNNPrior,
    loss: ClassLoss,
    particles: jax.Array,
    found: Found,
    choices: list[Choice],
    used: Used,
    parts: tuple[Data, Data],
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Risks of the chosen posteriors and of those in use: [draws, 2, clients] on the clients' own
    samples, [2, clients] on test samples. A draw is one network of each particle, weighed."""
    clients = np.arange(len(choices))
    last = found.kl.shape[0] - 1
    rows = np.array([[choice.row for choice in choices], [last] * len(choices)])
    weights = np.stack([[choice.weights for choice in choices], used.weights])  # [2, clients, k]
    own, test = np.zeros((DRAWS, *rows.shape)), np.zeros(rows.shape)
    for j, phi in enumerate(particles):
        posteriors = Gaussian(*(part[rows, clients] for part in found.posteriors[j]))
        draws = jax.random.split(jax.random.fold_in(key, j), DRAWS)
        each = drawn_risks(family, loss, phi, posteriors, parts, draws)
        on_own, on_test = (np.asarray(values, np.float64) for values in each)
        own += weights[:, :, j] * on_own
        test += weights[:, :, j] * on_test.mean(0)
    return np.clip(own, loss.range.a, loss.range.b), test


def _certify(
    client: Client,
    group: str,
    loss: ClassLoss,
    delta: float,
    privacy: Privacy,
    numbers: Numbers,
    choice: Choice,
    own: np.ndarray,
    test: np.ndarray,
    labels: tuple[float, ...],
    kind: str,
) -> ClientCertificate:
    samples, m = client.personal, len(client.train)
    later = len(samples) - m
    betas = beta_grid(len(samples), loss.range.width)
    k = numbers.kl.shape[1]
    same = kind == "variational"
    spend: dict[str, Any] = {"m": m, "later": later, "privacy": privacy, "delta": delta}

    def certificate(
        place: int, row: int, weights: np.ndarray, name: str
    ) -> tuple[Certificate, float]:
        # A sum of parts that are not negative; rounding must not make it so.
        kl = max(0.0, float(mixture_kl(weights, np.full(k, 1 / k), numbers.kl[row])))
        options = [Candidate(float(beta), own[:, place], kl) for beta in betas]
        given = certify_client(client.name, loss.range, options, **spend, posterior=name)
        if not same:
            given = replace(given, conditions=(*given.conditions, other_model(kind)))
        return given, kl

    best, kl = certificate(0, choice.row, choice.weights, "variational posterior")
    name = "model in use" if same else "variational posterior at the run's temperature"
    used, used_kl = certificate(1, -1, numbers.used_weights, name)
    share = best.delta_split["bound"]
    given = ClientPremises(
        best.beta, m, loss.range.a, loss.range.b, share, later=later, epsilon=privacy.epsilon,
        unit=privacy.unit, choices=len(betas),
    )  # fmt: skip
    after, before = (
        evidences(np.ones((risk.shape[1], 1)), risk, divergence, best.beta, loss.range.b)
        for risk, divergence in (
            (numbers.risk, numbers.kl),
            (numbers.alone_risk, numbers.alone_kl),
        )
    )
    constraint = (float(after.mean()), float(before.mean()), given)
    upper = best.terms["empirical"] + best.terms["draws"]
    tested = client.test is not None and len(client.test) > 0
    return ClientCertificate(
        client=client.name,
        group=group,
        samples=m,
        later=later,
        privacy=privacy,
        certificate=best,
        temperature=labels[choice.row],
        kl=kl,
        test_risk=float(test[0]) if tested else None,
        in_use=used,
        in_use_kl=used_kl,
        in_use_test_risk=float(test[1]) if tested else None,
        tolerated_epsilon=tolerated(betas, upper, kl, share, len(samples), loss.range),
        participation=participation(*constraint),
        margin=participation_margin(*constraint),
        margin_error=float(before.std(ddof=1) / math.sqrt(len(before)) / best.beta),
        networks_test_risk=numbers.networks_risk if tested and not same else None,
    )


def other_model(kind: str) -> Condition:
    """Not needed for the certificate to be valid, but to be known."""
    return Condition(
        "the certified model is the one in use",
        "does not hold",
        f"the run predicts with networks from its {kind} inference, whose divergence from the prior "
        "is not known; certified is the Gaussian variational posterior of the same priors, which "
        "certify computes",
        "use",
    )
