"""How much privacy is asked for, and what a plan spends of it (dp-accounting: RDP and PLD).

Accounted is the release, in every round, of the noisy sum of clipped updates (with adaptive clipping:
and of the noisy count). All that the server does with it is post-processing and costs nothing: the
division by the expected cohort, the hyper-prior's gradient, the SVGD step, averages of particles.

Who counts as neighbour:
- client unit, Poisson sampling or full participation: federations that differ in one client more or
  less ("add-remove"); the sum changes by the clip.
- client unit, fixed-size sampling without replacement: one client replaced by another ("replace");
  the sum changes by twice the clip, and amplification is that for sampling without replacement.
- sample unit: one sample of one client replaced; a sample takes part when its client does.

`laplace` is pure: with epsilon_0 = sensitivity / scale of one round and sampling rate q,

    epsilon = T ln(1 + q (exp(epsilon_0) - 1)),     delta = 0

(basic composition; amplification by Balle, Barthe & Gaboardi 2018, Theorems 8 and 9), because the
client-level theorem asks for a pure one. Beside it stands the smaller epsilon that holds with a delta:
T steps that are pure with e = epsilon / T are together (Kairouz, Oh & Viswanath 2015, exactly, whatever
the steps are)

    delta(x) = sum_i C(T, i) max(0, exp((T - i) e) - exp(x + i e)) / (1 + exp(e))^T.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from pacpfl.errors import InputError, imported
from pacpfl.settings import Settings, key

Adjacency = Literal["add-remove", "replace"]
Mode = Literal["paper", "laplace", "gaussian"]
Sampling = Literal["poisson", "fixed", "all"]
Unit = Literal["client", "sample"]
ORDER: dict[str, int] = {"paper": 2, "laplace": 1, "gaussian": 2}  # of the norm that is clipped
ACCOUNTANTS = ("RDP", "PLD")
ORDERS = (*range(2, 33), 36, 40, 48, 64, 96, 128)  # of Renyi; whole, for exact formulas
INTERVAL = 5e-4  # of the privacy loss distributions; too coarse a one gives more than is spent
TOLERANCE = 1e-3  # relative, of the noise that is found


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Differential privacy of PAC-PFL's training (docs/privacy.md); the other methods have none."""

    mode: str = key(
        "none",
        "none, gaussian, laplace (pure epsilon), or paper (as printed: NO GUARANTEE)",
        choices=("none", "paper", "laplace", "gaussian"),
    )
    epsilon: float | None = key(None, "budget of the whole training", above=0)
    delta: float = key(1e-5, "with it (gaussian)", above=0, most=0.5)
    clip: float = key(1.0, "gamma: norm to which updates are clipped", above=0)
    clip_quantile: float | None = key(
        None, "let the clip adapt, so that this share of updates is not clipped", above=0, most=0.99
    )
    clip_rate: float = key(0.2, "how fast it adapts", above=0)
    per_particle: bool = key(False, "clip each particle's part to an equal share")
    sampling: str = key(
        "poisson",
        "how clients_per_round are drawn: poisson (that many expected), fixed (exactly), all",
        choices=("poisson", "fixed", "all"),
    )
    unit: str = key(
        "client",
        "what is protected: a client, or one sample of it",
        choices=("client", "sample"),
    )
    average: float = key(
        0.0, "share of the rounds, the last ones, whose particles are averaged", least=0, most=1
    )
    strict: bool = key(True, "the run folder holds no rows, and of existing clients nothing else")
    noise_seed: int | None = key(
        None, "repeatable noise, for tests; the run is NOT PRIVATE then", least=0
    )

    @property
    def sealed(self) -> bool:
        """Return whether a run folder may hold what the budget covers only, and nobody's rows."""
        return self.mode != "none" and self.strict

    def problems(self) -> Iterator[str]:
        if self.mode == "none":
            if self.epsilon is not None:
                yield (
                    f"privacy.epsilon = {self.epsilon} protects nobody without a mode; set "
                    "privacy.mode to gaussian or laplace."
                )
        elif self.epsilon is None:
            yield f"privacy.mode = {self.mode} needs a budget; set privacy.epsilon."
        elif self.clip_quantile is not None and (self.mode, self.unit) != ("gaussian", "client"):
            yield (
                "privacy.clip_quantile is accounted for mode gaussian and unit client only; leave it "
                "out."
            )

    def plan(self, rounds: int, clients: int, clients_per_round: int | None = None) -> Plan | None:
        """Return the plan that spends the budget in so many rounds; None for a run without privacy."""
        if self.mode == "none":
            return None
        assert self.epsilon is not None
        return plan_for(
            self.epsilon,
            self.delta,
            rounds,
            mode=self.mode,  # type: ignore[arg-type]
            sampling=self.sampling,  # type: ignore[arg-type]
            clients=clients,
            cohort=clients_per_round or clients,
            unit=self.unit,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Plan:
    """The mechanism of every round, and the budget it was made for."""

    mode: Mode
    sampling: Sampling
    clients: int  # n
    cohort: int  # c: clients in a round, expected
    multiplier: float  # noise on the sum: standard deviation / clip, or Laplace scale / clip
    delta: float = 0.0
    epsilon: float | None = None  # the budget
    rounds: int | None = None  # how many rounds it is for
    unit: Unit = "client"

    @property
    def rate(self) -> float:
        return 1.0 if self.sampling == "all" else self.cohort / self.clients

    @property
    def adjacency(self) -> Adjacency:
        return "replace" if self.sampling == "fixed" or self.unit == "sample" else "add-remove"

    @property
    def change(self) -> float:
        """Return how much a neighbour's difference can change the sum, in units of the clip.

        The head of `mechanisms` derives it.
        """
        return 1.0 if self.adjacency == "add-remove" else 2.0

    @property
    def guaranteed(self) -> bool:
        return self.mode != "paper"


class Spent(NamedTuple):
    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str  # which one was the tighter


def epsilon_spent(plan: Plan, rounds: int, delta: float = 0.0) -> Spent:
    """Return what `rounds` releases have spent: in mode `paper`, which guarantees nothing, infinity.

    With a `delta` also Laplace noise, which is pure without one, has the epsilon that holds with it.
    """
    if rounds == 0:
        return Spent(0.0, 0.0, plan.adjacency, "nothing was released")
    if plan.mode == "paper":
        return Spent(math.inf, plan.delta, plan.adjacency, "none: no guarantee")
    if plan.mode == "laplace":
        each = _amplified(plan.change / plan.multiplier, plan.rate)
        if delta > 0:
            return Spent(_with_delta(each, rounds, delta), delta, plan.adjacency, "composition")
        return Spent(rounds * each, 0.0, plan.adjacency, "pure composition")
    epsilon, accountant = _gaussian(plan, rounds)
    return Spent(epsilon, plan.delta, plan.adjacency, accountant)


def together(parts: Sequence[Spent]) -> Spent:
    """Add up releases of the same data, epsilons and deltas.

    Where one of them is for replacing a client, all are: replacing is removing and adding, so (epsilon,
    delta) for add-remove is (2 epsilon, (1 + exp(epsilon)) delta) for replacing.
    """
    if len(parts) == 1:
        return parts[0]
    replace = any(part.adjacency == "replace" for part in parts)
    epsilon = delta = 0.0
    for part in parts:
        double = replace and part.adjacency == "add-remove"
        epsilon += part.epsilon * (2 if double else 1)
        finite = part.delta > 0 and math.isfinite(part.epsilon)
        delta += part.delta * (1 + math.exp(part.epsilon) if double and finite else 1)
    return Spent(
        epsilon, min(delta, 1.0), "replace" if replace else "add-remove", "basic composition"
    )


def plan_for(
    epsilon: float,
    delta: float,
    rounds: int,
    *,
    mode: Mode = "gaussian",
    sampling: Sampling = "all",
    clients: int = 1,
    cohort: int = 1,
    unit: Unit = "client",
) -> Plan:
    """Return the plan that spends this budget in this many rounds, with as little noise as that takes.

    The noise is found to 0.1%, never below. For `paper` it is the printed one: T / epsilon, on the sum,
    in units of the clip.
    """
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon} is no budget; give a positive number.")
    if sampling == "poisson" and cohort == clients:
        sampling = "all"
    if sampling == "all":
        cohort = clients
    if mode == "laplace":
        delta = 0.0
    draft = Plan(mode, sampling, clients, cohort, 1.0, delta, epsilon, rounds, unit)
    if mode == "paper":
        return replace(draft, multiplier=rounds / epsilon)
    if mode == "laplace":
        each = _amplified(epsilon * (1 - 1e-12) / rounds, 1 / draft.rate)
        return replace(draft, multiplier=draft.change / each)
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta} is no probability; Gaussian noise needs 0 < delta < 1.")

    # RDP is fast and comes close; PLD then finds what is left to gain.
    if draft.adjacency == "add-remove" or sampling != "poisson":
        draft = _with_least_noise(draft, rounds, epsilon, ("RDP",))
    return _with_least_noise(draft, rounds, epsilon, ACCOUNTANTS)


