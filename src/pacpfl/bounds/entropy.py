"""The maximum-entropy view: does taking part tighten a client's own bound? (paper, appendix)

maximise  -KL(Q || hyper-prior)   over hyper-posteriors Q, such that for every client i
-E_{P~Q} ln Z_beta(P, S_i) + I(epsilon_i, m_i, delta) <= -E_{P~hyper-prior} ln Z_beta(P, S_i).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from pacpfl.bounds.checks import risk
from pacpfl.bounds.client import ClientPremises
from pacpfl.bounds.conditions import Condition
from pacpfl.errors import InputError


def participation_margin(
    evidence_after: float, evidence_before: float, given: ClientPremises, *, printed: bool = False
) -> float:
    """By how much taking part tightens this client's own expected bound, in units of the loss:

        ( E_{P~Q} ln Z_beta(P, S_i) - E_{P~hyper-prior} ln Z_beta(P, S_i) - I ) / beta.

    `evidence_after` and `evidence_before` are the two expectations. A prior drawn from the
    hyper-prior is independent of the data and costs no I; all other terms of the two bounds
    are equal. Positive: the client's constraint holds, taking part helps.
    """
    for value, place in ((evidence_after, "hyper-posterior"), (evidence_before, "hyper-prior")):
        if not math.isfinite(value):
            raise InputError(f"E ln Z under the {place} is {value}, but it must be finite.")
        risk(-value / given.beta, given.a, given.b, f"-E ln Z / beta under the {place}")
    return (evidence_after - evidence_before - given.cost(printed)) / given.beta


def participation(
    evidence_after: float, evidence_before: float, given: ClientPremises, *, printed: bool = False
) -> Condition:
    """The client's constraint as a record that explains itself."""
    margin = participation_margin(evidence_after, evidence_before, given, printed=printed)
    gain = (evidence_after - evidence_before) / given.beta
    cost = given.cost(printed) / given.beta
    return Condition(
        "taking part tightens this client's own bound",
        "holds" if margin >= 0 else "does not hold",
        f"the shared prior improves the empirical part of the bound by {gain:.4g}, and its "
        f"dependence on the client's own data costs {cost:.4g}: a margin of {margin:.4g}",
        "use",
    )


def lagrangian(
    hyper_posterior: ArrayLike,
    hyper_prior: ArrayLike,
    log_evidence: ArrayLike,
    costs: ArrayLike,
    tau: float,
) -> float:
    """The Lagrange function whose maximiser is Q*, over finitely many priors:

        -KL(Q || hyper-prior)
            + tau sum_i ( E_{P~Q} ln Z_i(P) - I_i - E_{P~hyper-prior} ln Z_i(P) ).

    `log_evidence` has one row per client and one column per prior, `costs` holds I_i.
    """
    after = np.asarray(hyper_posterior, dtype=np.float64)
    before = np.asarray(hyper_prior, dtype=np.float64)
    gains = np.atleast_2d(log_evidence) @ (after - before) - np.asarray(costs)
    return float(tau * np.sum(gains) - np.sum(rel_entr(after, before)))
