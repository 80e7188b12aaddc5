"""A Gaussian process with one length scale per feature, for each client alone.

    y = c + h(x) + N(0, s^2),   h ~ GP(0, a^2 exp(-sum_j (x_j - x'_j)^2 / (2 l_j^2))),

where c, a, s and all l_j maximise the evidence of the client's own samples: what people reach for when
they know Gaussian processes, and a baseline to be beaten. Decisions:
- Adam with a cosine schedule, as in `Vanilla`, on the logarithms of the scales. Compared with L-BFGS
  it needs no line search, for which float32 is too coarse, and all clients take the same steps.
- The first start suits standardised data: every length sqrt(d), scale 1, noise 0.4.
  The others are draws around it. The one that ends with the highest evidence is kept.
- Nothing bounds the scales, and nothing else than the evidence is asked: a feature that does not
  matter drifts to a long length, and few samples of many features are over-fitted, as they are by
  every other implementation that finds this maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl import hyper
from pacpfl.methods.vanilla import Alone, State, fit
from pacpfl.personal import PersonalModel
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data


@dataclass(frozen=True)
class ARD(Alone):
    steps: int = 250
    learning_rate: float = 0.1
    starts: int = 2
    spread: float = 0.5  # of the draws: 1 takes them from the prior's blocks as they are
    noise: float = 0.4  # of the first start

    def prior(self, features: int) -> GPPrior:
        return GPPrior(
            features,
            GPSettings(
                mean="constant",
                kernel="ard",
                output_scale="learned",
                noise=self.noise,
                noise_spread=1.0,
            ),
        )

    def starting_points(
        self, prior: GPPrior, key: Array, dtype: jnp.dtype | type
    ) -> Float[Array, "starts size"]:
        around = hyper.hyper_prior(prior.blocks, 1.0, dtype)
        return hyper.sample(key, around, self.starts, self.spread).at[0].set(around.means)

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
    ) -> PersonalModel:
        prior = self.prior(data.x.shape[-1])
        starts = self.starting_points(prior, key, data.x.dtype)
        return fit(prior, starts, data, self.steps, self.learning_rate)
