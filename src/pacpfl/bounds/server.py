"""Bounds on average risks: of the clients, and of clients yet to come, whatever the hyper-posterior.

By default these functions compute the theorem that we can prove (`docs/theory.md`, "The
server-level bound"); `printed` gives the paper's formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pacpfl.bounds.conditions import (
    ROUNDING,
    Bound,
    count,
    later_weight,
    loss_width,
    not_negative,
    positive,
    positive_vector,
    probability,
    risk,
    vector,
)
from pacpfl.errors import InputError

UPSILON = 1e-4  # the paper's choice

Printed = Literal["theorem", "proof"]


@dataclass(frozen=True)
class ServerPremises:
    """The premises of the server-level theorem; wrong values are refused.

    One entry per client in `betas` (the temperatures beta_i), `samples` (m_i) and `later`
    (m~_i; None where it is not known; no later samples by default). The loss lies in [a, b].
    `lambda_` = infinity is the tightest bound; a finite one puts the weight 1/(n beta tau) on
    the divergence, so that Q* with that tau is what minimises the bound.
    """

    betas: Sequence[float]
    samples: Sequence[int]
    a: float
    b: float
    delta: float
    later: Sequence[int | None] | None = None
    lambda_: float = math.inf
    upsilon: float = UPSILON

    def __post_init__(self) -> None:
        if self.clients == 0:
            raise InputError("There is no client: give at least one number of samples.")
        if len(self.later_samples) != self.clients:
            raise InputError(
                f"later has {len(self.later_samples)} entries for {self.clients} clients: "
                "give one number of later samples per client, None where it is not known."
            )
        for i, (m, later) in enumerate(zip(self.samples, self.later_samples, strict=True)):
            count(m, f"the number of samples of client {i}")
            count(later or 0, f"the number of later samples of client {i}", 0)
        positive_vector(self.betas, "beta", self.clients)
        loss_width(self.a, self.b)
        probability(self.delta)
        later_weight(self.lambda_, self.new_clients, self.upsilon)

    @property
    def clients(self) -> int:
        return len(self.samples)

    @property
    def later_samples(self) -> tuple[int | None, ...]:
        return (0,) * self.clients if self.later is None else tuple(self.later)

    @property
    def new_clients(self) -> int:
        """Count n_2: clients with later samples, or whose number of later samples is not known."""
        return sum(1 for m in self.later_samples if m is None or m > 0)

    @property
    def later_weight(self) -> float:
        return later_weight(self.lambda_, self.new_clients, self.upsilon)


def tau_from_lambda(lambda_: float, betas: ArrayLike, n_2: int, upsilon: float = UPSILON) -> float:
    r"""Return tau (paper, corollary on Q*):

    $$\tau = \frac{\lambda}{\lambda + (\sum_i \beta_i) (n_2 + \upsilon)}.$$

    For one beta the sum is n beta, as printed; for beta_i that differ the sum is what the
    proof gives, that is the MEAN of the beta_i takes the place of beta.
    """
    total = float(positive_vector(betas, "beta").sum())
    return 1 / (1 + total * later_weight(lambda_, n_2, upsilon))


def lambda_from_tau(tau: float, betas: ArrayLike, n_2: int, upsilon: float = UPSILON) -> float:
    r"""Return $\lambda = \tau (\sum_i \beta_i) (n_2 + \upsilon) / (1 - \tau)$; infinite for tau = 1."""
    total = float(positive_vector(betas, "beta").sum())
    later_weight(1.0, n_2, upsilon)
    if not 0 < tau <= 1:
        raise InputError(f"tau is {tau}, but a lambda belongs to it only in (0, 1].")
    return tau * total * (n_2 + upsilon) / (1 - tau) if tau < 1 else math.inf


def later_range(
    beta: float, m: int, later: int | None, a: float, b: float, clients: int, printed: bool = False
) -> float:
    r"""Return Delta_i: how far later samples can move client i's share of the average risk.

    With $r = \tilde m / (m + \tilde m)$, the log density of the Gibbs posterior changes by at most
    $c = \beta r (b - a)$ in either direction, before normalisation, and therefore

    $$|L(Q^*(P, S \cup \tilde S), D) - L(Q^*(P, S), D)| / n \le (b - a) \tanh(c / 2) / n,$$

    which is attained. Not known (None): (b - a) / n (paper, lemma on unknown m~).
    Printed: min{b - a, b (e^(2c) - e^(-2c))} / n, which is no bound where a < 0, and has the
    wrong sign where b < 0. The corrected server-level bound does not need Delta_i at all.
    """
    width = loss_width(a, b)
    positive(beta, "beta")
    count(m, "the number of samples m")
    count(clients, "the number of clients")
    if later is None:
        return width / clients
    later = count(later, "the number of later samples", 0)
    change = beta * later / (m + later) * width
    if printed:
        # exp(700) is the last one float64 holds; b - a is the smaller of the two long before.
        return min(width, 2 * b * math.sinh(min(2 * change, 700.0))) / clients
    return width * math.tanh(change / 2) / clients


def later_factor(m: int, later: int | None) -> float:
    r"""Return the factor by which the deviation term grows because later samples will come (ours):

    $$1 + \frac{\min(1, \tilde m / m)}{m + \tilde m} \le 1 + \frac{1}{2 m},$$

    the right side where the number of later samples is not known.

    S is a sample without replacement from S u S~, so E[Z(S) | S u S~] exceeds Z(S u S~) by no
    more than Serfling's factor exp(beta^2 (b-a)^2 / (8m) (m~ + min(1, m~/m)) / (m + m~)).
    """
    m = count(m, "the number of samples m")
    if later is None:
        return 1 + 1 / (2 * m)
    later = count(later, "the number of later samples", 0)
    return 1 + min(1.0, later / m) / (m + later)


def server_bound(
    log_evidence: ArrayLike,
    kl: float,
    given: ServerPremises,
    *,
    weights: ArrayLike | None = None,
    printed: Printed | None = None,
) -> Bound:
    r"""Return the bound of the server-level theorem (paper, Section 4).

    With probability at least 1 - delta, for EVERY hyper-posterior Q,

    $$\sum_i w_i E_{\tilde S_i} E_{P \sim Q} L(Q^*(P, S_i \cup \tilde S_i), D_i)
      \le -\sum_i \frac{w_i}{\beta_i} E_{P \sim Q} \ln Z_{\beta_i}(P, S_i)
      + \Big( \frac{1}{\kappa} + \frac{n_2 + \upsilon}{\lambda} \Big)
        \big( \mathrm{KL}(Q \| \text{hyper-prior}) + \ln \tfrac{1}{\delta} \big)
      + \frac{\kappa (b-a)^2}{8} \sum_i \frac{w_i^2 f_i}{m_i},$$

    $\kappa = \max_i \beta_i / w_i$ and $f_i$ = `later_factor`. `log_evidence` holds E_{P~Q} ln Z per
    client. The weights w_i sum to one: by default they are proportional to beta_i (then
    kappa = sum_i beta_i, and Q* is the minimiser for any beta_i); give equal ones for the plain
    average. With one beta both are the paper's average and kappa = n beta.

    `printed="theorem"` is the paper's formula (Section 4) with ln(1/delta)/sqrt(n);
    `printed="proof"` has ln(1/delta) in its place, as the appendix derives it. Both put each
    client's own beta_i where the paper has beta, and their mean in 1/(n beta).
    """
    if printed is None:
        shares = _checked_weights(weights, given)
        terms = _server_terms(given, shares, given.later_samples)
    else:
        shares, terms = _equal_weights(given), _printed_terms(given, printed)
    return terms.bound(log_evidence, kl, shares)


class _Terms(NamedTuple):
    """The price of a divergence, and the terms that neither data nor hyper-posterior change."""

    given: ServerPremises
    price: float  # of one nat of divergence
    rest: dict[str, float]

    def bound(self, log_evidence: ArrayLike, kl: float, shares: np.ndarray) -> Bound:
        """Return the bound of one hyper-posterior, for clients with these weights."""
        given = self.given
        evidence = vector(log_evidence, "The expected log evidence", given.clients)
        values = [
            risk(-value / beta, given.a, given.b, f"-ln Z / beta of client {client}")
            for client, (value, beta) in enumerate(zip(evidence, given.betas, strict=True))
        ]
        divergence = self.price * not_negative(kl, "KL(Q || hyper-prior)")
        return Bound({"empirical": float(shares @ values), "divergence": divergence} | self.rest)

    def optimum(self, log_partition: float) -> Bound:
        """Return the bound of Q*, where the price is 1 / (tau sum_i beta_i)."""
        free_energy = -self.price * log_partition
        risk(free_energy, self.given.a, self.given.b, "-ln Z^S / (tau n beta)")
        return Bound({"empirical": free_energy} | self.rest)


def _server_terms(given: ServerPremises, shares: np.ndarray, later: Sequence[int | None]) -> _Terms:
    """Return the terms that we can prove, for clients with these weights and later samples."""
    kappa = float(np.max(np.asarray(given.betas) / shares))
    pairs = zip(given.samples, later, strict=True)
    spread = np.array([later_factor(m, more) / m for m, more in pairs])
    deviation = kappa * (given.b - given.a) ** 2 / 8 * float(np.sum(shares**2 * spread))
    price = 1 / kappa + given.later_weight
    confidence = price * math.log(1 / given.delta)
    return _Terms(given, price, {"deviation": deviation, "confidence": confidence})


def _printed_terms(given: ServerPremises, printed: Printed, later: bool = True) -> _Terms:
    """Return the terms as the paper prints them, for the plain average."""
    if printed not in ("theorem", "proof"):
        raise InputError(f"printed is '{printed}', but it is 'theorem' or 'proof'.")
    betas, nats = np.asarray(given.betas, dtype=np.float64), math.log(1 / given.delta)
    spread = float(np.mean(betas / np.asarray(given.samples)))
    rest = {"deviation": (given.b - given.a) ** 2 / 8 * spread}
    if later:
        _finite_lambda(given, "printed server-level")
        ranges = [
            later_range(beta, m, more, given.a, given.b, given.clients, printed=True)
            for beta, m, more in zip(given.betas, given.samples, given.later_samples, strict=True)
        ]
        rest["later"] = float(np.sum(np.square(ranges))) / (8 * given.later_weight)
    rest["confidence"] = nats / math.sqrt(given.clients) if printed == "theorem" else nats
    return _Terms(given, 1 / float(betas.sum()) + given.later_weight, rest)


def _new_client_terms(given: ServerPremises, printed: bool) -> _Terms:
    """Return the terms without later samples, and the one that new clients add."""
    _finite_lambda(given, "new-client")
    n = given.clients
    if printed:
        terms = _printed_terms(given, "theorem", later=False)
    else:
        terms = _server_terms(given, _equal_weights(given), (0,) * n)
    newness = (given.b - given.a) ** 2 / (8 * n * given.later_weight)
    return terms._replace(rest=terms.rest | {"newness": newness})


def _finite_lambda(given: ServerPremises, name: str) -> None:
    if math.isinf(given.lambda_):
        raise InputError(f"The {name} bound needs a finite lambda: give one.")


def optimal_server_bound(log_partition: float, given: ServerPremises) -> Bound:
    r"""Return the server-level bound at its minimum, Q = Q* with the tau of `given` (weights ~ beta_i).

    $-\ln Z^S_\tau / (\tau \sum_i \beta_i)$ stands for the first two terms of `server_bound`.
    """
    shares = _checked_weights(None, given)
    return _server_terms(given, shares, given.later_samples).optimum(log_partition)


def optimal_hyper_posterior(
    log_hyper_prior: ArrayLike, log_evidence: ArrayLike, tau: float
) -> tuple[np.ndarray, float]:
    r"""Return Q* over finitely many priors, and ln Z^S (paper, corollary on Q*):

    $$\ln Q^*(P) = \ln \text{hyper-prior}(P) + \tau \sum_i \ln Z_{\beta_i}(P, S_i) - \ln Z^S_\tau.$$

    `log_evidence` has one row per client and one column per prior.
    """
    positive(tau, "tau")
    scores = np.asarray(log_hyper_prior) + tau * np.sum(np.atleast_2d(log_evidence), axis=0)
    log_partition = float(logsumexp(scores))
    if not math.isfinite(log_partition):
        raise InputError("ln Z^S is not finite: the log evidences must be finite numbers.")
    return scores - log_partition, log_partition


def _equal_weights(given: ServerPremises) -> np.ndarray:
    return np.full(given.clients, 1 / given.clients)


def _checked_weights(weights: ArrayLike | None, given: ServerPremises) -> np.ndarray:
    if weights is None:
        betas = np.asarray(given.betas, dtype=np.float64)
        return betas / betas.sum()
    shares = positive_vector(weights, "the weight", given.clients)
    if abs(shares.sum() - 1) > ROUNDING * given.clients:
        raise InputError(f"The clients' weights sum to {shares.sum()}: they must sum to one.")
    return shares


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
    # What existing clients know WITHOUT later samples: new clients start from there.
    return _new_client_terms(given, printed).bound(log_evidence, kl, _equal_weights(given))


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
    return _new_client_terms(given, printed).optimum(log_partition)


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
    group_means = logsumexp(terms.reshape(groups, -1), axis=1) - math.log(draws // groups)
    return LogPartition(
        estimate=estimate,
        standard_error=float(ratios.std(ddof=1)) / math.sqrt(draws),
        effective_draws=float(draws**2 / np.sum(ratios**2)),
        lower=float(np.mean(group_means)) - math.log(1 / alpha) / groups,
    )
