r"""The client-level bound: what one client knows about the risk of its own posterior.

What it costs that the prior has seen the client's own data is `privacy_cost`: with probability at least
1 - theta a private prior makes a failing pair (S_i, P) at most $e^k$ times as likely as an independent one,
so that $\Pr[\text{fails}] \le e^k \delta' + \theta$. Asking for delta on the right turns ln(1/delta') into
ln(1/delta) + I. Whether taking part tightens a client's own bound is `participation`, the constraint of the
paper's maximum-entropy view (appendix).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, log_ndtr, logsumexp, ndtri, rel_entr, xlogy

from pacpfl.bounds.conditions import (
    Bound,
    Condition,
    count,
    decided,
    loss_width,
    not_negative,
    positive,
    positive_vector,
    probability,
    risk,
)
from pacpfl.bounds.confidence import kl_inverse
from pacpfl.errors import InputError

Unit = Literal["sample", "client"]


@dataclass(frozen=True)
class ClientPremises:
    """The premises of the client-level theorem; wrong values are refused.

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
        """Return I(epsilon, m, delta), see `privacy_cost`."""
        return privacy_cost(self.epsilon, self.m, self.delta, unit=self.unit, printed=printed)


def client_bound(
    empirical_risk: float, kl: float, given: ClientPremises, *, printed: bool = False
) -> Bound:
    r"""Return the bound of the client-level theorem (paper, Section 3), for EVERY posterior Q at once:

    $$L(Q, D) \le \hat L(Q, S \cup \tilde S) + \frac{1}{\beta} \Big( \mathrm{KL}(Q \| P)
      + \frac{\beta^2 (b-a)^2}{8 (m + \tilde m)} + I(\epsilon, m, \delta) + \ln \tfrac{1}{\delta} \Big)$$

    with probability at least 1 - delta over S and S~. With c choices of beta it holds for all
    of them at once when ln(1/delta) becomes ln(c/delta) (union bound). I is paid once, because
    one transfer from independent to private priors covers the union of the c failures.
    `printed` takes I as the paper has it, which is valid and never smaller.
    """
    empirical = risk(empirical_risk, given.a, given.b, "The empirical risk")
    divergence = not_negative(kl, "KL(Q || P)") / given.beta
    terms = {"empirical": empirical, "divergence": divergence}
    return Bound(terms | _common_terms(given, printed))


def gibbs_client_bound(
    log_evidence: float, given: ClientPremises, *, printed: bool = False
) -> Bound:
    r"""Return the client-level bound at its minimum, the Gibbs posterior (paper, Section 3):

    $$L(Q^*, D) \le \frac{1}{\beta} \Big( -\ln Z_\beta(P, S \cup \tilde S)
      + \frac{\beta^2 (b-a)^2}{8 (m + \tilde m)} + I(\epsilon, m, \delta) + \ln \tfrac{1}{\delta} \Big)$$

    where $\ln Z_\beta(P, S) = \ln E_{h \sim P} e^{-\beta \hat L(h, S)}$ is `log_evidence`, computed with
    the bounded loss. Empirical risk and KL / beta of Q* together are -ln Z / beta.
    """
    empirical = risk(-log_evidence / given.beta, given.a, given.b, "-ln Z / beta")
    return Bound({"empirical": empirical} | _common_terms(given, printed))


def _common_terms(given: ClientPremises, printed: bool) -> dict[str, float]:
    width = given.b - given.a
    return {
        "deviation": given.beta * width**2 / (8 * (given.m + given.later)),
        "privacy": given.cost(printed) / given.beta,
        "confidence": math.log(given.choices / given.delta) / given.beta,
    }


def maurer_seeger(
    empirical_risk: float,
    kl: float,
    m: int,
    a: float,
    b: float,
    delta: float,
    privacy: float = 0.0,
) -> Bound:
    r"""Return the PAC-Bayes-kl bound (Seeger 2002, Maurer 2004), for EVERY posterior Q and without a beta:

    $$\mathrm{kl}(\hat L(Q, S) \| L(Q, D))
      \le \frac1m \Big( \mathrm{KL}(Q \| P) + I + \ln \frac{\xi(m)}{\delta} \Big),
      \quad \xi(m) = \sum_k \binom mk (k/m)^k (1 - k/m)^{m-k} \le 2 \sqrt m$$

    for risks in units of b - a, with probability at least 1 - delta. `privacy` is I, what it costs in nats
    that the prior has seen the samples. The terms share what lies above the empirical risk by their nats.
    """
    width, m = loss_width(a, b), count(m, "the number of samples m")
    empirical = risk(empirical_risk, a, b, "The empirical risk")
    k = np.arange(m + 1)
    chances = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
    confidence = float(logsumexp(chances + xlogy(k, k / m) + xlogy(m - k, 1 - k / m)))
    nats = {
        "divergence": not_negative(kl, "KL(Q || P)"),
        "privacy": not_negative(privacy, "I"),
        "confidence": confidence - math.log(probability(delta)),
    }
    total = sum(nats.values())
    slack = a + width * kl_inverse((empirical - a) / width, total / m) - empirical
    return Bound({"empirical": empirical} | {key: slack * n / total for key, n in nats.items()})


