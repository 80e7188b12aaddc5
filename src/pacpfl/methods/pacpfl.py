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
  Members of a mixture prior then start alike, and the clients divide them, not chance.
- The step is taken by any optax optimiser; plain SGD is the printed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from pacpfl import hyper, svgd
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class State(NamedTuple):
    particles: Float[Array, "k size"]
    optimizer: Any  # optax state, one for each particle
    references: Float[Array, "r d"]  # inputs at which particles are compared; no client's data
    skipped: Int[Array, " k"]  # steps a particle missed because its gradient was not finite


class Update(NamedTuple):
    gradients: Float[Array, "k size"]
    log_evidence: Float[Array, ""]  # per sample, mean over particles: for the progress bar only


@dataclass(frozen=True)
class PACPFL:
    prior: Prior
    clients: int  # n
    optimizer: optax.GradientTransformation
    particles: int = 4  # k
    tau: float = 1.0
    hyper_std: float = 1.0  # sigma_P
    initial_spread: float = 1.0  # 1: particles start as draws of the hyper-prior (line 2)
    beta: float | None = None  # None: m_i, so that Z is the marginal likelihood
    batch: int | None = None  # b; None: all samples
    aggregation: str = "sum"
    svgd_kernel: str = "rbf"
    mixture_weights: str = "uniform"
    references: int = 32

    central: ClassVar[bool] = False

    def hyper_prior(self, dtype: Any) -> hyper.HyperPrior:
        return hyper.hyper_prior(self.prior.blocks, self.hyper_std, dtype)

    def init(self, key: Array, example: Data) -> State:
        """phi_1, ..., phi_k drawn from the hyper-prior."""
        particle_key, reference_key = jax.random.split(key)
        dtype = example.x.dtype
        particles = hyper.sample(
            particle_key, self.hyper_prior(dtype), self.particles, self.initial_spread
        )
        references = jax.random.normal(reference_key, (self.references, example.x.shape[-1]), dtype)
        optimizer = jax.vmap(self.optimizer.init)(particles)
        return State(particles, optimizer, references, jnp.zeros(self.particles, jnp.int32))

    def init_client(self, state: State, data: Data, key: Array) -> tuple[()]:
        return ()

    def client_update(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> tuple[Update, tuple[()]]:
        """Algorithm 2. The batch's mean loss gets temperature beta (= m_i), so its log-likelihood is
        scaled by beta / b."""
        samples = data.mask.sum()
        batch = data if self.batch is None else subsample(key, data, self.batch)
        beta = samples if self.beta is None else self.beta
        temperature = beta / batch.mask.sum()
        log_evidence, gradients = jax.vmap(
            jax.value_and_grad(self.prior.log_evidence), in_axes=(0, None, None)
        )(state.particles, batch, temperature.astype(data.x.dtype))
        return Update(gradients, log_evidence.mean() / samples), ()

    def server_update(
        self, state: State, updates: Update, weights: Float[Array, " c"], key: Array
    ) -> State:
        """Algorithm 1, lines 8 to 13."""
        present = weights > 0
        gradients = jnp.where(present[:, None, None], updates.gradients, 0)
        scale = (self.clients if self.aggregation == "sum" else 1.0) / weights.sum()
        total = jnp.einsum("c,ckp->kp", weights * scale, gradients)

        prior = self.hyper_prior(state.particles.dtype)
        scores = hyper.score(prior, state.particles) + self.tau * total

        finite = jnp.isfinite(scores).all(1)
        step = svgd.direction(
            state.particles, scores, self.svgd_kernel, self.fingerprint(state), finite
        )
        moved, optimizer = jax.vmap(self._ascend)(state.particles, step, state.optimizer)

        def keep(new: Array, old: Array) -> Array:
            """A particle without a finite gradient stays where it is, optimiser state included."""
            return jnp.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return State(
            keep(moved, state.particles),
            jax.tree.map(keep, optimizer, state.optimizer),
            state.references,
            state.skipped + ~finite,
        )

    def _ascend(self, particle: Array, step: Array, optimizer: Any) -> tuple[Array, Any]:
        change, optimizer = self.optimizer.update(-step, optimizer, particle)
        return particle + change, optimizer

    def fingerprint(self, state: State) -> svgd.Features:
        return lambda phi: self.prior.fingerprint(phi, state.references)

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel:
        return personal_model(self.prior, state.particles, data, self.mixture_weights)

    def diagnostics(
        self, state: State, updates: Update, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        log_evidence = jnp.where(weights > 0, updates.log_evidence, 0) @ weights / weights.sum()
        fingerprints = jax.vmap(self.fingerprint(state))(state.particles)
        return {"log_evidence": log_evidence, "diversity": svgd.diversity(fingerprints)}


def subsample(key: Array, data: Data, size: int) -> Data:
    """`size` samples without replacement; all of them (and padding) where there are fewer."""
    size = min(size, data.mask.shape[0])
    order = jnp.where(data.mask, jax.random.uniform(key, data.mask.shape), 2.0)
    _, chosen = jax.lax.top_k(-order, size)
    return Data(data.x[chosen], data.y[chosen], data.mask[chosen])
