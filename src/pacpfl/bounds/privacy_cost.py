"""What it costs that the prior has seen the client's own data.

A bound for priors that are independent of the data fails with probability at most delta' for
each of them. If the prior P comes from an algorithm that is differentially private in S_i, the
pair (S_i, P) is not much more likely to be a failing one than an independent pair: with
probability at least 1 - theta the density ratio of the two situations is below exp(k), so

    Pr[fails] <= exp(k) delta' + theta.

Asking for delta on the right turns ln(1/delta') into ln(1/delta) + I.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.bounds.checks import count, not_negative, positive, positive_vector, probability
from pacpfl.errors import InputError

Unit = Literal["sample", "client"]


def privacy_cost(
    epsilon: float, m: int, delta: float, *, unit: Unit = "sample", printed: bool = False
) -> float:
    """I(epsilon, m, delta) of the client-level theorem, in nats.

    As printed (paper, Section 3), for epsilon-DP towards a change of one of m samples:

        I = m epsilon^2 / 2 + epsilon sqrt(m ln(4/delta) / 2) + ln 2.

    By default the smallest of what can be proved, since all of it is known beforehand:

    - m epsilon: all m samples are changed one after the other, so the density ratio never
      exceeds exp(m epsilon); nothing of delta is spent, and I = 0 for epsilon = 0, where the
      printed I is ln 2;
    - v + sqrt(v^2 + 2 v ln(2/delta)) + ln 2 with v = m epsilon^2 / 4: the concentration
      argument behind the printed I with its last two inequalities left out
      (`docs/theory.md` has the derivation). Never larger than the printed one.

    `unit="client"` is for an algorithm whose epsilon holds for replacing the client's WHOLE
    data set, as noise on whole client updates gives: then the density ratio is at most
    exp(epsilon) and I = epsilon, whatever m is.
    """
    not_negative(epsilon, "epsilon")
    count(m, "the number of samples m")
    probability(delta)
    if unit not in ("sample", "client"):
        raise InputError(f"The unit of privacy is '{unit}', but it is 'sample' or 'client'.")
    if printed:
        return (
            0.5 * m * epsilon**2 + epsilon * math.sqrt(0.5 * m * math.log(4 / delta)) + math.log(2)
        )
    if unit == "client":
        return epsilon
    spread = m * epsilon**2 / 4
    concentration = spread + math.sqrt(spread**2 + 2 * spread * math.log(2 / delta)) + math.log(2)
    return min(m * epsilon, concentration)


def sampling_epsilon(
    betas: ArrayLike, tau: float, width: float, samples: ArrayLike, draws: int = 1
) -> np.ndarray:
    """epsilon_i of drawing priors from Q* (paper, Section 4, privacy lemma):

        epsilon_i = draws * 2 beta_i tau (b - a) / m_i,    width = b - a.

    One changed sample moves ln Z_beta(P, S_i) by at most beta (b - a) / m_i, for every P, and
    Q* is the exponential mechanism on tau ln Z. Each further independent draw that is released
    costs the same again: k particles as k draws have k times the epsilon of one prior.
    It holds for draws from Q* itself with the BOUNDED loss in Z, not for SVGD's particles.
    """
    beta = positive_vector(np.atleast_1d(betas), "beta")
    m = positive_vector(np.atleast_1d(samples), "the number of samples")
    positive(tau, "tau")
    positive(width, "the width b - a of the loss")
    return count(draws, "the number of draws") * 2 * beta * tau * width / m
