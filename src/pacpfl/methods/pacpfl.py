"""PAC-PFL (Boroujeni, Krause & Ferrari-Trecate 2025): Algorithms 1 and 2.

The server holds k particles phi_1..phi_k, each the parameters of a prior, that approximate the
optimal hyper-posterior Q*. In each round

    server:  choose c of the n clients, send them the particles                     (line 4)
    client:  G_i = [grad ln Z_{m_i}(P_phi, S_i^(b))] for every particle              (Algorithm 2)
    server:  G = n/c sum_i G_i                                                       (line 8)
             grad ln Q*(phi) = grad ln P(phi) + tau G                                (line 10)
             phi <- phi + eta SVGD direction                                         (line 13)

Where this departs from the printed algorithm, and why:
- Line 8 prints the mean over the c clients, while Q* contains the SUM over all n clients. The sum is
  the default (n times the mean is its unbiased estimate); `aggregation="mean"` is the printed one,
  with which the data hardly move the particles away from the hyper-prior.
- `initial_spread` below 1 starts the particles closer to the hyper-prior's mean than its draws are.
  Members of a mixture prior then start alike, and the clients divide them, not chance. Families whose
  evidence is estimated (Bayesian neural networks) say themselves where particles start.
- The step is taken by any optax optimiser; plain SGD is the printed one.
- A batch of b of the client's m samples stands for all by (m/b) ln Z of the batch. Algorithm 2 prints
  ln Z of the batch at temperature m/b, which reads every sample as m/b copies of itself: noise is then
  fitted as signal (docs/theory.md). `batch_rule="printed"` is that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, UInt32

from pacpfl import hyper, svgd
from pacpfl.methods.base import Curves, Method, Nothing, Weights, mini_batch
from pacpfl.methods.settings import DEFAULT_TAU, TrainSettings
from pacpfl.personal import EXACT, PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data

if TYPE_CHECKING:
    from pacpfl.priors.base import Noise, Particle


# Optimisers hold functions, which equal nothing but themselves. They are kept, so that methods of runs
# that differ in their seed are equal, and traced and compiled once.
@cache
def build_optimizer(settings: TrainSettings) -> optax.GradientTransformation:
    """Return the optimiser with its schedule over the rounds."""
    rate, rounds = settings.learning_rate, settings.rounds
    schedule = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, rounds),
        "exponential": optax.exponential_decay(rate, rounds, 0.01),
        "cooldown": optax.linear_schedule(
            rate, 0.0, math.ceil(rounds / 5), rounds - math.ceil(rounds / 5)
        ),
    }[settings.schedule]
    return optimizer_with(settings, schedule)


def optimizer_with(
    settings: TrainSettings, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Return the optimiser with this schedule."""
    return getattr(optax, settings.optimizer)(schedule)


class State(NamedTuple):
    particles: Float[Array, "k size"]
    optimizer: optax.OptState  # one for each particle
    references: Float[Array, "r d"]  # inputs at which particles are compared; no client's data
    skipped: Int[Array, " k"]  # steps a particle missed because its gradient was not finite
    # Of this round's draws that all clients share; () where nothing is drawn.
    seed: UInt32[Array, " 2"] | tuple[()] = ()


class Update(NamedTuple):
    gradients: Float[Array, "k size"]
    log_evidence: Float[Array, ""]  # per sample, mean over particles: for the progress bar only