def catoni(
    empirical_risk: float, kl: float, beta: float, m: int, a: float, b: float, delta: float
) -> float:
    r"""Return Catoni's bound (2007), for EVERY posterior Q at once and one beta fixed beforehand:

    $$L(Q, D) \le \frac{1 - \exp(-\frac1m (\beta \hat L(Q, S) + \mathrm{KL}(Q \| P) + \ln \frac1\delta))}
      {1 - e^{-\beta / m}}$$

    for a loss in [0, 1], and beta (b - a) in place of beta elsewhere. Never above `client_bound` with the
    same beta, whose deviation term is Hoeffding's bound on the same function.
    """
    width, m = loss_width(a, b), count(m, "the number of samples m")
    share = (risk(empirical_risk, a, b, "The empirical risk") - a) / width
    beta = positive(beta, "beta") * width
    nats = not_negative(kl, "KL(Q || P)") - math.log(probability(delta))
    upper = math.expm1(-(beta * share + nats) / m) / math.expm1(-beta / m)
    return a + width * min(1.0, upper)


def approximate_cost(delta: float, epsilon: float, delta_private: float) -> float:
    r"""Return what a prior costs, in nats, that is (epsilon, delta')-DP towards the client's whole data:

    $$\Pr[\text{fails}] \le e^\epsilon \Pr_{\text{independent}}[\text{fails}] + \delta'
      \quad\Rightarrow\quad I = \epsilon + \ln \frac{\delta}{\delta - \delta'},$$

    for replacing one client. Infinite where delta' is delta or more.
    """
    not_negative(epsilon, "epsilon")
    if not_negative(delta_private, "the delta of the privacy") >= probability(delta):
        return math.inf
    return epsilon - math.log1p(-delta_private / delta)


def gaussian_cost(delta: float, mu: float) -> float:
    r"""Return what a prior costs, in nats, that is mu-Gaussian-DP towards the client's whole data:

    $$\delta_{\text{independent}} = \Phi(\Phi^{-1}(\delta) - \mu),
      \qquad I = \ln(\delta / \delta_{\text{independent}}).$$

    T rounds of Gaussian noise of `multiplier` times the clip, in which all clients take part, have
    mu = 2 sqrt(T) / multiplier for replacing one client.
    """
    moved = float(ndtri(probability(delta))) - not_negative(mu, "mu")
    return max(0.0, math.log(delta) - float(log_ndtr(moved)))


def privacy_cost(
    epsilon: float, m: int, delta: float, *, unit: Unit = "sample", printed: bool = False
) -> float:
    r"""Return I(epsilon, m, delta) of the client-level theorem, in nats.

    As printed (paper, Section 3), for epsilon-DP towards a change of one of m samples:

    $$I = \tfrac12 m \epsilon^2 + \epsilon \sqrt{\tfrac12 m \ln(4/\delta)} + \ln 2.$$

    By default the smallest of what can be proved, since all of it is known beforehand:

    - m epsilon: all m samples are changed one after the other, so the density ratio never
      exceeds exp(m epsilon); nothing of delta is spent, and I = 0 for epsilon = 0, where the
      printed I is ln 2;
    - $v + \sqrt{v^2 + 2 v \ln(2/\delta)} + \ln 2$ with $v = m \epsilon^2 / 4$: the concentration
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
    r"""Return epsilon_i of drawing priors from Q* (paper, Section 4, privacy lemma):

    $$\epsilon_i = \text{draws} \cdot 2 \beta_i \tau (b - a) / m_i, \qquad \text{width} = b - a.$$

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


def participation_margin(
    evidence_after: float, evidence_before: float, given: ClientPremises
) -> float:
    r"""Return by how much taking part tightens this client's own expected bound, in units of the loss:

    $$\big( E_{P \sim Q} \ln Z_\beta(P, S_i) - E_{P \sim \text{hyper-prior}} \ln Z_\beta(P, S_i)
      - I \big) / \beta.$$

    `evidence_after` and `evidence_before` are the two expectations. A prior drawn from the
    hyper-prior is independent of the data and costs no I; all other terms of the two bounds
    are equal. Positive: the client's constraint holds, taking part helps.
    """
    gain, cost = _gain_and_cost(evidence_after, evidence_before, given)
    return gain - cost


def participation(
    evidence_after: float, evidence_before: float, given: ClientPremises
) -> Condition:
    """Return the client's constraint as a record that explains itself."""
    gain, cost = _gain_and_cost(evidence_after, evidence_before, given)
    return decided(
        "taking part tightens this client's own bound",
        gain >= cost,
        f"the shared prior improves the empirical part of the bound by {gain:.4g}, and its "
        f"dependence on the client's own data costs {cost:.4g}: a margin of {gain - cost:.4g}",
    )


def _gain_and_cost(after: float, before: float, given: ClientPremises) -> tuple[float, float]:
    for value, place in ((after, "hyper-posterior"), (before, "hyper-prior")):
        risk(-value / given.beta, given.a, given.b, f"-E ln Z / beta under the {place}")
    return (after - before) / given.beta, given.cost() / given.beta


def lagrangian(
    hyper_posterior: ArrayLike,
    hyper_prior: ArrayLike,
    log_evidence: ArrayLike,
    costs: ArrayLike,
    tau: float,
) -> float:
    r"""Return the Lagrange function whose maximiser is Q*, over finitely many priors:

    $$-\mathrm{KL}(Q \| \text{hyper-prior}) + \tau \sum_i \big( E_{P \sim Q} \ln Z_i(P) - I_i
      - E_{P \sim \text{hyper-prior}} \ln Z_i(P) \big).$$

    `log_evidence` has one row per client and one column per prior, `costs` holds I_i.
    """
    after = np.asarray(hyper_posterior, dtype=np.float64)
    before = np.asarray(hyper_prior, dtype=np.float64)
    gains = np.atleast_2d(log_evidence) @ (after - before) - np.asarray(costs)
    return float(tau * np.sum(gains) - np.sum(rel_entr(after, before)))
