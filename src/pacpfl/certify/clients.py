"""From a client's models to its certificate: one procedure for all families of models.

The prior of a client is one of the k particles, drawn with equal chances; its posterior draws a particle
with weights of its own and then a hypothesis from that particle's posterior. The bound is for this
randomised predictor. A `Family` finds posteriors, what they cost and what they risk (`gaussian_processes`
exactly, `networks` by draws); here that becomes bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from pacpfl.bounds import (
    ClientPremises,
    Condition,
    mixture_kl,
    participation,
    participation_margin,
    sampling_epsilon,
)
from pacpfl.bounds.client import Unit
from pacpfl.bounds.losses import LossRange
from pacpfl.certify.certificate import (
    Certificate,
    Privacy,
    certify_posterior,
    certify_rows,
    judged_by_tests,
)
from pacpfl.certify.held_out import (
    SHARES,
    Held,
    RowLosses,
    certify_newcomers,
    choose,
    divide,
    has_fresh,
    memorised,
    order_says_something,
    paid,
    shuffled,
    stated,
)
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_samples
from pacpfl.methods.registry import temperatures
from pacpfl.privacy.accounting import epsilon_spent
from pacpfl.privacy.ledger import RunRecord
from pacpfl.run import Trained
from pacpfl.types import Client, Data, Federation, Samples

# Each beta of the grid is the best one for that many nats of divergence and confidence together.
NATS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
PRIVATE_DELTAS = (1e-5, 1e-4, 1e-3, 5e-3)  # with the epsilon that each goes with
UNSCALED = "samples not changed by their own statistics"


@dataclass(frozen=True)
class ClientCertificate:
    """One client's certificates with what stands beside them.

    `averaged` is for the averaged model in use, judged by rows that it was fitted without; `drawn` for one
    drawn function, judged in the same way or by PAC-Bayes; `posterior` is PAC-Bayes alone, for the
    posterior that is fitted to all rows. Test risks are of the very models that are certified.
    """

    client: str
    group: str
    samples: int
    later: int
    privacy: Privacy
    averaged: Certificate
    fitted: int
    judged: int
    test_risk: float | None
    drawn: Certificate
    drawn_test_risk: float | None
    posterior: Certificate
    posterior_test_risk: float | None
    temperature: float
    kl: float
    participation: Condition
    margin: float
    margin_error: float


class Choice(NamedTuple):
    """A posterior of a client: a row of its `Posteriors`, and weights of the components."""

    row: int
    weights: np.ndarray
    log_evidence: float = math.nan  # -beta L^(Q) - KL(Q || P), a lower bound on ln Z_beta
    beta: float = math.nan


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
            Choice(int(row), np.exp(score[row] - total[row]), float(total[row]), float(beta))
            for row, score, total, beta in zip(totals.argmax(1), scores, totals, betas, strict=True)
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
    """One client's posteriors; the best one's risk is a number if exact, else independent draws."""

    shared: Posteriors  # from the particles
    alone: Posteriors  # from priors that are drawn from the hyper-prior
    best: Choice
    risk: float | np.ndarray
    test_risk: float | None


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
    def tests(self) -> int:
        return 0 if self.client.test is None else len(self.client.test)

    def best(self, posteriors: Posteriors) -> Choice:
        """Return the posterior whose bound is the smallest: it holds for all of them at once."""
        choices = posteriors.tightest(beta_grid(self.samples, self.loss.width))

        def bound(choice: Choice) -> float:
            risk = min(max(posteriors.risk_of(choice), self.loss.a), self.loss.b)
            return self.certify(risk, posteriors.divergence(choice), self.delta, "").bound

        return min(choices, key=bound)

    def certify(
        self, risk: float | np.ndarray, kl: float, delta: float, posterior: str
    ) -> Certificate:
        """Return the PAC-Bayes certificate of a posterior fitted to all samples."""
        return certify_posterior(
            self.client.name, self.loss, risk, kl, m=self.samples, privacy=self.privacy,
            delta=delta, seen=len(self.client.train), posterior=posterior,
        )  # fmt: skip

    def judge(self, held: Held, delta: float, averaged: bool, binary: bool) -> Certificate:
        """Return the certificate by rows that judge, of the averaged model or of drawn functions."""
        privacy = self.privacy
        if self.group == "existing" and has_fresh(self.group, self.client):
            privacy = Privacy("independent", "the training never saw the rows that judge")
        kind = "averaged model in use" if averaged else "function drawn from the model in use"
        values = shuffled(held.own.averaged if averaged else held.own.drawn)
        return certify_rows(
            self.client.name, self.loss, values, privacy=privacy, delta=delta,
            posterior=f"{kind}, fitted to {held.fitted or 'none'} of the rows, judged by {len(values)}",
            binary=binary and averaged,
        )  # fmt: skip


class Family(NamedTuple):
    """What one family of models says of a run; what follows from it is the same for all.

    For the averages `judge_pair` takes a prior, a client (its place) and betas. It returns -ln Z / beta
    from above, at most `largest`, and the empirical risk of the posterior that gives it.
    """

    trained: Trained
    loss: LossRange  # that is bounded
    training: tuple[float, str]  # how far the training's loss spreads where bounded; its name then
    title: str  # of the posteriors
    temperatures: Sequence[float]  # powers of the likelihood, one for each row of posteriors
    blocks: Sequence[np.ndarray]  # places of clients that are judged together; the last may repeat
    judge: Callable[[np.ndarray, Sequence[ClientBounds]], Sequence[Models]]
    # Losses of models as they are in use, fitted to the first samples, on the second.
    rows: Callable[[np.ndarray, Sequence[Samples], Sequence[Samples]], Sequence[RowLosses]]
    judge_pair: Callable[
        [np.ndarray, int, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]
    ]
    largest: float
    pairs: int  # how many are drawn
    binary: bool = False  # whether the averaged model's loss is 0 or 1 on every row


class Judged(NamedTuple):
    """All that is known of one client before its group settles which bounds are stated."""

    bounds: ClientBounds
    models: Models
    held: list[Held]  # one for each share


def certify_clients(
    family: Family,
    delta: float,
    epsilon: float | None = None,
    unit: Unit = "client",
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[ClientCertificate], Certificate | None]:
    """Return certificates for every client, existing and new, and for clients yet to come.

    The last is None where no client is new.

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
    judged: list[Judged] = []
    for places in family.blocks:
        inside = [everyone[place] for place in places]
        first, last = inside[0][1].name, inside[-1][1].name
        progress(first if len(inside) == 1 else f"{first} to {last}")
        bounds = []
        for group, client in inside:
            privacy = privacy_of(trained, group, client, *family.training, epsilon, unit)
            bounds.append(ClientBounds(client, group, family.loss, privacy, delta))
        models = family.judge(places, bounds)
        held = zip(*(_held(family, places, bounds, share) for share in SHARES), strict=True)
        judged += map(Judged, bounds, models, map(list, held))
    judged = judged[: len(everyone)]
    found, newcomers = [], None
    for group in trained.federation.groups():
        same = [one for one in judged if one.bounds.group == group]
        if same:
            found += _certify_group(family, same, delta)
        if same and group == "new":
            ways = list(zip(*(one.held for one in same), strict=True))
            scaling = scaling_condition(trained.config, "new")
            newcomers = certify_newcomers(ways, family.loss, delta).under(scaling)
    return found, newcomers


