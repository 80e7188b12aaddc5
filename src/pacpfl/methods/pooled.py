"""Pooled: one model on everybody's data together, the same for all clients.

It sends data to one place, so it is no federated method: it shows what ignoring the clients'
differences costs. Clients who join later get the same model.

The paper says that the pooled Gaussian process has inducing points, and leaves the rest open. Here:
- Up to `exact_limit` samples the model needs none, and is fitted like `Vanilla`.
- Beyond, the collapsed variational bound takes the place of the evidence (`priors.sparse`). The
  parameters of the prior and the `inducing` inputs are learned together, by the same Adam; the inputs
  start at the centres of k-means.
- All samples are used in every step: it costs O(n M^2), and 15,000 samples need no mini-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.errors import InputError
from pacpfl.methods.alone import Alone, AloneSettings, State, fit, minimise_from_all
from pacpfl.personal import PersonalModel
from pacpfl.priors import sparse
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.types import Data, Prediction


class SparseModel(eqx.Module):
    """A Gaussian process conditioned on its values at the inducing inputs."""

    prior: GPPrior = eqx.field(static=True)
    phi: Float[Array, " size"]
    posterior: sparse.SparsePosterior

    def __call__(self, x: Float[Array, "t d"]) -> Prediction:
        mean, std = sparse.predict(self.prior, self.phi, self.posterior, x)
        return Prediction(jnp.ones(1, mean.dtype), mean[None], std[None])


@dataclass(frozen=True)
class Pooled(Alone):
    prior: Prior
    settings: AloneSettings = AloneSettings()  # its `inducing` is M; there is one start
    exact_limit: int = 500

    central: ClassVar[bool] = True
    averages: ClassVar[bool] = False

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel | SparseModel:
        own = self.settings
        prior = hyper.hyper_prior(self.prior.blocks, own.hyper_std, data.x.dtype)
        starts = hyper.sample(key, prior, 1)
        if len(data.mask) <= self.exact_limit:
            return fit(self.prior, starts, data, own.steps, own.learning_rate)
        return self._fit_sparse(starts, data)

    def _fit_sparse(self, starts: Float[Array, "starts size"], data: Data) -> SparseModel:
        prior = self.prior.gaussian
        if prior is None or prior is not self.prior:
            raise InputError(
                f"A pooled model of {len(data.mask)} samples needs inducing points, which only a "
                'single Gaussian process of the plain target has: set members = 1 and warp = "none", or '
                "leave out the pooled model."
            )
        inducing = sparse.initial_inducing(data, min(self.settings.inducing, len(data.mask)))

        def objective(parameters: tuple[Array, Array]) -> Array:
            return -sparse.bound(prior, *parameters, data) / data.mask.sum()

        own = self.settings
        phi, inducing = minimise_from_all(
            objective, (starts, inducing[None]), own.steps, own.learning_rate
        )
        return SparseModel(prior, phi, sparse.condition(prior, phi, inducing, data))