def _with_least_noise(
    plan: Plan, rounds: int, epsilon: float, accountants: tuple[str, ...]
) -> Plan:
    """Find the smallest multiplier that spends no more than epsilon, to TOLERANCE, never below.

    Both axes are logarithmic: on them what is spent is nearly a line, and few steps are enough.
    """
    from scipy import optimize  # a third of a second to import

    def excess(log_z: float) -> float:
        spent, _ = _gaussian(replace(plan, multiplier=math.exp(log_z)), rounds, accountants)
        return math.log(max(spent, 1e-12) / epsilon)

    low = high = math.log(plan.multiplier)
    while excess(high) > 0:
        low, high = high, high + 0.4
    while excess(low) <= 0:
        low, high = low - 0.4, low
    found = optimize.brentq(excess, low, high, xtol=TOLERANCE / 4) + TOLERANCE / 2
    while excess(found) > 0:
        found += TOLERANCE / 2
    return replace(plan, multiplier=math.exp(found))


def _with_delta(each: float, rounds: int, delta: float) -> float:
    """Return the epsilon of so many steps, each of pure epsilon `each`, that holds with this delta."""
    from scipy import optimize, special, stats

    i = np.arange(rounds + 1)
    p = stats.binom.pmf(i, rounds, special.expit(-each))  # of a loss of (rounds - 2 i) each

    def excess(epsilon: float) -> float:
        return float(p @ -np.expm1(np.minimum(0, epsilon - (rounds - 2 * i) * each))) - delta

    if excess(0.0) <= 0:
        return 0.0
    most = rounds * each
    return float(min(most, optimize.brentq(excess, 0, most, xtol=1e-9 * most) + 2e-9 * most))