def _held(
    family: Family, places: np.ndarray, bounds: Sequence[ClientBounds], share: float
) -> list[Held]:
    """Fit the clients' models to a share of their rows, and judge them by the others and test rows."""
    config = family.trained.config
    ordered = config.data.name == "pv" or (
        config.data.name == "tables" and config.tables.split == "time"
    )
    pairs = [divide(one.group, one.client, share, ordered) for one in bounds]
    empty = Samples(np.zeros((0, len(family.trained.federation.features))), np.zeros(0))
    asked = [own + (one.client.test or empty) for (_, own), one in zip(pairs, bounds, strict=True)]
    losses = family.rows(places, [fit for fit, _ in pairs], asked)
    return [
        Held(len(fit), *(RowLosses(*(values[part] for values in each)) for part in parts))
        for (fit, own), each in zip(pairs, losses, strict=True)
        for parts in [(slice(len(own)), slice(len(own), None))]
    ]


def _certify_group(
    family: Family, judged: Sequence[Judged], delta: float
) -> list[ClientCertificate]:
    """Certify the clients of a group, once it is settled which bounds are stated."""
    several = len(judged)
    ways = ["half of them judge" if share else "all of them judge" for share in SHARES]
    both = ["PAC-Bayes", *ways]
    shares = [delta / len(names) if paid(several) else delta for names in (ways, both)]
    averaged, drawn = [], []
    for bounds, models, shares_held in judged:
        kl = models.shared.divergence(models.best)
        averaged.append([bounds.judge(one, shares[0], True, family.binary) for one in shares_held])
        each = [bounds.judge(one, shares[1], False, family.binary) for one in shares_held]
        drawn.append([bounds.certify(models.risk, kl, shares[1], family.title), *each])
    picks = choose(averaged), choose(drawn)
    group, first = judged[0].bounds.group, [one.held[0] for one in judged]
    spoken = [order_says_something([one.held[-1] for one in judged])]
    if group == "existing" and not any(has_fresh(group, one.bounds.client) for one in judged):
        spoken.append(memorised(first, family.loss, judged[0].bounds.privacy, delta))
    found = []
    for one, *options, pick, pick_drawn in zip(judged, averaged, drawn, *picks, strict=True):
        held, tests = one.held[pick], one.bounds.tests
        risks: tuple[float | None, float | None] = (None, None)
        if tests:
            by_rows = [float(part.test.drawn.mean()) for part in one.held]
            risks = float(held.test.averaged.mean()), [one.models.test_risk, *by_rows][pick_drawn]
        later = group == "existing" and has_fresh(group, one.bounds.client)
        certificates = []
        picked = zip(options, (pick, pick_drawn), (ways, both), risks, strict=True)
        for some, which, names, risk in picked:
            by_later = later and names[which] != both[0]
            scaling = scaling_condition(family.trained.config, group, by_later)
            certificate = stated(some, which, names, several).under(scaling, *spoken)
            certificates.append(judged_by_tests(certificate, risk, tests))
        found.append(_certificate(family, one, certificates, held, risks))
    return found


