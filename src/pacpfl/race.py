"""The race: candidates for a federation's settings, judged by rows that they have not seen.

Settings that suit one table ruin another, and a table's size does not tell which. So candidates train for
some rounds on a part of the clients and of their rows, and each is asked for the log density of

- later rows of those clients (`existing`), and
- rows of clients who took no part, given the first of their rows (`new`),

which is what a model is used for. What is asked lies at the end of a client's rows, as they are given:
where they come in the order of time the model has to look ahead, and otherwise their order tells nothing.
(Tables of classes are often sorted by them, so there rows are drawn.) After each leg the worst go home, and
once the best ones' settings are varied. How many rounds suit a candidate is judged with it, since training
for longer is often worse.

In the end several candidates share the particles (`methods.blend`), by how much their mixture gains: for
numbers. Where one takes all, as for classes, the default is left only for what is better beyond the
standard error between clients; where it stays, it is trained for as long as has served it.

Candidates of one family of priors differ in numbers alone (tau, hyper-prior, rate), which are arguments of
one compiled program; its folds are played side by side, dealt to all devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from pacpfl import predictive
from pacpfl.config import Config, differing, flat, updated
from pacpfl.data.prepare import Scaler, fit_scaler
from pacpfl.defaults import LOGISTIC, is_logistic, network, racing
from pacpfl.defaults import RACE_BATCH as BATCH
from pacpfl.engine.runtime import brief_options, compiled_once
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.hyper import HyperPrior, hyper_prior
from pacpfl.methods.blend import Group
from pacpfl.methods.pacpfl import PACPFL, State
from pacpfl.methods.registry import build_pacpfl, build_prior
from pacpfl.types import Data, Form, Probabilities, Samples

FOLDS = 4
ROWS = 512  # of each, at most
KNOWN, ASKED = 96, 48  # rows that a client is conditioned on, and asked for, at most
GIVEN = (0.7, 1 / 3)  # shares of an existing and of a new client's rows that it is given
LEAST = 6  # rows to judge by in a fold, below which there is no race
# Rounds after which candidates are judged: of so many one goes on. After the second leg the settings of
# the best are varied. A network's first rounds, which only wake it up, are not judged.
LEGS = {25: 1, 50: 2, 100: 2, 200: 3, 400: 3, 800: 1}
CLASS_LEGS = {100: 1, 200: 2, 400: 2, 800: 1}
REFERENCE = 400  # rounds that the default plays in any case

SURE = 1.0  # standard errors by which a candidate is better than the default, at least
# Several candidates are trained side by side, each with a share of the particles.
PARTICLES, MEMBERS = 8, 4
SHY = 8.0  # rows that speak for all candidates alike
CLIMBS = 150  # steps of expectation-maximisation
# With one of these given, one candidate takes all.
WHOLE = frozenset(
    ("train.rounds", "train.schedule", "train.blend", "train.lambda", "prior.output_scale")
)
TELLING = 1.0  # nats a row by which one client speaks for a candidate, at most
TOLERANCE = 0.02  # nats by which more rounds, or a larger tau, may be worse and still be taken

Values = Mapping[str, object]

# Families of priors, and the numbers that each starts with: (tau, hyper_std). Lines alone are the linear
# mixed model, whose clients' slopes are independent.
LINES: Values = {"prior.mean": "linear", "prior.kernel": "linear", "prior.output_scale": "fixed"}
CURVES: Values = {**LINES, "prior.kernel": "ard+linear", "prior.output_scale": "learned"}
UNEVEN: Values = {"prior.noise_model": "linear"}
THREE = ((0.3, 0.3), (1.0, 0.5), (1.0, 1.0))
FAMILIES: tuple[tuple[Values, tuple[tuple[float, float], ...]], ...] = (
    (CURVES, THREE),
    (LINES, ((0.3, 0.5), (1.0, 0.5))),
    ({**CURVES, **UNEVEN}, ((1.0, 0.5),)),
    ({**LINES, **UNEVEN}, ((1.0, 0.5),)),
    ({**CURVES, "prior.mean": "linear+mlp"}, THREE),
    ({**LINES, "prior.mean": "linear+mlp", "prior.kernel": "deep"}, THREE),
)
SMOOTH = 4  # of them, which have no network
FEW_CLIENTS = 5  # below which networks in the prior over-fit
# Taus of networks, and of logistic regressions where clients may have their own. (A last layer of their
# own on 16 neurons did better than both on none of three tables, in six times the time.)
NETWORK_TAUS, LOGISTIC_TAUS = (0.03, 0.1, 0.3), (0.1, 0.3, 1.0)
# What programs of one family do not depend on: numbers are arguments, and rows are in a fold's units.
COMMON: Values = {
    "prior.noise": 0.4, "prior.noise_spread": 0.1, "train.tau": 1.0, "train.hyper_std": 1.0,
    "train.learning_rate": 0.01, "train.rounds": 1000, "train.schedule": "constant",
    "train.clients_per_round": None, "seed": 0, "data.standardize": "global",
}  # fmt: skip


class Numbers(NamedTuple):
    """What candidates of one family differ in: arguments of a compiled program."""

    hyper_prior: HyperPrior
    tau: Float[Array, ""]
    rate: Float[Array, ""]
    clients: Float[Array, ""]  # how often the mean of the clients' updates counts


class Fold(NamedTuple):
    """Every client's rows in the candidate's units: to train on, to know, and to be asked for."""

    train: Data  # [n, m]
    known: Data  # [n, KNOWN] at most
    asked: Data  # [n, ASKED] at most
    trains: Float[Array, " n"]  # 1 for clients who take part, 0 for new ones
    log_scale: Float[Array, " n"]  # ln of the target's unit


@dataclass(frozen=True)
class Numbered(PACPFL):
    """PAC-PFL whose numbers are arguments of a program, not constants in it."""

    numbers: Numbers = field(kw_only=True)

    @property
    def tau(self) -> Any:
        return self.numbers.tau

    def hyper_prior(self, dtype: Any) -> HyperPrior:
        return self.numbers.hyper_prior

    @classmethod
    def of(cls, method: PACPFL, numbers: Numbers) -> Numbered:
        parts = (method.prior, numbers.clients, optax.adam(lambda _: numbers.rate))
        return cls(*parts, method.settings, method.mixture_weights, numbers=numbers)  # type: ignore[arg-type]


@compiled_once
def _start(method: PACPFL) -> Callable[..., State]:
    """Compile the first state of every fold."""

    def one(numbers: Numbers, fold: Fold, key: Array) -> State:
        return Numbered.of(method, numbers).init(key, jax.tree.map(lambda a: a[0], fold.train))

    return _every_fold(one, (None, 0, 0))


@compiled_once
def _leg(method: PACPFL) -> Callable[..., tuple[State, Array]]:
    """Compile rounds from a state on, and what clients are worth after them, of every fold."""

    def one(
        numbers: Numbers, state: State, fold: Fold, key: Array, start: Array, end: Array
    ) -> tuple[State, Array]:
        numbered = Numbered.of(method, numbers)

        def play(number: Array, state: State) -> State:
            keys = jax.random.split(jax.random.fold_in(key, number), len(fold.trains) + 1)
            if numbered.together:
                mean = numbered.mean_update(state, fold.train, keys[1:], fold.trains)
                updates, weights = jax.tree.map(lambda a: a[None], mean), fold.trains.sum()[None]
            else:
                updates, _ = jax.vmap(numbered.client_update, in_axes=(None, None, 0, 0))(
                    state, (), fold.train, keys[1:]
                )
                weights = fold.trains
            return numbered.server_update(state, updates, weights, keys[0])

        state = jax.lax.fori_loop(start, end, play, state)
        return state, log_densities(numbered, state, fold, key)

    return _every_fold(one, (None, 0, 0, 0, None, None))


def _every_fold(one: Callable[..., Any], axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Compile a function for all folds side by side, dealt to the devices.

    Where its arguments lie is told, not found out: the state that a leg begins with and the one that it
    leaves would otherwise be compiled for twice.
    """
    mesh = _mesh()
    folds, everywhere = jax.sharding.PartitionSpec("folds"), jax.sharding.PartitionSpec()
    specs = tuple(everywhere if axis is None else folds for axis in axes)
    each = jax.shard_map(
        jax.vmap(one, in_axes=axes), mesh=mesh, in_specs=specs, out_specs=folds, check_vma=False
    )
    places = tuple(jax.sharding.NamedSharding(mesh, spec) for spec in specs)
    return jax.jit(
        each, in_shardings=places, out_shardings=jax.sharding.NamedSharding(mesh, folds),
        compiler_options=brief_options(),
    )  # fmt: skip


