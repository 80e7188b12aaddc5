r"""Certificates of clients whose models are Bayesian networks: Gaussian posteriors, and draws of them.

In the prior's own units z = (w - mu) / sigma the prior is N(0, I). A client's posterior is
N(m, diag(s^2)) in the weights that adapt, and the prior itself in all others, so that

$$\mathrm{KL}(Q \| P) = \sum_j \tfrac12 (s_j^2 + m_j^2 - 1) - \ln s_j$$

over the weights that adapt, exactly, however m and s were found: by variational inference. The client-level
bound holds for every posterior at once: it does not matter how well the inference went, only what came out.

Risks have no closed form. A risk is the average loss of one drawn network over a client's samples; all
clients share the draws, which are still independent of one another, so that one pass of the layers that do
not adapt serves everybody. Draws serve once. The first ones, of `search`, choose the temperature of the
likelihood and the particles' weights; then the posterior is fixed, and new draws (DRAWS) give its risk on
the client's samples, with the upper bound of `betting_bound` that a fifth of delta pays for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.bounds.divergences import diagonal_gaussian_kl
from pacpfl.bounds.losses import BRIER, ZERO_ONE, LossRange, clipped_nll_range
from pacpfl.certify.clients import (
    Choice,
    ClientBounds,
    Family,
    Models,
    Posteriors,
    gather,
    roomy,
    stores,
)
from pacpfl.certify.held_out import RowLosses
from pacpfl.data.store import from_clients
from pacpfl.engine.keys import Keys
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.priors.bnn import BNNPrior
from pacpfl.priors.networks import Headed, affine, body_size, by_rows
from pacpfl.priors.settings import Inference
from pacpfl.run import Trained
from pacpfl.types import Data, Probabilities, Samples

# Of the outputs of networks, and of the labels as vectors with a single one; before the clip.
CLASS_LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "zero-one": lambda outputs, right: outputs.argmax(-1) != right.argmax(-1),
    "brier": lambda outputs, right: ((jnp.exp(jax.nn.log_softmax(outputs)) - right) ** 2).sum(-1),
    "clipped-nll": lambda outputs, right: (
        -jnp.where(right > 0, jax.nn.log_softmax(outputs), 0).sum(-1)
    ),
}
# How `certify` looks for posteriors. The theorem holds for whatever it finds; more steps, or more
# networks in each, only find better ones.
STEPS, STEP_SIZE, NETWORKS = 150, 0.1, 4
PILOT_DRAWS = 128
TEMPERATURES = (0.0, 1 / 16, 1 / 4, 1.0, 4.0)  # powers of the likelihood; 0 is the prior itself
DRAWS = 2000
DRAWS_ALONE = 4  # priors drawn from the hyper-prior, to tell what a client could do alone
MOST_CLIENTS, MOST_NUMBERS = 64, 2e7  # that are fitted together, and numbers of their posteriors
# Of pairs for the averages: powers of the likelihood, networks drawn to choose one and then to judge it,
# pairs, and the largest KL / beta of a posterior in units of b - a (draws have to be bounded).
PAIR_TEMPERATURES = (0.0, 0.25, 1.0)
NETWORKS_PER_PAIR = 16
MOST_NETWORK_PAIRS = 200
LARGEST_SHARE = 0.5
LOWEST_LOG = -1e4  # of a class's probability, so that none is infinite


@dataclass(frozen=True)
class ClassLoss:
    """A bounded loss of one network where the target is one of several classes."""

    kind: str  # one of CLASS_LOSSES
    range: LossRange
    classes: int

    def __call__(
        self, outputs: Float[Array, "*m classes"], y: Float[Array, "*m"]
    ) -> Float[Array, "*m"]:
        """Sample by sample. A network whose outputs are not finite has the largest loss."""
        right = jax.nn.one_hot(y.astype(jnp.int32), self.classes, dtype=outputs.dtype)
        values = CLASS_LOSSES[self.kind](outputs, right).astype(outputs.dtype)
        finite = jnp.isfinite(outputs).all(-1)
        return jnp.where(finite, jnp.clip(values, self.range.a, self.range.b), self.range.b)

    @property
    def training_range(self) -> LossRange:
        """Return the training's own loss, the negative log-likelihood, bounded for the privacy of Q*.

        Where another loss is certified it is clipped at that of guessing, ln(classes).
        """
        if self.kind == "clipped-nll":
            return self.range
        return clipped_nll_range(0.0, math.log(self.classes))


def build_class_loss(kind: str, limit: float | None, classes: int) -> ClassLoss:
    """Return the loss of that name; `limit` is for clipped-nll, by default ln(classes).

    So clipped, nothing is worse than guessing among all classes, and a bound below b says: better.
    """
    if kind not in CLASS_LOSSES:
        raise InputError(
            f"--loss is {kind!r}, but for a run that predicts classes it is one of "
            f"{', '.join(CLASS_LOSSES)}."
        )
    if kind != "clipped-nll" and limit is not None:
        raise InputError(f"--limit is for --loss clipped-nll; {kind} has no clip, leave it out.")
    ranges = {"zero-one": ZERO_ONE, "brier": BRIER}
    clipped = clipped_nll_range(0.0, math.log(classes) if limit is None else limit)
    return ClassLoss(kind, ranges.get(kind, clipped), classes)


class Gaussian(NamedTuple):
    """N(mean, diag(exp(log_std)^2)) over the weights that adapt, in units of the prior's sigma."""

    mean: Float[Array, "... p"]
    log_std: Float[Array, "... p"]

    def divergence(self) -> np.ndarray:
        """Return KL(Q || P), in float64: these very numbers define the posterior."""
        mean, log_std = (np.asarray(part, np.float64) for part in self)
        return diagonal_gaussian_kl(mean, np.exp(log_std), 0.0, 1.0)