def _amplified(epsilon: float, rate: float) -> float:
    """Return ln(1 + q (e^epsilon - 1)), also where e^epsilon overflows; with 1/q it is its own inverse."""
    if epsilon > 500:
        return epsilon + math.log(rate)
    return math.log1p(rate * math.expm1(epsilon))


@cache
def _gaussian(
    plan: Plan, rounds: int, accountants: tuple[str, ...] = ACCOUNTANTS
) -> tuple[float, str]:
    """Return epsilon and its accountant: the smaller one of those that know this mechanism.

    The multiplier is in units of the clip. Where one is replaced, the sensitivity is 2: events of
    the Gaussian and of sampling without replacement are told so by half the multiplier; only PLD's
    Poisson event knows replacement itself, and is given the multiplier as it is.
    """
    root, pld, rdp = (
        imported(f"dp_accounting{part}", "accounting for Gaussian noise", "pacpfl[privacy]")
        for part in ("", ".pld", ".rdp")
    )
    event, relations = root.dp_event, root.NeighboringRelation
    relation = relations.REPLACE_ONE
    if plan.adjacency == "add-remove":
        relation = relations.ADD_OR_REMOVE_ONE
    noise = event.GaussianDpEvent(plan.multiplier / plan.change)
    if plan.rate == 1:
        events, relation = dict.fromkeys(ACCOUNTANTS, noise), relations.ADD_OR_REMOVE_ONE
    elif plan.sampling == "poisson":
        known = ACCOUNTANTS if plan.adjacency == "add-remove" else ("PLD",)
        noise = event.GaussianDpEvent(plan.multiplier)
        events = dict.fromkeys(known, event.PoissonSampledDpEvent(plan.rate, noise))
    else:
        size = 10**9  # only the ratio counts
        chosen = round(plan.rate * size)
        events = {"RDP": event.SampledWithoutReplacementDpEvent(size, chosen, noise)}
    results = []
    for name in events.keys() & set(accountants):
        if name == "RDP":
            accountant = rdp.RdpAccountant(ORDERS, neighboring_relation=relation)
        else:
            accountant = pld.PLDAccountant(relation, INTERVAL)
        accountant.compose(event.SelfComposedDpEvent(events[name], rounds))
        results.append((float(accountant.get_epsilon(plan.delta)), name))
    return min(results)
