"""ln Z^S by Monte Carlo over the hyper-prior, with its error.

Z^S_tau = E_{P ~ hyper-prior} exp( tau sum_i ln Z_{beta_i}(P, S_i) ).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pacpfl.bounds.checks import count, probability, vector
from pacpfl.errors import InputError


class LogPartition(NamedTuple):
    """An estimate of ln Z^S.

    `standard_error` is asymptotic (delta method) and means little where `effective_draws` is
    small. `lower` is not asymptotic: ln Z^S >= lower with probability at least 1 - alpha over
    the draws, for any number of draws.
    """

    estimate: float
    standard_error: float
    effective_draws: float
    lower: float
    alpha: float


def log_partition(log_terms: ArrayLike, alpha: float, groups: int = 1) -> LogPartition:
    r"""Estimate ln Z^S from independent draws P_1, ..., P_N of the hyper-prior.

    `log_terms` holds t_j = tau sum_i ln Z_{beta_i}(P_j, S_i). The estimate is
    ln((1/N) sum_j e^(t_j)), on average below ln Z^S, so that -ln Z^S is over-estimated.

    `lower` is Markov's inequality on the product of the means Z_1, ..., Z_g of g equal groups
    of draws, whose expectation is (Z^S)^g:

    $$\ln Z^S \ge \frac1g \sum_l \ln Z_l - \frac{\ln(1/\alpha)}{g}
      \quad \text{with probability at least } 1 - \alpha.$$

    More groups make the second part smaller and the first noisier; g must be chosen before the
    draws are seen. alpha is part of the certificate's probability budget.
    """
    terms = vector(log_terms, "tau sum_i ln Z of the draws from the hyper-prior")
    probability(alpha, "alpha")
    count(groups, "the number of groups")
    draws = terms.size
    if draws < 2 or draws % groups:
        raise InputError(
            f"There are {draws} draws for {groups} groups: give at least two draws, "
            "as many in each group."
        )
    estimate = float(logsumexp(terms)) - math.log(draws)
    ratios = np.exp(terms - estimate)  # their mean is one
    variance = float(np.sum((ratios - 1) ** 2)) / (draws - 1)
    size = draws // groups
    group_means = logsumexp(terms.reshape(groups, size), axis=1) - math.log(size)
    return LogPartition(
        estimate=estimate,
        standard_error=math.sqrt(variance / draws),
        effective_draws=float(draws**2 / np.sum(ratios**2)),
        lower=float(np.mean(group_means)) - math.log(1 / alpha) / groups,
        alpha=alpha,
    )