def variational(prior: BNNPrior) -> BNNPrior:
    """Return the same family, with the inference that `certify` uses; the same layers adapt."""
    inference = Inference(
        "variational", NETWORKS, prior.inference.adapt, STEPS, STEP_SIZE, temperature=1.0
    )
    return replace(prior, inference=inference)


def fixed_weights(prior: BNNPrior) -> int:
    """Count the weights that do not adapt: the first ones."""
    return body_size(prior.network) if prior.inference.adapt == "last" else 0


@partial(jax.jit, static_argnums=0)
def fit(
    prior: BNNPrior,
    phi: Float[Array, " size"],
    data: Data,
    temperatures: Float[Array, " t"],
    key: Array,
) -> Gaussian:
    """Fit one particle's variational posterior for each temperature and client, [t, clients, p].

    `prior` is one that `variational` gave. At temperature 0 it is the prior.
    """

    def one(data: Data, temperature: Array) -> Gaussian:
        return Gaussian(*prior.posterior(phi, data, temperature, key).reached)

    many = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
    return many(data, temperatures)


@partial(jax.jit, static_argnums=(0, 1))
def drawn_risks(
    prior: BNNPrior,
    loss: ClassLoss,
    phi: Float[Array, " size"],
    posteriors: Gaussian,
    parts: tuple[Data, ...],
    keys: Array,
) -> tuple[Float[Array, "draws r clients"], ...]:
    """Return the average loss of drawn networks, for r posteriors of each client, on each of its `parts`.

    One network per key and posterior: independent from key to key. A client without samples has 0.
    """
    means, std = prior.moments(phi)
    fixed = fixed_weights(prior)

    def draw(key: Array) -> tuple[Array, ...]:
        noise = jax.random.normal(key, means.shape, means.dtype)
        body = means[:fixed] + std[:fixed] * noise[:fixed]
        z = posteriors.mean + jnp.exp(posteriors.log_std) * noise[fixed:]
        heads = means[fixed:] + std[fixed:] * z
        return tuple(
            masked_mean(loss(_outputs(prior, body, heads, part.x), part.y), part.mask)
            for part in parts
        )

    return jax.lax.map(draw, keys)


def masked_mean(values: Float[Array, "*more m"], mask: Array) -> Float[Array, "*more"]:
    return jnp.where(mask, values, 0).sum(-1) / jnp.maximum(mask.sum(-1), 1)


def _outputs(
    prior: BNNPrior, body: Float[Array, " fixed"], heads: Float[Array, "r c p"], x: Array
) -> Float[Array, "r c m outputs"]:
    """Return what r networks of each client say at its inputs; the body is everybody's."""
    network = prior.network
    if body.size and isinstance(network, Headed):
        rows = by_rows(lambda rows: network.features(body, rows), x.reshape(-1, x.shape[-1]))
        seen = rows.reshape(*x.shape[:2], rows.shape[-1])
        return jax.vmap(jax.vmap(affine), (0, None))(heads, seen)

    def one(head: Array, x: Array) -> Array:
        return network(jnp.concatenate([body, head]), x)

    return jax.vmap(jax.vmap(one), (0, None))(heads, x)