def _certificate(
    family: Family,
    judged: Judged,
    certificates: Sequence[Certificate],
    held: Held,
    risks: tuple[float | None, float | None],
) -> ClientCertificate:
    """Put one client's certificates beside what taking part has changed for it."""
    bounds, models = judged.bounds, judged.models
    beta, kl, loss = models.best.beta, models.shared.divergence(models.best), bounds.loss
    after, before = (part.evidences(beta, loss.b) for part in models[:2])
    given = ClientPremises(
        beta,
        bounds.samples,
        loss.a,
        loss.b,
        bounds.delta,
        0,
        bounds.privacy.epsilon,
        bounds.privacy.unit,
    )
    constraint = float(after.mean()), float(before.mean()), given
    posterior = bounds.certify(models.risk, kl, bounds.delta, family.title)
    return ClientCertificate(
        client=bounds.client.name,
        group=bounds.group,
        samples=len(bounds.client.train),
        later=bounds.later,
        privacy=bounds.privacy,
        averaged=certificates[0],
        fitted=held.fitted,
        judged=len(held.own.averaged),
        test_risk=risks[0],
        drawn=certificates[1],
        drawn_test_risk=risks[1],
        posterior=posterior,
        posterior_test_risk=models.test_risk,
        temperature=float(family.temperatures[models.best.row]),
        kl=kl,
        participation=participation(*constraint),
        margin=participation_margin(*constraint),
        margin_error=float(before.std(ddof=1) / math.sqrt(len(before)) / beta),
    )


def scaling_condition(config: Config, group: str, later: bool = False) -> Condition | None:
    """Return what scaling, and filling in what is missing, do to the certificates of a group.

    The theorems are for samples as they were drawn. A scale that is made from them ties them together,
    and it is data that reach the model without noise: no epsilon covers it. A scale made from others'
    samples alone is part of the prior, like the particles, and does no harm; so is one made from the
    training rows of a client whom `later` ones judge. None where nothing is scaled or filled in.
    """
    if config.data.standardize == "client" and later:
        return Condition(UNSCALED, "holds", "scales come from training rows, and later ones judge")
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
    if group == "new" or later:
        return Condition(UNSCALED, "holds", f"{what}, and from none of the rows that judge")
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


def roomy(parts: Sequence[Samples]) -> ClientStore:
    """Return rows of clients, maybe none, with room of few sizes, so that clients share programs."""
    store = from_samples(parts, roomy=True)
    return replace(store, longest=max(store.longest, 4))


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
    if (proved := _proved(trained.spent)) is not None:
        return proved
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


def _proved(run: RunRecord | None) -> Privacy | None:
    """Return what the ledger of a private run proves for replacing a client's data; None: nothing."""
    if run is None or not run.private or run.plan.unit != "client":
        return None
    spent, plan = run.spent(), run.plan
    reason, epsilon = (
        f"by the noise of the {plan.mode} mode, as the run's ledger records",
        spent.epsilon,
    )
    if spent.adjacency != "replace":
        reason += ", doubled because it was accounted for adding or removing"
        epsilon *= 2
    if plan.mode == "laplace":
        return Privacy("proved", reason, epsilon, "client")
    if plan.mode != "gaussian":
        return None
    if plan.sampling == "all":
        mu = 2 * math.sqrt(run.released) / plan.multiplier
        reason = f"and Gaussian of mu = {mu:.4g} towards replacing it, {reason}"
        return Privacy("proved", reason, epsilon, "client", mu)
    # Poisson's accountant knows replacement itself, by the name of the other unit.
    pairs = []
    for delta in PRIVATE_DELTAS:
        other = replace(plan, delta=delta, unit="sample")
        pairs.append((epsilon_spent(other, run.released).epsilon, delta))
    return Privacy("proved", reason, pairs[0][0], "client", None, tuple(pairs))
