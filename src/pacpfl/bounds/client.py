"""The client-level bound: what one client knows about the risk of its own posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pacpfl.bounds.bound import Bound
from pacpfl.bounds.checks import (
    count,
    loss_width,
    not_negative,
    positive,
    probability,
    risk,
)
from pacpfl.bounds.privacy_cost import Unit, privacy_cost
from pacpfl.errors import InputError


@dataclass(frozen=True)
class ClientPremises:
    """What the client-level theorem takes as given. Wrong values are refused.

    `m` samples S_i that the federation has seen, `later` samples S~_i that it has not; a loss
    in [a, b]; a prior from an `epsilon`-DP algorithm, where `unit` says whether epsilon is for
    changing one sample or the client's whole data (epsilon = 0: a prior that is independent of
    the client's data, as every new client has). beta must be fixed before the data are seen: to
    use the best of several, give their number as `choices`.
    """

    beta: float
    m: int
    a: float
    b: float
    delta: float
    later: int = 0
    epsilon: float = 0.0
    unit: Unit = "sample"
    choices: int = 1

    def __post_init__(self) -> None:
        positive(self.beta, "beta")
        count(self.m, "the number of samples m")
        count(self.later, "the number of later samples", 0)
        count(self.choices, "the number of choices of beta")
        loss_width(self.a, self.b)
        probability(self.delta)
        privacy_cost(self.epsilon, self.m, self.delta, unit=self.unit)

    def cost(self, printed: bool = False) -> float:
        """I(epsilon, m, delta)."""
        return privacy_cost(self.epsilon, self.m, self.delta, unit=self.unit, printed=printed)


def client_bound(
    empirical_risk: float, kl: float, given: ClientPremises, *, printed: bool = False
) -> Bound:
    """Client-level theorem (paper, Section 3), for EVERY posterior Q at once:

        L(Q, D) <= L^(Q, S u S~) + (1/beta) ( KL(Q || P) + beta^2 (b-a)^2 / (8 (m + m~))
                                              + I(epsilon, m, delta) + ln(1/delta) )

    with probability at least 1 - delta over S and S~. With c choices of beta it holds for all
    of them at once when ln(1/delta) becomes ln(c/delta) (union bound). I is paid once, because
    one transfer from independent to private priors covers the union of the c failures.
    `printed` takes I as the paper has it, which is valid and never smaller.
    """
    risk(empirical_risk, given.a, given.b, "The empirical risk")
    not_negative(kl, "KL(Q || P)")
    return Bound(
        {"empirical": float(empirical_risk), "divergence": kl / given.beta}
        | _common_terms(given, printed)
    )


def gibbs_client_bound(
    log_evidence: float, given: ClientPremises, *, printed: bool = False
) -> Bound:
    """The client-level bound at its minimum, the Gibbs posterior (paper, Section 3):

        L(Q*, D) <= (1/beta) ( -ln Z_beta(P, S u S~) + beta^2 (b-a)^2 / (8 (m + m~))
                               + I(epsilon, m, delta) + ln(1/delta) )

    where ln Z_beta(P, S) = ln E_{h~P} exp(-beta L^(h, S)) is `log_evidence`, computed with the
    bounded loss. Empirical risk and KL / beta of Q* together are -ln Z / beta.
    """
    if not math.isfinite(log_evidence):
        raise InputError(
            f"ln Z is {log_evidence}, but it lies in [-beta b, -beta a]: "
            "compute it with the bounded loss."
        )
    risk(-log_evidence / given.beta, given.a, given.b, "-ln Z / beta")
    return Bound({"empirical": -log_evidence / given.beta} | _common_terms(given, printed))


def _common_terms(given: ClientPremises, printed: bool) -> dict[str, float]:
    width = given.b - given.a
    return {
        "deviation": given.beta * width**2 / (8 * (given.m + given.later)),
        "privacy": given.cost(printed) / given.beta,
        "confidence": math.log(given.choices / given.delta) / given.beta,
    }