class Found(NamedTuple):
    """Posteriors of some clients, from several priors: one row for each temperature."""

    posteriors: list[Gaussian]  # of each prior, [rows, clients, p]
    kl: np.ndarray  # [rows, priors, clients]
    risk: np.ndarray  # [rows, priors, clients], from the pilot's draws

    def of(self, client: int) -> Posteriors:
        """Return one client's part: each prior is a component of its own."""
        weights = np.ones((self.kl.shape[1], 1))
        return Posteriors(weights, self.risk[..., client], self.kl[..., client])


def search(
    family: BNNPrior,
    loss: ClassLoss,
    particles: jax.Array,
    data: Data,
    temperatures: tuple[float, ...],
    keys: tuple[jax.Array, jax.Array],
) -> Found:
    """Find each prior's posteriors at all temperatures, with cost and risk."""
    powers = jnp.asarray(temperatures, particles.dtype)
    posteriors, kls, risks = [], [], []
    for j, phi in enumerate(particles):
        fitted = fit(family, phi, data, powers, jax.random.fold_in(keys[0], j))
        draws = jax.random.split(jax.random.fold_in(keys[1], j), PILOT_DRAWS)
        (risk,) = drawn_risks(family, loss, phi, fitted, (data,), draws)
        posteriors.append(fitted)
        kls.append(fitted.divergence())
        risks.append(np.asarray(risk, np.float64).mean(0))
    return Found(posteriors, np.stack(kls, 1), np.stack(risks, 1))


@partial(jax.jit, static_argnums=(0, 1))
def in_use(
    method: PACPFL, loss: ClassLoss, state: object, data: Data, asked: Data, keys: Array
) -> tuple[Float[Array, "clients t"], Float[Array, "clients t"]]:
    """Return losses of the models in use, as `engine.evaluate` personalises them: averaged, and drawn."""
    prior = method.prior.bayesian
    assert prior is not None

    def one(data: Data, asked: Data, key: Array) -> tuple[Array, Array]:
        model = method.personalize(state, (), data, key)  # type: ignore[arg-type]

        def losses(network: tuple[Array, Array]) -> Array:
            whole = jnp.concatenate(network)
            return loss(by_rows(lambda rows: prior.network(whole, rows), asked.x), asked.y)

        networks = model.posteriors.body, model.posteriors.head  # [k, networks, parameters]
        each = jax.lax.map(lambda particle: jax.lax.map(losses, particle).mean(0), networks)
        averaged = model(asked.x)
        assert isinstance(averaged, Probabilities)
        logs = jnp.maximum(averaged.log_probabilities, LOWEST_LOG)
        return loss(logs, asked.y), model.weights @ each

    return jax.vmap(one)(data, asked, keys)


