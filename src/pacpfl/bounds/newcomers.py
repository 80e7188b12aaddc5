"""The bound for clients who join later and had no part in the training."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.bounds.checks import risk
from pacpfl.bounds.conditions import Bound
from pacpfl.bounds.server import ServerPremises, price_and_deviation, server_bound
from pacpfl.errors import InputError


def new_client_bound(
    log_evidence: ArrayLike, kl: float, given: ServerPremises, *, printed: bool = False
) -> Bound:
    r"""Return the bound of the new-client lemma (paper, Section 4), for EVERY Q and any beta_i:

    $$E_{\text{new client}} E_{P \sim Q} L(Q^*(P, \tilde S), D)
      \le -\frac1n \sum_i \frac{1}{\beta_i} E_{P \sim Q} \ln Z_{\beta_i}(P, S_i)
      + \Big( \frac{1}{n \beta} + \frac{n_2 + \upsilon}{\lambda} \Big)
        \big( \mathrm{KL}(Q \| \text{hyper-prior}) + \ln \tfrac{1}{\delta} \big)
      + \frac{(b-a)^2}{8n} \Big( \beta \sum_i \frac{1}{m_i} + \frac{\lambda}{n_2 + \upsilon} \Big),$$

    $\beta = \max_i \beta_i$, with probability at least 1 - delta over the existing clients AND their
    data. It bounds the average over new clients drawn from the same distribution T, with
    sample sizes drawn like the m_i; it says nothing about one given new client, whose own
    client-level bound (epsilon = 0) does. `given.later` enters through n_2 only.

    `printed` has ln(1/delta)/sqrt(n), the mean beta in 1/(n beta), and sum_i beta_i/m_i.
    """
    terms = _fixed_terms(given, printed)
    # What existing clients know WITHOUT later samples: new clients start from there.
    known = server_bound(log_evidence, kl, given, weights=np.full(given.clients, 1 / given.clients))
    price = terms.pop("price")
    return Bound({"empirical": known.terms["empirical"], "divergence": price * kl} | terms)


def optimal_new_client_bound(
    log_partition: float, given: ServerPremises, *, printed: bool = False
) -> Bound:
    r"""Return the bound of the new-client lemma for Q = Q*, as the paper states it, for ONE beta.

    Its first two terms are $-(1/(n \beta) + (n_2 + \upsilon)/\lambda) \ln Z^S_\tau$.
    """
    if len(set(given.betas)) > 1:
        raise InputError(
            "The clients' betas differ, and then Q* does not minimise the new-client bound: "
            "use new_client_bound with its expected log evidences and divergence."
        )
    terms = _fixed_terms(given, printed)
    free_energy = -terms.pop("price") * log_partition
    risk(free_energy, given.a, given.b, "-ln Z^S / (tau n beta)")
    return Bound({"empirical": free_energy} | terms)


def _fixed_terms(given: ServerPremises, printed: bool) -> dict[str, float]:
    """Return the terms that depend on neither data nor hyper-posterior, and the price of a nat."""
    if math.isinf(given.lambda_):
        raise InputError("The new-client bound needs a finite lambda: give one.")
    n, width = given.clients, given.b - given.a
    price, deviation = price_and_deviation(
        dataclasses.replace(given, later=None, lambda_=math.inf), np.full(n, 1 / n)
    )
    later_weight = (given.new_clients + given.upsilon) / given.lambda_
    price += later_weight
    confidence = price * math.log(1 / given.delta)
    if printed:
        betas = np.asarray(given.betas, dtype=np.float64)
        price = 1 / float(betas.sum()) + later_weight
        deviation = width**2 / 8 * float(np.mean(betas / np.asarray(given.samples)))
        confidence = math.log(1 / given.delta) / math.sqrt(n)
    return {
        "price": price,
        "deviation": deviation,
        "newness": width**2 / (8 * n * later_weight),
        "confidence": confidence,
    }
