"""From numbers to a certificate: a bound on a risk, and what it rests on.

Nothing is read, printed or trained here: the caller brings empirical risks, divergences and the
run's privacy; this module spends the failure probability, picks the tightest bound that was
paid for, and says which premises hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.bounds import (
    ClientPremises,
    Condition,
    ServerPremises,
    betting_bound,
    client_bound,
    new_client_bound,
    non_vacuous_loss,
    non_vacuous_privacy,
    server_bound,
)
from pacpfl.bounds.client import Unit
from pacpfl.bounds.conditions import probability
from pacpfl.bounds.conditions import risk as checked_risk
from pacpfl.bounds.losses import LossRange
from pacpfl.errors import InputError

Verdict = Literal["proved", "assumed", "no statement", "not valid"]

# Of the failure probability, the part that pays for draws where a risk is not exact.
MONTE_CARLO_SHARE = 0.2


@dataclass(frozen=True)
class Privacy:
    """How far the prior depends on the client's data: the theorem's epsilon, and who vouches.

    `proved`: the run kept to pure epsilon-DP (for instance the `laplace` mode). `assumed`: the
    epsilon is a premise (for instance that of Q*, while the particles come from SVGD).
    `independent`: the prior has not seen the client's data at all, as for new clients.
    """

    standing: Literal["proved", "assumed", "independent"]
    reason: str
    epsilon: float = 0.0
    unit: Unit = "sample"

    def __post_init__(self) -> None:
        if self.standing not in ("proved", "assumed", "independent"):
            raise InputError(
                f"The privacy's standing is '{self.standing}', "
                "but it is 'proved', 'assumed' or 'independent'."
            )
        if self.standing == "independent" and self.epsilon != 0:
            raise InputError("A prior that is independent of the data has epsilon = 0.")

    def condition(self) -> Condition:
        if self.standing == "independent":
            return Condition("prior independent of the client's data", "holds", self.reason)
        return Condition(
            "prior from an epsilon-DP algorithm",
            "holds" if self.standing == "proved" else "assumed",
            f"epsilon = {self.epsilon:.4g} per {self.unit}, {self.reason}",
        )


@dataclass(frozen=True)
class Candidate:
    """One beta, with the posterior that goes with it.

    `risk` is E_{h~Q} of the average loss on the client's samples: a number where it is exact, or
    the values of independent draws of h. `kl` is KL(Q || P), or a proved upper bound on it.
    """

    beta: float
    risk: float | Sequence[float] | np.ndarray
    kl: float

    @property
    def exact(self) -> bool:
        return np.ndim(self.risk) == 0

    @property
    def mean_risk(self) -> float:
        return float(np.mean(self.risk))


@dataclass(frozen=True)
class Certificate:
    """What one client, or the federation, may rely on."""

    subject: str
    loss: LossRange
    posterior: str
    empirical_risk: float
    terms: Mapping[str, float]  # of the bound
    delta_split: Mapping[str, float]  # what may fail, and how probably at most
    beta: float
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
        """Every premise that can be checked holds."""
        return self._premises <= {"holds"}

    @property
    def verdict(self) -> Verdict:
        """Say in a word what the certificate is worth; the rest is in its conditions."""
        if "does not hold" in self._premises:
            return "not valid"
        if self.vacuous:
            return "no statement"
        return "proved" if self.proved else "assumed"

    def under(self, *more: Condition | None) -> Certificate:
        """Return the certificate with more conditions, those that there are."""
        return replace(self, conditions=(*self.conditions, *filter(None, more)))


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


def certify_client(
    subject: str,
    loss: LossRange,
    candidates: Sequence[Candidate],
    *,
    m: int,
    privacy: Privacy,
    delta: float,
    later: int = 0,
    posterior: str = "posterior",
) -> Certificate:
    """Return the tightest client-level bound of the candidates; it is valid for all of them at once.

    Budget: with the best of c candidates, ln(c / delta') takes the place of ln(1 / delta').
    Where risks come from draws, a share of delta pays for them, divided by their number, and
    the bound proper has the rest.
    """
    probability(delta)
    if not candidates:
        raise InputError(f"There is no candidate for {subject}: give at least one beta.")
    drawn, choices = sum(not candidate.exact for candidate in candidates), len(candidates)
    for_draws = MONTE_CARLO_SHARE * delta if drawn else 0.0
    split = {"bound": delta - for_draws} | ({"draws": for_draws} if drawn else {})

    def certify(candidate: Candidate) -> Certificate:
        risk, beta = candidate.mean_risk, candidate.beta
        given = ClientPremises(
            beta, m, loss.a, loss.b, split["bound"], later, privacy.epsilon, privacy.unit, choices
        )
        terms = dict(client_bound(risk, candidate.kl, given).terms)
        if not candidate.exact:
            upper = betting_bound(candidate.risk, loss.a, loss.b, for_draws / drawn)
            terms["draws"] = upper - risk
        conditions = (
            _bounded(loss),
            privacy.condition(),
            _paid_choice(choices),
            SAMPLES_INDEPENDENT,
            CHOICES_INDEPENDENT,
            non_vacuous_loss(beta, m + later, loss.a, loss.b),
            non_vacuous_privacy(privacy.epsilon, beta, m, loss.a, loss.b),
        )
        return Certificate(subject, loss, posterior, risk, terms, split, beta, conditions)

    return min(map(certify, candidates), key=lambda certificate: certificate.bound)


def certify_federation(
    loss: LossRange,
    log_evidence: ArrayLike,
    kl: float,
    empirical_risk: float,
    given: ServerPremises,
    hyper_posterior: Condition,
    *,
    newcomers: bool = False,
    other_failures: Mapping[str, float] | None = None,
) -> Certificate:
    """Return the server-level bound as a certificate for the clients' average risk, weighted by beta.

    With `newcomers` it is the new-client bound, for the average over clients yet to come.
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
    bound = (new_client_bound if newcomers else server_bound)(log_evidence, kl, given)
    new = (NEW_LIKE_EXISTING,) if newcomers else ()
    return Certificate(
        subject="clients yet to come" if newcomers else "federation",
        loss=loss,
        posterior="Gibbs posteriors, average"
        + (" over new clients" if newcomers else ", weighted by beta"),
        empirical_risk=empirical_risk,
        terms=bound.terms,
        delta_split=split,
        beta=float(np.mean(given.betas)),
        conditions=(
            _bounded(loss),
            hyper_posterior,
            *new,
            SAMPLES_INDEPENDENT,
            CLIENTS_INDEPENDENT,
            CHOICES_INDEPENDENT,
        ),
    )


def _bounded(loss: LossRange) -> Condition:
    return Condition(
        "bounded loss", "holds", f"{loss.name} has its values in [{loss.a:g}, {loss.b:g}]"
    )


def _paid_choice(choices: int) -> Condition:
    reason = f"the best of {choices} betas, at the price of ln({choices}) more in the confidence"
    if choices == 1:
        reason = "one beta, and nothing to choose"
    return Condition("choice of beta paid for", "holds", reason)
