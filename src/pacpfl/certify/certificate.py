"""From numbers to a certificate: a bound on a risk, and what it rests on.

Nothing is read, printed or trained here: the caller brings empirical risks, divergences and the
run's privacy; this module spends the failure probability, picks the tightest bound that was
paid for, and says which premises hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.bounds import (
    Condition,
    ServerPremises,
    approximate_cost,
    betting_bound,
    clopper_pearson,
    gaussian_cost,
    kl_inverse,
    maurer_seeger,
    privacy_cost,
    server_bound,
)
from pacpfl.bounds.client import Unit
from pacpfl.bounds.conditions import Status, count, probability
from pacpfl.bounds.conditions import risk as checked_risk
from pacpfl.bounds.losses import LossRange
from pacpfl.errors import InputError

Verdict = Literal["proved", "assumed", "no statement", "not valid", "contradicted"]

REFUTABLE = "not refuted by test rows"
PRIVATE = "prior from a private algorithm"
# Of the failure probability, the part that pays for draws where a risk is not exact.
MONTE_CARLO_SHARE = 0.2
SMALLEST_LOG = -600.0  # of a delta that float64 holds
LARGEST_COST = 1e9  # nats: beyond, no number of samples says anything


@dataclass(frozen=True)
class Privacy:
    """How far the prior depends on the client's data: the theorem's epsilon, and who vouches.

    `proved`: noise made the run private, as its ledger records. `assumed`: the epsilon is a premise (for
    instance that of Q*, while the particles come from SVGD). `independent`: the prior has not seen the
    client's data at all, as for new clients, and for later samples.

    With `mu` the guarantee is that of Gaussian noise, and epsilon says the same in other words; `deltas`
    are more pairs (epsilon, delta) that hold as well, towards the whole client.
    """

    standing: Literal["proved", "assumed", "independent"]
    reason: str
    epsilon: float = 0.0
    unit: Unit = "sample"
    mu: float | None = None
    deltas: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.standing not in ("proved", "assumed", "independent"):
            raise InputError(
                f"The privacy's standing is '{self.standing}', "
                "but it is 'proved', 'assumed' or 'independent'."
            )
        if self.standing == "independent" and self.epsilon != 0:
            raise InputError("A prior that is independent of the data has epsilon = 0.")

    def cost(self, m: int, delta: float) -> float:
        """Return ln(delta / delta'): what fails with delta' for independent priors fails with delta."""
        if self.mu is not None:
            return gaussian_cost(delta, self.mu)
        if self.deltas:
            return min(approximate_cost(delta, *pair) for pair in self.deltas)
        return privacy_cost(self.epsilon, m, delta, unit=self.unit)

    def condition(self) -> Condition:
        if self.standing == "independent":
            return Condition("prior independent of the client's data", "holds", self.reason)
        return Condition(
            PRIVATE,
            "holds" if self.standing == "proved" else "assumed",
            f"epsilon = {self.epsilon:.4g} per {self.unit}, {self.reason}",
        )


@dataclass(frozen=True)
class Certificate:
    """What one client, or the federation, may rely on."""

    subject: str
    loss: LossRange
    posterior: str
    empirical_risk: float
    terms: Mapping[str, float]  # of the bound
    delta_split: Mapping[str, float]  # what may fail, and how probably at most
    conditions: tuple[Condition, ...]

    @property
    def bound(self) -> float:
        return float(sum(self.terms.values()))

    @property
    def delta(self) -> float:
        return sum(self.delta_split.values())

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: a loss never exceeds b."""
        return self.bound >= self.loss.b

    @property
    def _premises(self) -> set[str]:
        return {condition.status for condition in self.conditions if condition.kind == "premise"}

    @property
    def proved(self) -> bool:
        """Every premise that can be checked holds, and no rows speak against it."""
        return self._premises <= {"holds"} and not self.contradicted

    @property
    def contradicted(self) -> bool:
        """Whether rows of the client, or of its like, refute the certificate or a premise of it."""
        return any(condition.status == "contradicted" for condition in self.conditions)

    @property
    def verdict(self) -> Verdict:
        """Say in a word what the certificate is worth; the rest is in its conditions."""
        if "does not hold" in self._premises:
            return "not valid"
        if self.contradicted:
            return "contradicted"
        if self.vacuous:
            return "no statement"
        return "proved" if self.proved else "assumed"

    def under(self, *more: Condition | None) -> Certificate:
        """Return the certificate with more conditions; one takes the place of another of its name."""
        named = {condition.name: condition for condition in (*self.conditions, *filter(None, more))}
        return replace(self, conditions=tuple(named.values()))


def _world(name: str, taken: str) -> Condition:
    return Condition(name, "assumed", taken, "world")


SAMPLES_INDEPENDENT = _world(
    "independent samples",
    "a client's samples are taken as independent draws of what it will meet later",
)
CLIENTS_INDEPENDENT = _world(
    "independent clients", "the clients' data are taken as independent of one another"
)
NEW_LIKE_EXISTING = _world(
    "new clients like the existing ones",
    "clients and their sample sizes are taken as draws from one distribution",
)
CHOICES_INDEPENDENT = _world(
    "choices made without these samples",
    "loss, clipping, betas, hyper-prior and tau are taken as fixed before the samples were seen",
)


def certify_posterior(
    subject: str,
    loss: LossRange,
    risk: float | np.ndarray,
    kl: float,
    *,
    m: int,
    privacy: Privacy,
    delta: float,
    seen: int | None = None,
    posterior: str = "posterior",
) -> Certificate:
    """Return the PAC-Bayes bound of one posterior: of models drawn from it.

    `risk` is E_{h~Q} of the average loss on the client's m samples: a number where it is exact, or the
    values of independent draws of h, for which a fifth of delta pays. `kl` is KL(Q || P) or a proved upper
    bound on it, and `seen` the number of the samples that the training has seen (None: all).
    """
    probability(delta)
    drawn = np.ndim(risk) > 0
    for_draws = MONTE_CARLO_SHARE * delta if drawn else 0.0
    split = {"bound": delta - for_draws} | ({"draws": for_draws} if drawn else {})
    upper = mean = float(np.mean(risk))
    if drawn:
        upper = betting_bound(risk, loss.a, loss.b, for_draws)
    cost = privacy.cost(m if seen is None else seen, split["bound"])
    bound = maurer_seeger(upper, kl, m, loss.a, loss.b, split["bound"], min(cost, LARGEST_COST))
    terms = dict(bound.terms) | {"empirical": mean} | ({"draws": upper - mean} if drawn else {})
    conditions = bounded(loss), privacy.condition(), SAMPLES_INDEPENDENT, CHOICES_INDEPENDENT
    return Certificate(subject, loss, posterior, mean, terms, split, conditions)


def certify_rows(
    subject: str,
    loss: LossRange,
    values: np.ndarray,
    *,
    privacy: Privacy,
    delta: float,
    posterior: str,
    binary: bool = False,
) -> Certificate:
    """Return the bound of a model from its losses on rows that it was fitted without.

    The rows stand in an order that was chosen without them. Where the shared prior has seen them, the
    bound is that of the smaller delta for which `privacy` pays. Every loss is 0 or 1 where it is `binary`:
    then the bound is Clopper-Pearson's.
    """
    rows = count(len(values), "the number of rows that judge")
    mean, log_delta = float(np.mean(values)), math.log(probability(delta))
    log_delta -= privacy.cost(rows, delta)
    bound = loss.b
    if log_delta > SMALLEST_LOG:
        least = math.exp(log_delta)
        bound = (
            clopper_pearson(int(np.sum(values)), rows, least)
            if binary
            else betting_bound(values, loss.a, loss.b, least)
        )
    terms = {"empirical": mean, "confidence": bound - mean}
    conditions = bounded(loss), privacy.condition(), SAMPLES_INDEPENDENT, CHOICES_INDEPENDENT
    return Certificate(subject, loss, posterior, mean, terms, {"bound": delta}, conditions)


def judged_by_tests(certificate: Certificate, risk: float | None, rows: int) -> Certificate:
    """Return the certificate with what the client's test rows say: do they refute the bound?

    By Chernoff's inequality: the chance of rows so bad, were the expected loss at the bound, is at most
    exp(-n kl(risk || bound)). Below delta, it is a contradiction.
    """
    loss, delta = certificate.loss, certificate.delta
    if risk is None or not rows:
        return certificate
    least = loss.b - loss.width * kl_inverse((loss.b - risk) / loss.width, -math.log(delta) / rows)
    refuted = least > certificate.bound
    reason = (
        f"{rows} test rows have an average loss of {risk:.4g}, and an expected loss of at least "
        f"{least:.4g} with probability {1 - delta:g}; the bound is {certificate.bound:.4g}"
    )
    status: Status = "contradicted" if refuted else "holds"
    return certificate.under(Condition(REFUTABLE, status, reason, "use"))


def certify_federation(
    loss: LossRange,
    log_evidence: ArrayLike,
    kl: float,
    empirical_risk: float,
    given: ServerPremises,
    hyper_posterior: Condition,
    *,
    other_failures: Mapping[str, float] | None = None,
) -> Certificate:
    """Return the server-level bound as a certificate for the clients' average risk, weighted by beta.

    `log_evidence` and `kl` must be exact or bounds on the safe side (ln Z from below, KL from
    above); the probabilities by which such bounds may fail stand in `other_failures`, name by
    name, and are added to `given.delta`. `hyper_posterior` says which hyper-posterior they
    belong to, and whether that is the one in use.
    """
    if (given.a, given.b) != (loss.a, loss.b):
        raise InputError(
            f"The premises speak of a loss in [{given.a}, {given.b}], "
            f"but {loss.name} lies in [{loss.a}, {loss.b}]: give both the same interval."
        )
    split = {"bound": given.delta} | {
        name: probability(value, f"the failure probability of {name}")
        for name, value in (other_failures or {}).items()
    }
    probability(sum(split.values()), "the sum of all failure probabilities")
    checked_risk(empirical_risk, loss.a, loss.b, "The federation's empirical risk")
    return Certificate(
        subject="federation",
        loss=loss,
        posterior="Gibbs posteriors, average, weighted by beta",
        empirical_risk=empirical_risk,
        terms=server_bound(log_evidence, kl, given).terms,
        delta_split=split,
        conditions=(
            bounded(loss),
            hyper_posterior,
            SAMPLES_INDEPENDENT,
            CLIENTS_INDEPENDENT,
            CHOICES_INDEPENDENT,
        ),
    )


def bounded(loss: LossRange) -> Condition:
    return Condition(
        "bounded loss", "holds", f"{loss.name} has its values in [{loss.a:g}, {loss.b:g}]"
    )