def family(trained: Trained, loss: ClassLoss) -> Family:
    """Return what a run of Bayesian networks says: certified is a Gaussian posterior of them."""
    prior, particles = trained.method.prior.bayesian, trained.particles
    assert prior is not None
    fitted, train = variational(prior), loss.training_range
    powers = (*TEMPERATURES, prior.inference.temperature * trained.method.settings.temperature)
    fits, pilots, draws, others = jax.random.split(Keys.of(trained.config.seed).certificates(), 4)
    alone = hyper.sample(others, trained.method.hyper_prior(trained.dtype), DRAWS_ALONE)
    personal, tests = stores(trained)
    existing, shared = len(trained.federation.existing), from_clients(trained.federation.existing)
    dearest = LARGEST_SHARE * loss.range.width

    def judge(places: np.ndarray, bounds: Sequence[ClientBounds]) -> list[Models]:
        parts = gather(personal, places, trained.dtype), gather(tests, places, trained.dtype)
        here = search(fitted, loss, particles, parts[0], powers, (fits, pilots))
        there = search(fitted, loss, alone, parts[0], powers, (fits, pilots))
        best = [one.best(here.of(i)) for i, one in enumerate(bounds)]
        risks, on_tests = _draw(fitted, loss, particles, here, best, parts, draws)
        return [
            Models(
                here.of(i),
                there.of(i),
                best[i],
                risks[:, i],
                float(on_tests[i]) if one.tests else None,
            )
            for i, one in enumerate(bounds)
        ]

    def rows(
        places: np.ndarray, fits: Sequence[Samples], asked: Sequence[Samples]
    ) -> list[RowLosses]:
        """Judge the models in use, with evaluation's keys: by a client's place within its group."""
        within = jnp.asarray(np.where(places < existing, places, places - existing))
        keys = jax.vmap(Keys.of(trained.config.seed).personal)(within)
        inside = np.arange(len(places))
        parts = (gather(roomy(part), inside, trained.dtype) for part in (fits, asked))
        found = map(np.asarray, in_use(trained.method, loss, trained.state, *parts, keys))
        sides = (np.clip(side.astype(np.float64), loss.range.a, loss.range.b) for side in found)
        return [
            RowLosses(averaged[: len(ask)], drawn[: len(ask)])
            for averaged, drawn, ask in zip(*sides, asked, strict=True)
        ]

    def judge_pair(
        phi: np.ndarray, place: int, betas: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Judge by draws: some choose the temperature at each beta, others give the risk.

        The mean of these is L^ on average, so that a pair's value is right on average.
        """
        data = gather(shared, np.array([place]), trained.dtype)
        particle = jnp.asarray(phi, trained.dtype)
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 1 + 2 * NETWORKS_PER_PAIR)
        temperatures = jnp.asarray(PAIR_TEMPERATURES, trained.dtype)
        posterior = fit(fitted, particle, data, temperatures, keys[0])
        (drawn,) = drawn_risks(fitted, loss, particle, posterior, (data,), keys[1:])
        halves = np.asarray(drawn, np.float64)[..., 0].reshape(2, NETWORKS_PER_PAIR, -1)
        pilot, judged = halves.mean(1)
        cost = posterior.divergence()[:, 0] / betas[:, None]  # [beta, temperature]
        best = np.argmin(np.where(cost <= dearest, pilot + cost, np.inf), axis=1)
        risk = np.clip(judged[best], loss.range.a, loss.range.b)
        return risk + cost[np.arange(len(betas)), best], risk

    return Family(
        trained,
        loss.range,
        (train.width, f"the {train.name}"),
        "network drawn from a variational posterior, fitted to all rows",
        powers,
        _blocks(personal.clients, prior),
        judge,
        rows,
        judge_pair,
        loss.range.b + dearest,
        MOST_NETWORK_PAIRS,
        loss.kind == "zero-one",
    )


def _blocks(clients: int, prior: BNNPrior) -> list[np.ndarray]:
    """Return places in blocks of one size: the last one repeats clients."""
    numbers = (len(TEMPERATURES) + 1) * (prior.network.size - fixed_weights(prior))
    most = int(np.clip(MOST_NUMBERS / numbers, 1, MOST_CLIENTS))
    block = math.ceil(clients / math.ceil(clients / most))
    starts = range(0, clients, block)
    return [np.minimum(np.arange(start, start + block), clients - 1) for start in starts]


def _draw(
    prior: BNNPrior,
    loss: ClassLoss,
    particles: jax.Array,
    found: Found,
    choices: Sequence[Choice],
    parts: tuple[Data, Data],
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw risks of a posterior of each client: [draws, clients] on the clients' own samples, [clients] on
    test samples. A draw is one network of each particle, weighed."""
    rows = np.array([choice.row for choice in choices])[None]
    weights = np.stack([choice.weights for choice in choices])  # [clients, k]
    clients = np.arange(len(choices))
    own, test = np.zeros((DRAWS, len(choices))), np.zeros(len(choices))
    for j, phi in enumerate(particles):
        posteriors = Gaussian(*(part[rows, clients] for part in found.posteriors[j]))
        draws = jax.random.split(jax.random.fold_in(key, j), DRAWS)
        each = drawn_risks(prior, loss, phi, posteriors, parts, draws)
        on_own, on_test = (np.asarray(values, np.float64)[:, 0] for values in each)
        own += weights[:, j] * on_own
        test += weights[:, j] * on_test.mean(0)
    return np.clip(own, loss.range.a, loss.range.b), test
