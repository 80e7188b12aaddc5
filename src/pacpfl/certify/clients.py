"""From a client's models to its certificate: one procedure for all families of models.

The prior of a client is one of the k particles, drawn with equal chances; its posterior draws a particle
with weights of its own and then a hypothesis from that particle's posterior. The bound is for this
randomised predictor. A `Family` finds posteriors, what they cost and what they risk (`gaussian_processes`
exactly, `networks` by draws); here that becomes bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from pacpfl.bounds import (
    ClientPremises,
    Condition,
    gibbs_client_bound,
    mixture_kl,
    participation,
    participation_margin,
    sampling_epsilon,
)
from pacpfl.bounds.client import Unit
from pacpfl.bounds.losses import LossRange
from pacpfl.certify.certificate import Candidate, Certificate, Privacy, certify_client
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_samples
from pacpfl.methods.registry import temperatures
from pacpfl.run import Trained
from pacpfl.types import Client, Data, Federation, Samples

# Each beta of the grid is the best one for that many nats of divergence and confidence together.
NATS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
UNSCALED = "samples not changed by their own statistics"


@dataclass(frozen=True)
class ClientCertificate:
    """One client's certificate with what stands beside it.

    `certificate` is for the posterior with the tightest bound, `in_use` for the model the client
    predicts with (the run's temperature and mixture weights). Both hold at once: the theorem is for
    all posteriors at the same time, though each pays for its own draws where there are any. Test
    risks are measured, and None without test samples.
    """

    client: str
    group: str
    samples: int
    later: int
    privacy: Privacy
    certificate: Certificate
    temperature: float
    kl: float
    test_risk: float | None
    in_use: Certificate
    in_use_kl: float
    in_use_test_risk: float | None
    tolerated_epsilon: float
    participation: Condition
    margin: float
    margin_error: float
    networks_test_risk: float | None = None  # of networks in use that cannot be certified


class Choice(NamedTuple):
    """A posterior of a client: a row of its `Posteriors`, and weights of the components."""

    row: int
    weights: np.ndarray
    log_evidence: float = math.nan  # -beta L^(Q) - KL(Q || P), a lower bound on ln Z_beta


class Posteriors(NamedTuple):
    """A client's posteriors from some priors: rows are powers of the likelihood, columns components."""

    weights: np.ndarray  # [k, members] of the components in each prior
    risk: np.ndarray  # [rows, k * members] average loss on the client's samples
    kl: np.ndarray  # [rows, k * members] divergence from the component

    @property
    def prior(self) -> np.ndarray:
        """Return the weights of all components, [k * members]: priors have equal chances."""
        return (self.weights / len(self.weights)).ravel()

    def tightest(self, betas: np.ndarray) -> list[Choice]:
        r"""Return the row and the weights with the smallest bound, for each beta.

        For one row, $\sum_c q_c (\beta R_c + \mathrm{KL}_c) + \mathrm{KL}(q \| p)$ is smallest for
        $q_c \propto p_c e^{-\beta R_c - \mathrm{KL}_c}$, and is then
        $-\ln \sum_c p_c e^{-\beta R_c - \mathrm{KL}_c}$. Since
        $\ln Z_\beta \ge -\beta \hat L(Q) - \mathrm{KL}(Q \| P)$ for every Q, this is also a proved lower
        bound on ln Z.
        """
        scores = np.log(self.prior) - betas[:, None, None] * self.risk - self.kl  # [beta, row, c]
        totals = logsumexp(scores, axis=-1)
        return [
            Choice(int(row), np.exp(score[row] - total[row]), float(total[row]))
            for row, score, total in zip(totals.argmax(1), scores, totals, strict=True)
        ]

    def evidences(self, beta: float, largest: float) -> np.ndarray:
        """Return ln Z_beta of a bounded loss for each prior, from below; never less than -beta b."""
        k, betas = len(self.weights), np.array([beta])
        parts = np.split(self.weights, k), np.split(self.risk, k, 1), np.split(self.kl, k, 1)
        each = (Posteriors(*part).tightest(betas)[0] for part in zip(*parts, strict=True))
        return np.maximum([choice.log_evidence for choice in each], -beta * largest)

    def risk_of(self, choice: Choice) -> float:
        return float(choice.weights @ self.risk[choice.row])

    def divergence(self, choice: Choice) -> float:
        # A sum of parts that are not negative; rounding must not make it so.
        return max(0.0, float(mixture_kl(choice.weights, self.prior, self.kl[choice.row])))


class Models(NamedTuple):
    """One client's models, and what they risk: a number where it is exact, else independent draws."""

    shared: Posteriors  # from the particles; the last row is that of the model in use
    alone: Posteriors  # from priors that are drawn from the hyper-prior
    best: Sequence[Choice]  # for each beta
    used: Choice
    risk: Callable[[Choice], float | np.ndarray]
    test_risk: Callable[[Choice], float | None]
    networks_test_risk: float | None = None  # of networks in use, where these cannot be certified


@dataclass(frozen=True)
class ClientBounds:
    """All that a client's bounds rest on but the posterior."""

    client: Client
    group: str
    loss: LossRange
    privacy: Privacy
    delta: float

    @property
    def samples(self) -> int:
        """Count the samples a posterior may use, later ones included."""
        return len(self.client.personal)

    @property
    def later(self) -> int:
        return self.samples - len(self.client.train)

    @property
    def betas(self) -> np.ndarray:
        return beta_grid(self.samples, self.loss.width)

    def premises(self, beta: float, delta: float) -> ClientPremises:
        """Return the premises of the bound at one beta of the grid."""
        loss, privacy, choices = self.loss, self.privacy, len(self.betas)
        m, epsilon = len(self.client.train), privacy.epsilon
        return ClientPremises(
            beta, m, loss.a, loss.b, delta, self.later, epsilon, privacy.unit, choices
        )

    def smallest(self, choices: Sequence[Choice]) -> Choice:
        """Return the one of the choices, for each beta, whose bound is the smallest."""

        def bound(pair: tuple[float, Choice]) -> float:
            beta, choice = pair
            log_evidence = max(choice.log_evidence, -beta * self.loss.b)
            return gibbs_client_bound(log_evidence, self.premises(beta, self.delta)).value

        return min(zip(self.betas, choices, strict=True), key=bound)[1]

    def certify(
        self, models: Models, choices: Sequence[Choice], posterior: str
    ) -> tuple[Certificate, list[Candidate]]:
        """Return the certificate of posteriors, one for each beta, and what it was chosen from."""
        candidates = [
            Candidate(float(beta), models.risk(choice), models.shared.divergence(choice))
            for beta, choice in zip(self.betas, choices, strict=True)
        ]
        certificate = certify_client(
            self.client.name, self.loss, candidates, m=len(self.client.train), later=self.later,
            privacy=self.privacy, delta=self.delta, posterior=posterior,
        )  # fmt: skip
        return certificate, candidates

    def tolerated(self, best: Certificate, candidates: Sequence[Candidate]) -> float:
        """Return the nats left for the privacy cost before the bound reaches b, at the best beta."""
        betas, loss = self.betas, self.loss
        # Draws are paid for: their mean is not yet an upper bound.
        risks = np.array([one.mean_risk for one in candidates]) + best.terms.get("draws", 0.0)
        spent = np.array([one.kl for one in candidates]) - math.log(best.delta_split["bound"])
        left = betas * (loss.b - risks) - spent - math.log(len(betas))
        return max(0.0, float(np.max(left - betas**2 * loss.width**2 / (8 * self.samples))))


class Family(NamedTuple):
    """What one family of models says of a run; what follows from it is the same for all.

    For the averages `judge_pair` takes a prior, a client (its place) and betas. It returns -ln Z / beta
    from above, at most `largest`, and the empirical risk of the posterior that gives it.
    """

    trained: Trained
    loss: LossRange  # that is bounded
    training: tuple[float, str]  # how far the training's loss spreads where bounded; its name then
    titles: tuple[str, str]  # of the best posterior, and of that in use
    temperatures: Sequence[float]  # powers of the likelihood, one for each row of posteriors
    blocks: Sequence[np.ndarray]  # places of clients that are judged together; the last may repeat
    judge: Callable[[np.ndarray, Sequence[ClientBounds]], Sequence[Models]]
    judge_pair: Callable[
        [np.ndarray, int, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]
    ]
    largest: float
    pairs: int  # how many are drawn
    remark: Condition | None = None  # what has to be known of every certificate of a client


def certify_clients(
    family: Family,
    delta: float,
    epsilon: float | None = None,
    unit: Unit = "client",
    progress: Callable[[str], None] = lambda text: None,
) -> list[ClientCertificate]:
    """Return a certificate for every client, existing and new.

    Parameters
    ----------
    family
        The models of a finished run, with the loss that is bounded.
    delta
        The probability with which each certificate may fail.
    epsilon, unit
        The training's privacy towards existing clients, where it is given by hand.
    progress
        Called with the names of clients whose turn it is.
    """
    trained, everyone = family.trained, members(family.trained.federation)
    found: list[ClientCertificate] = []
    for places in family.blocks:
        inside = [everyone[place] for place in places]
        first, last = inside[0][1].name, inside[-1][1].name
        progress(first if len(inside) == 1 else f"{first} to {last}")
        bounds = []
        for group, client in inside:
            privacy = privacy_of(trained, group, client, *family.training, epsilon, unit)
            bounds.append(ClientBounds(client, group, family.loss, privacy, delta))
        judged = zip(bounds, family.judge(places, bounds), strict=True)
        found += [_certify(one, models, family) for one, models in judged]
    return found[: len(everyone)]


def _certify(bounds: ClientBounds, models: Models, family: Family) -> ClientCertificate:
    """Certify one client: the best of its posteriors, and the model in use."""
    best, candidates = bounds.certify(models, models.best, family.titles[0])
    in_use, (used, *_) = bounds.certify(models, [models.used] * len(candidates), family.titles[1])
    place = [candidate.beta for candidate in candidates].index(best.beta)
    choice, given = models.best[place], bounds.premises(best.beta, best.delta_split["bound"])
    after, before = (part.evidences(best.beta, bounds.loss.b) for part in models[:2])
    constraint = float(after.mean()), float(before.mean()), given
    remarks = family.remark, scaling_condition(family.trained.config, bounds.group)
    return ClientCertificate(
        client=bounds.client.name,
        group=bounds.group,
        samples=len(bounds.client.train),
        later=bounds.later,
        privacy=bounds.privacy,
        certificate=best.under(*remarks),
        temperature=float(family.temperatures[choice.row]),
        kl=candidates[place].kl,
        test_risk=models.test_risk(choice),
        in_use=in_use.under(*remarks),
        in_use_kl=used.kl,
        in_use_test_risk=models.test_risk(models.used),
        tolerated_epsilon=bounds.tolerated(best, candidates),
        participation=participation(*constraint),
        margin=participation_margin(*constraint),
        margin_error=float(before.std(ddof=1) / math.sqrt(len(before)) / best.beta),
        networks_test_risk=models.networks_test_risk,
    )


def scaling_condition(config: Config, group: str) -> Condition | None:
    """Return what scaling, and filling in what is missing, do to the certificates of a group.

    The theorems are for samples as they were drawn. A scale that is made from them ties them together,
    and it is data that reach the model without noise: no epsilon covers it. A scale made from others'
    samples alone is part of the prior, like the particles, and does no harm. None where nothing is
    scaled or filled in.
    """
    if config.data.standardize == "client":
        reason = (
            'data.standardize = "client" scales them by their own means and standard deviations'
        )
        return Condition(UNSCALED, "does not hold", reason)
    learned = []
    if config.data.standardize == "global":
        learned.append('the means and standard deviations of data.standardize = "global"')
    if config.data.name == "tables" and config.tables.missing == "impute":
        learned.append('the medians of tables.missing = "impute"')
    if not learned:
        return None
    what = f"{' and '.join(learned)} come from the training samples of all existing clients"
    if group == "new":
        return Condition(UNSCALED, "holds", f"{what}, and from none of this client's")
    return Condition(
        UNSCALED, "does not hold", f"{what}, without noise; clients who join later are not affected"
    )


def members(federation: Federation) -> list[tuple[str, Client]]:
    """Return every client with its group, existing ones first."""
    return [(group, client) for group, clients in federation.groups().items() for client in clients]


def stores(trained: Trained) -> tuple[ClientStore, ClientStore]:
    """Return what every client's posteriors may use, and its test samples (or no rows), in that order."""
    everyone = [client for _, client in members(trained.federation)]
    empty = Samples(np.zeros((0, len(trained.federation.features))), np.zeros(0))
    return (
        from_samples([client.personal for client in everyone]),
        from_samples([empty if client.test is None else client.test for client in everyone]),
    )


def gather(store: ClientStore, places: np.ndarray, dtype: type) -> Data:
    return Data(*jax.device_put(store.gather(places, dtype)))


def beta_grid(samples: float, width: float) -> np.ndarray:
    r"""Return $\beta = \sqrt{8 m c} / (b - a)$ for each c of NATS.

    It minimises $c / \beta + \beta (b-a)^2 / (8m)$.
    """
    return np.sqrt(8 * samples * np.asarray(NATS)) / width


def privacy_of(
    trained: Trained,
    group: str,
    client: Client,
    width: float,
    bounded: str,
    epsilon: float | None,
    unit: Unit,
) -> Privacy:
    """Return how far the particles depend on this client's samples, and who vouches for it.

    `width` is how far the training's loss spreads where it is `bounded`.
    """
    if group == "new":
        return Privacy(
            "independent", "the client took no part in the training that made the particles"
        )
    if epsilon is not None:
        change = "all of this client's data" if unit == "client" else "one of its samples"
        reason = (
            f"given by hand: true if the training was that private towards a change of {change}, "
            "which nothing in the run folder proves"
        )
        return Privacy("assumed", reason, epsilon, unit)
    run = trained.spent
    if run is not None and run.private and (run.plan.mode, run.plan.unit) == ("laplace", "client"):
        spent = run.spent()
        replaces = spent.adjacency == "replace"
        doubled = "" if replaces else ", doubled because it was accounted for adding or removing"
        return Privacy(
            "proved",
            f"by the noise of the laplace mode, as the run's ledger records{doubled}",
            spent.epsilon * (1 if replaces else 2),
            "client",
        )
    m, k = len(client.train), trained.method.settings.particles
    beta = trained.config.train.temperature * m
    tau = temperatures(trained.config, trained.federation.form)["tau"]
    return Privacy(
        "assumed",
        f"which {k} draws from Q* with {bounded} and tau = {tau:.3g} would have; particles "
        "come from SVGD without noise and from the unbounded likelihood, so the premise is "
        "assumed, not proved",
        float(sampling_epsilon([beta], tau, width, [m], k)[0]),
        "sample",
    )