def _mesh() -> jax.sharding.Mesh:
    devices = math.gcd(FOLDS, jax.device_count())
    kinds = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((devices,), ("folds",), kinds, devices=jax.devices()[:devices])


def log_densities(method: PACPFL, state: State, fold: Fold, key: Array) -> Float[Array, "n m"]:
    """Return the log densities of the rows that clients are asked for; 0 for padding."""

    def one(known: Data, asked: Data, log_scale: Array) -> Array:
        prediction = method.personalize(state, (), known, key)(asked.x)
        if isinstance(prediction, Probabilities):
            likely = prediction.log_probabilities
            each = jnp.take_along_axis(likely, asked.y[:, None].astype(int), 1)[:, 0]
        else:
            each = predictive.log_density(prediction, asked.y) - log_scale
        return jnp.where(asked.mask, each, 0)

    return jax.lax.map(lambda parts: one(*parts), (fold.known, fold.asked, fold.log_scale))


@dataclass(frozen=True)
class Field:
    """Clients and rows that race: who is new in which fold, and which rows are given there."""

    parts: tuple[Samples, ...]
    new: np.ndarray  # [folds, n]
    given: tuple[tuple[np.ndarray, ...], ...]  # [fold][client]: masks of rows
    form: Form
    unscaled: np.ndarray | None

    @cached_property
    def asked(self) -> np.ndarray:
        """Return how many rows each client is asked for, [folds, n]."""
        return np.array([[min(ASKED, (~mask).sum()) for mask in fold] for fold in self.given])

    @property
    def batch(self) -> int | None:
        """Return how many of a client's rows a round sees; None: all."""
        return BATCH if max(map(len, self.parts)) > BATCH else None

    def folds(self, how: str) -> Fold:
        """Return all folds in the units of a way to scale; leading axis: folds."""
        every = [
            self._fold(given, new, how) for given, new in zip(self.given, self.new, strict=True)
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *every)

    def _fold(self, given: Sequence[np.ndarray], new: np.ndarray, how: str) -> Fold:
        scalers = self._scalers(given, new, how)
        scaled = [scaler(part) for scaler, part in zip(scalers, self.parts, strict=True)]
        log_scale = [math.log(scaler.y_std) for scaler in scalers]
        return Fold(
            padded(scaled, given, ROWS),
            padded(scaled, given, KNOWN),
            padded(scaled, [~mask for mask in given], ASKED),
            jax.device_put((~new).astype(np.float32)),
            jax.device_put(np.array(log_scale, np.float32)),
        )

    def _scalers(self, given: Sequence[np.ndarray], new: np.ndarray, how: str) -> list[Scaler]:
        own = [
            Samples(part.x[mask], part.y[mask])
            for part, mask in zip(self.parts, given, strict=True)
        ]
        labels = self.form.classes is not None
        if how == "client":
            return [fit_scaler(part, self.unscaled, labels) for part in own]
        if how == "none":
            width = len(self.form.features)
            return [Scaler(np.zeros(width), np.ones(width), 0.0, 1.0)] * len(own)
        existing = [part for part, joins in zip(own, new, strict=True) if not joins]
        return [fit_scaler(existing, self.unscaled, labels)] * len(own)