@dataclass(frozen=True)
class PACPFL(Method[State, Nothing, Update]):
    prior: Prior
    clients: int  # n
    optimizer: optax.GradientTransformation
    settings: TrainSettings = TrainSettings()
    mixture_weights: str = "uniform"
    references: int = 32
    kernel: svgd.SteinKernel | None = None  # somebody's own, in place of train.svgd_kernel
    exact: int = EXACT

    averages: ClassVar[bool] = True

    @property
    def tau(self) -> float:
        """Weight of the clients' evidence; 1 where nobody gives one."""
        return DEFAULT_TAU if self.settings.tau is None else self.settings.tau

    def hyper_prior(self, dtype: jnp.dtype | type) -> hyper.HyperPrior:
        return hyper.hyper_prior(self.prior.blocks, self.settings.hyper_std, dtype)

    def init(self, key: Array, example: Data) -> State:
        """phi_1, ..., phi_k drawn from the hyper-prior, or where the family wants to start."""
        dtype, k = example.x.dtype, self.settings.particles
        particle_key, reference_key = jax.random.split(key)
        particles = self.prior.start(
            particle_key, self.hyper_prior(dtype), k, self.settings.initial_spread
        )
        references = jax.random.normal(reference_key, (self.references, example.x.shape[-1]), dtype)
        optimizer = jax.vmap(self.optimizer.init)(particles)
        return State(particles, optimizer, references, jnp.zeros(k, jnp.int32), self._seed(key))

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        """Algorithm 2: ln Z and its gradient, of every particle."""
        batch, temperature, share, samples = self._batch(data, key)
        noise = self.noise(state, key, batch.x.dtype)
        one = jax.value_and_grad(
            lambda phi, e: share * self.prior.log_evidence(phi, batch, temperature, e)
        )
        if self.together:
            log_evidence, gradients = jax.vmap(one)(state.particles, noise)
        else:
            # All clients' images already fill a CPU's caches; particles side by side take 1.3 x longer.
            log_evidence, gradients = jax.lax.platform_dependent(
                state.particles,
                noise,
                cpu=lambda phis, noise: jax.lax.map(lambda pair: one(*pair), (phis, noise)),
                default=jax.vmap(one),
            )
        return Update(gradients, log_evidence.mean() / samples), ()

    def _batch(self, data: Data, key: Array) -> tuple[Data, Array, Array, Array]:
        """Samples of this round, their temperature, how often their ln Z counts, and m."""
        samples, dtype = data.mask.sum(), data.x.dtype
        batch = mini_batch(key, data, self.settings.batch)
        share = (samples / batch.mask.sum()).astype(dtype)
        once, temperature = jnp.ones((), dtype), jnp.asarray(self.settings.temperature, dtype)
        if self.settings.batch_rule == "printed":
            return batch, temperature * share, once, samples
        return batch, temperature, share, samples

    @property
    def together(self) -> bool:
        """One gradient of the clients' sum adds up what networks get from all samples in one product
        each; with ten samples per client a round is 1.6 times faster for it."""
        return self.prior.together

    def mean_update(self, state: State, data: Data, keys: Array, weights: Weights) -> Update:
        """Algorithm 2 for all of these clients, and their part of line 8 of Algorithm 1."""
        if len(weights) == 1:  # 5% faster without the axis of clients, with 610 samples
            alone = jax.tree.map(lambda a: a[0], data)
            return self.client_update(state, (), alone, keys[0])[0]
        batches, temperatures, counts, samples = jax.vmap(self._batch)(data, keys)
        noise = jax.vmap(lambda key: self.noise(state, key, data.x.dtype))(keys)  # [c, k, ...]
        shares = weights / weights.sum()

        def mean(phi: Particle, noise: Noise) -> tuple[Array, Array]:
            one = partial(self.prior.log_evidence, phi)
            log_evidence = counts * jax.vmap(one)(batches, temperatures, noise)
            return jnp.sum(shares * log_evidence), log_evidence

        each = jax.vmap(jax.grad(mean, has_aux=True), in_axes=(0, 1))
        gradients, log_evidence = each(state.particles, noise)
        return Update(gradients, jnp.sum(shares * log_evidence.mean(0) / samples))

    def _draw_key(self, state: State, key: Array) -> Array:
        """The key that the clients of a round draw with: the same for all, or each their own."""
        if self.prior.draws == "shared":
            assert not isinstance(state.seed, tuple)
            return jax.random.wrap_key_data(state.seed)
        return jax.random.fold_in(key, 1)

    def noise(self, state: State, key: Array, dtype: jnp.dtype | type) -> Noise:
        """What each particle's estimate of the evidence needs (leading axis k)."""
        keys = jax.random.split(self._draw_key(state, key), self.settings.particles)
        return jax.vmap(lambda key: self.prior.draw(key, dtype))(keys)

    def _seed(self, key: Array) -> UInt32[Array, " 2"] | tuple[()]:
        return jax.random.key_data(jax.random.fold_in(key, 2)) if self.prior.draws else ()

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """Algorithm 1, lines 8 to 13."""
        particles = state.particles
        gradients = jnp.where((weights > 0)[:, None, None], updates.gradients, 0)
        scale = (self.clients if self.settings.aggregation == "sum" else 1.0) / weights.sum()
        # In full precision also where products of float32 are shortened by default (GPUs).
        total = jnp.einsum("c,ckp->kp", weights * scale, gradients, precision="highest")
        around = self.hyper_prior(particles.dtype)
        scores = hyper.score(around, particles) + self.tau * total
        scores = jnp.where(around.stds > 0, scores, 0)  # without a spread it is no parameter
        finite = jnp.isfinite(scores).all(1)
        change, optimizer = self.advance(-self.direction(state, scores, finite), state)

        def keep(new: Array, old: Array) -> Array:
            """A particle without a finite gradient stays where it is, optimiser state included."""
            return jnp.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        moved, memory = jax.tree.map(
            keep, (particles + change, optimizer), (particles, state.optimizer)
        )
        return State(moved, memory, state.references, state.skipped + ~finite, self._seed(key))

    def direction(self, state: State, scores: Array, finite: Bool[Array, " k"]) -> Array:
        """Return SVGD's direction of every particle."""
        kernel, features = self.kernel or self.settings.svgd_kernel, self.fingerprint(state)
        return svgd.direction(state.particles, scores, kernel, features, finite)

    def advance(self, step: Array, state: State) -> tuple[Array, optax.OptState]:
        """Return by how much the optimiser moves every particle, and what it remembers."""
        return jax.vmap(self.optimizer.update)(step, state.optimizer, state.particles)

    def fingerprint(self, state: State) -> svgd.Features:
        return lambda phi: self.prior.fingerprint(phi, state.references)

    @property
    def plain(self) -> bool:
        return self.prior.plain

    def personalize(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel:
        """Q* is made for clients who take the optimal posterior of the same temperature."""
        drawn = self._draw_key(state, key) if self.prior.draws else None
        temperature = self.settings.temperature
        return personal_model(
            self.prior, state.particles, data, self.mixture_weights, temperature, drawn
        )

    def serving(self, state: State, data: Data) -> PACPFL:
        """With inducing inputs in the rows' place, where they are too many for exact inference."""
        from pacpfl.priors.sparse import suited

        particles, temperature = state.particles, self.settings.temperature
        return replace(self, prior=suited(self.prior, particles, data, temperature, self.exact))

    def diagnostics(self, state: State, updates: Update, weights: Weights) -> Curves:
        log_evidence = jnp.where(weights > 0, updates.log_evidence, 0) @ weights / weights.sum()
        fingerprints = jax.vmap(self.fingerprint(state))(state.particles)
        return {"log_evidence": log_evidence, "diversity": svgd.diversity(fingerprints)}
