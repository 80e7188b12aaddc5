"""Clipping at a quantile that is learned privately (Andrew, Thakkar, McMahan & Ramaswamy 2021).

Each client sends, with its clipped update, whether nothing was clipped: b_i = 1 or 0. The server
learns the noisy share of such clients, and moves the clip geometrically towards the quantile wanted:

    share = 1/2 + (sum_i (b_i - 1/2) + N(0, count_std^2)) / expected cohort
    clip <- clip exp(-rate (share - quantile))

One client changes sum_i (b_i - 1/2) by 1/2, and the sum of updates by the clip. Both together are ONE
Gaussian mechanism: with each part divided by its noise's standard deviation the sensitivity is
sqrt(z_sum^-2 + (2 count_std)^-2), and the multiplier that is accounted is its inverse,

    z = (z_sum^-2 + (2 count_std)^-2)^(-1/2).

For replacing one client both parts double, and the formula stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.privacy.mechanisms import add_noise

RATE = 0.2  # the authors' choice
SHARE_OF_COHORT = 1 / 20  # the authors' count_std, as a share of the cohort
# In small cohorts that would eat up the budget: at least what costs the sum 5% more noise.
DEAREST = 0.5 / math.sqrt(1 - 1.05**-2)


@dataclass(frozen=True)
class AdaptiveClip:
    quantile: float
    count_std: float  # of the noise on the count
    rate: float = RATE

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InputError(
                f"The quantile of the clip is {self.quantile}; choose one between 0 and 1."
            )


def joint_multiplier(sum_multiplier: float, count_std: float) -> float:
    """z: what the accountant sees of the noise on the sum and on the count together."""
    return (sum_multiplier**-2 + (2 * count_std) ** -2) ** -0.5


def sum_multiplier(multiplier: float, count_std: float) -> float:
    """z_sum that, together with the count, is accounted as `multiplier`."""
    left = multiplier**-2 - (2 * count_std) ** -2
    if left <= 0:
        raise InputError(
            f"Noise of standard deviation {count_std:.3g} on the count spends more than a budget of "
            f"multiplier {multiplier:.3g} has; give it at least {multiplier / 2:.3g}."
        )
    return left**-0.5


def count_std(multiplier: float, cohort: float) -> float:
    return max(SHARE_OF_COHORT * cohort, DEAREST * multiplier)


def next_clip(
    key: Array,
    clip: Float[Array, ""],
    centred: Float[Array, ""],
    cohort: float,
    adaptive: AdaptiveClip,
) -> Float[Array, ""]:
    """`centred` is sum_i (b_i - 1/2) over those who took part."""
    noisy = add_noise(key, centred, adaptive.count_std, "gaussian")
    share = 0.5 + noisy / cohort
    return clip * jnp.exp(-adaptive.rate * (share - adaptive.quantile))