def padded(parts: Sequence[Samples], masks: Sequence[np.ndarray], most: int) -> Data:
    """Return at most so many of every client's rows, evenly spread, as one array.

    How wide it is follows from the largest client alone, whatever the fold, in steps: tables of like size
    share programs.
    """
    largest = -8 * (-min(most, max(map(len, parts))) // 8)
    x = np.zeros((len(parts), largest, parts[0].x.shape[1]), np.float32)
    y, there = np.zeros(x.shape[:2], np.float32), np.zeros(x.shape[:2], bool)
    for i, (part, mask) in enumerate(zip(parts, masks, strict=True)):
        rows = np.flatnonzero(mask)
        if len(rows) > most:
            rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
        x[i, : len(rows)], y[i, : len(rows)] = part.x[rows], part.y[rows]
        there[i, : len(rows)] = True
    return Data(x, y, there)  # type: ignore[arg-type]


def make_field(
    samples: Sequence[Samples], form: Form, unscaled: np.ndarray | None, seed: int
) -> Field:
    """Choose who races, and deal clients and rows to the folds."""
    random = np.random.default_rng([seed, 0x7ACE])
    most = racing(len(samples), max(map(len, samples)))
    chosen = np.sort(random.choice(len(samples), most, replace=False))
    parts = []
    for part in (samples[i] for i in chosen):
        order = np.arange(len(part)) if form.classes is None else random.permutation(len(part))
        rows = np.sort(random.choice(len(part), min(len(part), ROWS), replace=False))
        parts.append(Samples(part.x[order[rows]], part.y[order[rows]]))
    new = np.zeros((FOLDS, len(parts)), bool)
    if len(parts) >= 3:
        new = random.permutation(np.arange(len(parts)) % FOLDS) == np.arange(FOLDS)[:, None]
    given = tuple(
        tuple(
            _given(len(part), fold, joins, len(parts))
            for part, joins in zip(parts, new[fold], strict=True)
        )
        for fold in range(FOLDS)
    )
    return Field(tuple(parts), new, given, form, unscaled)


def _given(count: int, fold: int, new: bool, clients: int) -> np.ndarray:
    """Return which of a client's rows it is given: the first ones; of one or two clients all but a part,
    another one in each fold."""
    places = np.arange(count)
    if clients < 3:
        return places * FOLDS // max(1, count) != fold
    return places < max(2, round(count * GIVEN[int(new)]))


@dataclass
class Entrant:
    """A candidate, and after each leg the log densities of what is asked: of rows, [folds, n, m], and what
    every client is worth to it, [folds, n]."""

    config: Config
    changes: Values
    worth: dict[int, np.ndarray] = field(default_factory=dict)
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    state: State | None = None


class Member(NamedTuple):
    """A candidate that is trained, for how long it was judged, and with how many particles."""

    entrant: Entrant
    rounds: int
    particles: int


@dataclass(frozen=True)
class Outcome:
    """What a race has chosen, and how every candidate did, the best one first."""

    config: Config
    table: tuple[Facts, ...] = ()

    def facts(self, base: Config) -> Facts:
        """Return what to keep of the race: the keys it changes with their values, and the table."""
        changes = {}
        for key in sorted(differing(self.config, base)):
            section, name = key.split(".")
            changes[key] = getattr(getattr(self.config, section), name)
        return {"changes": changes, "candidates": len(self.table), "table": list(self.table)}


class Race:
    """Entrants, how they are judged, and the rows that they share."""

    def __init__(self, base: Config, field: Field, fixed: Collection[str]) -> None:
        self.base, self.field, self.fixed = base, field, frozenset(fixed)
        self.entrants: list[Entrant] = []
        self.keys = jax.random.split(jax.random.key(base.seed), FOLDS)
        self._folds: dict[str, Fold] = {}
        parts = {"existing": ~field.new, "new": field.new}
        self.legs = LEGS if field.form.classes is None else CLASS_LEGS
        self.groups = {name: here for name, here in parts.items() if field.asked[here].sum()}

    def enter(self, candidates: Iterable[Values]) -> list[Entrant]:
        """Add candidates that differ from those there are; what is fixed they leave as it is."""
        entered = []
        for changes in candidates:
            kept = {name: value for name, value in changes.items() if name not in self.fixed}
            config = updated(self.base, kept, "the race")
            try:
                build_prior(config, self.field.form)
            except InputError:  # it does not go together with what is fixed
                if kept:
                    continue
                raise
            if all(config != other.config for other in self.entrants):
                entered.append(Entrant(config, kept))
                self.entrants.append(entered[-1])
        return entered

    def play(self, entrant: Entrant, rounds: int) -> None:
        """Train a candidate until so many rounds, and judge it."""
        how = entrant.config.data.standardize
        if how not in self._folds:
            self._folds[how] = jax.device_put(self.field.folds(how))
        fold, (method, numbers) = self._folds[how], self._program(entrant.config)
        if entrant.state is None:
            entrant.state = _start(method)(numbers, fold, self.keys)
        legs = np.int32(max(entrant.worth, default=0)), np.int32(rounds)
        entrant.state, rows = _leg(method)(numbers, entrant.state, fold, self.keys, *legs)
        entrant.rows[rounds] = np.asarray(rows, float)
        entrant.worth[rounds] = entrant.rows[rounds].sum(-1)

    def _program(self, config: Config) -> tuple[PACPFL, Numbers]:
        """Return the method that candidates of this family share, and this one's numbers."""
        form, n = self.field.form, len(self.field.parts)
        common = {**COMMON, "train.batch": self.field.batch}
        method = replace(build_pacpfl(updated(config, common, "the race"), form), clients=n)
        own = build_pacpfl(config, form)
        spread = hyper_prior(own.prior.blocks, config.train.hyper_std)
        numbers = (own.tau, config.train.learning_rate, form.clients)
        return method, Numbers(spread, *map(jnp.float32, numbers))

    def scores(self, worth: np.ndarray) -> dict[str, float]:
        """Return the negative log density of a row, by group."""
        asked = self.field.asked
        return {
            name: float(-worth[here].sum() / asked[here].sum())
            for name, here in self.groups.items()
        }

    def score(self, worth: np.ndarray) -> float:
        """Return the mean over the groups; infinite for a candidate that diverged."""
        mean = float(np.mean(list(self.scores(worth).values())))
        return mean if math.isfinite(mean) else math.inf

    def best(self, entrant: Entrant) -> tuple[float, int]:
        """Return a candidate's score, and after how many rounds: after the most of those whose score is
        the lowest but for the noise between clients."""
        worth = entrant.worth
        lowest = min(worth, key=lambda rounds: self.score(worth[rounds]))
        for rounds in sorted(worth, reverse=True):
            gain, error = self.gain(worth[lowest], worth[rounds])
            if rounds == lowest or gain <= max(error, TOLERANCE):
                return self.score(worth[rounds]), rounds
        raise AssertionError("the lowest is among them")

    def gain(self, worth: np.ndarray, other: np.ndarray) -> tuple[float, float]:
        """Return by how much a row is worth more, and the standard error between clients.

        A client tells for TELLING nats a row at most: where one of both fails altogether on a few clients,
        the error would be as large as the gain, and the failure would stay.
        """
        asked = self.field.asked
        share = np.zeros(worth.shape)
        for here in self.groups.values():
            share[here] = 1 / (len(self.groups) * asked[here].sum())
        most = TELLING * asked
        each = (np.clip(worth - other, -most, most) * share).sum(0)
        error = each.std(ddof=1) * math.sqrt(len(each)) if len(each) > 1 else 0.0
        return float(each.sum()), float(error)

    def survivors(self, running: Sequence[Entrant], rounds: int) -> list[Entrant]:
        """Return who plays the next leg: the best of those whom more rounds have not made worse; the
        default in any case until REFERENCE."""
        ranked = sorted(running, key=self.best)
        ahead = ranked[: max(2, len(ranked) // self.legs[rounds])]
        kept = [e for e in ahead if self.best(e)[1] == rounds]
        default = self.entrants[0]
        finite = math.isfinite(self.best(default)[0])
        if finite and rounds < REFERENCE and rounds in default.worth and default not in kept:
            kept.append(default)
        return kept

    def _boldest(self, ranked: Sequence[Entrant]) -> Entrant:
        """Return the best candidate with the largest tau that does as well, but for TOLERANCE: a fold has
        fewer rows than the federation, and needs to hold back more."""

        def others(entrant: Entrant) -> Values:
            return {key: value for key, value in entrant.changes.items() if key != "train.tau"}

        best = self.best(ranked[0])[0]
        alike = [e for e in ranked if others(e) == others(ranked[0])]
        alike = [e for e in alike if self.best(e)[0] <= best + TOLERANCE] or [ranked[0]]
        return max(alike, key=lambda e: e.config.train.tau or 0.0)

    @property
    def units(self) -> int:
        """Return how many particles candidates share in the training; 1 where one takes all."""
        if self.field.form.classes is not None or self.fixed & WHOLE:
            return 1
        base = self.base
        plain = base.prior.members == 1 and base.prior.warp == "none"
        if not plain or base.personal.weights != "uniform":
            return 1
        return base.train.particles if "train.particles" in self.fixed else PARTICLES

    def members(self) -> list[Member]:
        """Return who is trained, after how many rounds, and with how many particles: the most first.

        Shares are those with which a mixture gives what was asked the highest density, where both groups
        of clients count alike; SHY rows speak for all alike. The units are those of the best.
        """
        how = min(self.entrants, key=self.best).config.data.standardize
        pool = [
            (entrant, rounds)
            for entrant in self.entrants
            for rounds in entrant.rows
            if entrant.config.data.standardize == how
            and math.isfinite(self.score(entrant.worth[rounds]))
        ]
        asked, densities = self.field.asked, np.stack([e.rows[rounds] for e, rounds in pool])
        there = np.arange(densities.shape[-1]) < asked[..., None]
        weights = np.zeros(there.shape)
        for here in self.groups.values():
            weights[here] = 1 / asked[here].sum()
        given, densities = weights[there] * there.sum() / len(self.groups), densities[:, there]
        first = np.arange(len(pool))
        while len(first) > MEMBERS:  # a quarter goes home at a time: of those alike one stays
            left = max(MEMBERS, len(first) * 3 // 4)
            order = np.argsort(-stacked(densities[first], given), kind="stable")
            first = first[np.sort(order[:left])]
        shares = stacked(densities[first], given)
        counts = np.floor(shares * self.units + 0.5).astype(int)
        counts[shares.argmax()] += self.units - counts.sum()
        found = [Member(*pool[i], int(n)) for i, n in zip(first, counts, strict=True) if n > 0]
        return sorted(found, key=lambda member: -member.particles)

    def outcome(self) -> Outcome:
        """Return what is trained: particles of the candidates that together predict best.

        Where one takes all, the best; the default, unless that is clearly worse.
        """
        default = self.entrants[0]
        if self.units > 1 and math.isfinite(min(map(self.best, self.entrants))[0]):
            members = self.members()
        else:
            members = [self._pick()]
        table = []
        for entrant in sorted(self.entrants, key=self.best):
            score, after = self.best(entrant)
            finite = self.scores(entrant.worth[after]) if math.isfinite(score) else {}
            facts = {"changes": dict(entrant.changes), "rounds": after, **finite}
            particles = sum(member.particles for member in members if member.entrant is entrant)
            facts |= {"particles": particles} if len(members) > 1 else {}
            table.append(facts | {"chosen": particles > 0, "default": entrant is default})
        first = members[0]
        if first.entrant is default and first.rounds == max(default.worth) and len(members) == 1:
            return Outcome(self.base, tuple(table))
        # The rounds that were judged, at a constant rate as in the race, and a fifth in which it falls.
        training: Values = {"train.rounds": first.rounds * 5 // 4, "train.schedule": "cooldown"}
        if first.entrant is not default or len(members) > 1:
            training = {**training, "train.batch": self.field.batch}
        if len(members) > 1:
            training = {**training, **self._blend(members)}
        kept = {name: value for name, value in training.items() if name not in self.fixed}
        return Outcome(updated(first.entrant.config, kept, "the race"), tuple(table))

    def _pick(self) -> Member:
        ranked = sorted(self.entrants, key=self.best)
        first, default = self._boldest(ranked), self.entrants[0]
        worth = [entrant.worth[self.best(entrant)[1]] for entrant in (first, default)]
        gain, error = self.gain(*worth)
        sure = not np.isfinite(worth[1]).all() or gain > SURE * error
        chosen = first if sure else default
        return Member(chosen, self.best(chosen)[1], 1)

    def _blend(self, members: Sequence[Member]) -> Values:
        """Return a prior that has the parts of all members', and the groups of particles."""
        groups, form = [], self.field.form
        for entrant, rounds, particles in members:
            tau = build_pacpfl(entrant.config, form).tau
            train = entrant.config.train
            train = replace(train, tau=tau, particles=particles, rounds=rounds * 5 // 4)
            groups.append(Group(entrant.config.prior, train))
        means, kernels, noises = (
            list(
                dict.fromkeys(
                    part for group in groups for part in getattr(group.prior, name).split("+")
                )
            )
            for name in ("mean", "kernel", "noise_model")
        )
        learned = len(kernels) > 1 or any(g.prior.output_scale == "learned" for g in groups)
        return {
            "prior.mean": "+".join(means), "prior.kernel": "+".join(kernels),
            "prior.output_scale": "learned" if learned else "fixed",
            "prior.noise_model": max(noises, key=lambda name: name != "constant"),
            "train.particles": self.units, "train.blend": tuple(map(str, groups)),
            "train.rounds": max(group.train.rounds for group in groups),
        }  # fmt: skip


def stacked(densities: Float[np.ndarray, "k n"], weights: Float[np.ndarray, " n"]) -> np.ndarray:
    r"""Return the shares that maximise $\sum_j w_j \ln \sum_i s_i p_i(j) + \frac{SHY}{k} \sum_i \ln s_i$.

    The objective is concave, and expectation-maximisation climbs it without a step size.

    Parameters
    ----------
    densities
        Logs of the densities that members give to rows.
    weights
        How much rows count.
    """
    likely = np.exp(densities - densities.max(0))
    shares = np.full(len(likely), 1 / len(likely))
    for _ in range(CLIMBS):
        parts = shares[:, None] * likely
        shares = (parts / parts.sum(0)) @ weights + SHY / len(likely)
        shares /= shares.sum()
    return shares


def choose(
    base: Config,
    samples: Sequence[Samples],
    form: Form,
    *,
    unscaled: np.ndarray | None = None,
    fixed: Collection[str] = (),
    progress: Callable[[int, int, str], None] = lambda done, total, words: None,
) -> Outcome:
    """Return the configuration that predicts rows of this federation best.

    Parameters
    ----------
    base
        What suits the federation by its size (`pacpfl.defaults`): the default.
    samples
        The training rows of every client, in their own units.
    form
        What the federation looks like.
    unscaled
        Which features keep their unit.
    fixed
        Keys that somebody has set, such as "train.tau": no candidate changes them.
    progress
        Called with how many legs are done, of how many about, and words for people.
    """
    field = make_field(samples, form, unscaled, base.seed)
    if field.asked.sum(1).min() < LEAST:
        return Outcome(base)
    with jax.enable_x64(False):
        return _played(Race(base, field, fixed), progress)


def _played(race: Race, progress: Callable[[int, int, str], None]) -> Outcome:
    field = race.field
    running = race.enter([{}, *candidates(field)])
    total, done = 5 * len(running), 0
    for rounds in race.legs:
        for entrant in running:
            race.play(entrant, rounds)
            done += 1
            progress(done, max(total, done), f"{len(running)} candidates, {rounds} rounds")
        if rounds == tuple(race.legs)[1]:
            leaders = sorted(running, key=race.best)[:2]
            for entrant in race.enter(v for one in leaders for v in variations(one, field)):
                for leg in tuple(race.legs)[:2]:
                    race.play(entrant, leg)
                running.append(entrant)
        running = race.survivors(running, rounds)
    return race.outcome()


def candidates(field: Field) -> Iterator[Values]:
    """Yield what is tried in any case."""
    if field.form.classes is not None:
        plain = {**flat(Config()), **network(field.form)}
        networks = {key: plain[key] for key in LOGISTIC}
        yield from ({**networks, "train.tau": tau} for tau in NETWORK_TAUS)
        if is_logistic(field.form):
            yield from ({**LOGISTIC, "train.tau": tau} for tau in LOGISTIC_TAUS)
        return
    noise = min(0.4, local_noise(field.parts))
    for family, numbers in FAMILIES[: SMOOTH if field.form.clients < FEW_CLIENTS else None]:
        for tau, spread in numbers:
            yield {
                **family, "train.tau": tau, "train.hyper_std": spread, "train.learning_rate": 0.03,
                "prior.noise": noise, "prior.noise_spread": 0.5, "data.standardize": "global",
            }  # fmt: skip


def variations(leader: Entrant, field: Field) -> Iterator[Values]:
    """Yield what differs from a good candidate in one respect."""
    if field.form.classes is not None:
        slow = leader.config.train.learning_rate < 0.03
        yield {**leader.changes, "train.learning_rate": 0.03 if slow else 0.01}
        yield {**leader.changes, "train.hyper_std": 0.3}
        return
    other = "client" if leader.config.data.standardize == "global" else "global"
    noise = min(0.4, local_noise(field.parts))
    for changes in (
        {"data.standardize": other},
        {"train.learning_rate": 0.01},
        {"prior.noise_spread": 1.0},
        {"prior.noise": float(f"{max(0.01, noise / 4):.2g}"), "prior.noise_spread": 1.0},
        {"prior.noise_model": "linear"},
    ):
        yield {**leader.changes, **changes}


def local_noise(parts: Sequence[Samples]) -> float:
    """Return what clients' own ridge regressions leave unexplained, from the median of their squared
    leave-one-out residuals, in units of the spread of all targets: from 0.01 to 1."""
    scaler = fit_scaler(parts)
    squares, count = 0.0, 0
    for part in (scaler(part) for part in parts if len(part) > 2):
        x = np.column_stack([np.ones(len(part)), part.x])
        hat = x @ np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T)
        left = (part.y - hat @ part.y) / np.maximum(1 - np.diag(hat), 0.05)
        squares += float(np.median(left**2)) / 0.455 * len(part)  # the median of chi squared
        count += len(part)
    return float(f"{min(1.0, max(0.01, math.sqrt(squares / count))):.2g}") if count else 0.4
