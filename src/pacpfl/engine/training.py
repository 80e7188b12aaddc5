"""A training is a loop over rounds with one state; where the clients are is the cohort's affair.

Randomness depends on (seed, round, client) alone (`engine.keys`), so an interrupted run that goes
on from a checkpoint ends with the same bits. Private runs are the exception: their noise and their
choice of clients come from the operating system, never from the seed, which stands in config.toml: who
could draw the noise again would see through it, and a choice that could be drawn again amplifies nothing.
They are drawn anew for every call and never written down; a `noise_seed` makes them repeatable, for
tests, and the run is marked NOT PRIVATE. What is released is written in a ledger first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.privacy.accounting import Plan
from pacpfl.privacy.ledger import FILE, Ledger, open_ledger

KIND = "pacpfl-checkpoint-1"
REMEDY = "delete it to start over"
HISTORY = "history/"

States = tuple[PyTree, PyTree]  # of the server, and of the clients, as the method has them


class Played(NamedTuple):
    """What a cohort has made of some rounds; no curves where no round came to anything."""

    states: States
    curves: dict[str, np.ndarray]  # [rounds, ...]


class Cohort(Protocol):
    """Where the clients are: in this process (`simulate.InProcess`), or at sites."""

    def play(self, states: States, first: int, most: int) -> Played:
        """Play at most `most` rounds from round `first` on."""
        ...


@dataclass(frozen=True)
class Saving:
    """Where and how often to save, and the name of the configuration the checkpoint belongs to."""

    path: Path
    identity: str
    rounds: int = 500
    minutes: float = 1.0
    allowed: Callable[[], bool] = lambda: True  # asked before every save


@dataclass(frozen=True)
class Secrecy:
    """What a private run does differently: who takes part, whence the noise comes, what is counted."""

    plan: Plan
    ledger: Ledger | None = None
    noise_seed: int | None = None

    def left(self, done: int) -> int:
        """Count the rounds the budget still allows; without a ledger, `done` were released."""
        released = done if self.ledger is None else self.ledger.released
        limit = self.plan.rounds
        return 2**31 if limit is None else max(0, limit - released)

    def choose(self, number: int, n: int) -> np.ndarray:
        """Draw the clients of a round."""
        rng = generator(self.noise_seed, number)
        if self.plan.sampling == "poisson":  # each, whatever the others do; perhaps nobody
            return np.flatnonzero(rng.random(n) < self.plan.rate)
        return np.sort(rng.choice(n, self.plan.cohort, replace=False, shuffle=False))

    def release(self, first: int, last: int) -> None:
        """Write rounds [first, last) in the ledger, before anything of them can be seen."""
        if self.ledger is not None:
            self.ledger.release(first, last)

    def noise(self) -> jax.Array:
        """Draw the data of a key for the server's randomness."""
        return jax.random.key_data(noise_key(self.noise_seed))


def noise_key(noise_seed: int | None = None) -> jax.Array:
    """Draw a key for JAX; all its bits are the system's entropy."""
    if noise_seed is not None:
        return jax.random.key(noise_seed)
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))


def generator(noise_seed: int | None, number: int) -> np.random.Generator:
    """Return what draws the clients of a round."""
    if noise_seed is not None:
        return np.random.default_rng([noise_seed, number])
    return np.random.default_rng(secrets.randbits(256))


@contextmanager
def keep_secret(
    plan: Plan, noise_seed: int | None, identity: str, folder: Path | None
) -> Iterator[Secrecy]:
    """Hold the ledger in a folder open; without a folder nothing is written down, and nothing resumed."""
    if folder is None:
        yield Secrecy(plan, None, noise_seed)
        return
    accounted = noise_seed is None and plan.guaranteed
    with closing(open_ledger(folder / FILE, plan, identity, accounted)) as ledger:
        yield Secrecy(plan, ledger, noise_seed)


@dataclass
class Training:
    """How far a training is: what a checkpoint holds, and when the next is due."""

    states: States
    rounds: int  # wanted
    saving: Saving | None = None
    secrecy: Secrecy | None = None
    done: int = 0
    saved: int = 0  # rounds of the last checkpoint,
    kept: int = 0  # and of the one before it
    position: str | None = None  # in the ledger, as that checkpoint says; None: there is none
    _curves: dict[str, list[np.ndarray]] = field(default_factory=dict)
    _saved_at: float = field(default_factory=time.monotonic)

    def resume(self) -> Training:
        """Go on from the checkpoint, if there is one."""
        if self.saving is not None and (
            last := load_checkpoint(self.saving.path, self.states, self.saving.identity)
        ):
            self.states, self.position = jax.device_put(last.state), last.ledger
            self.done = self.saved = last.round
            self._curves = {name: [values] for name, values in last.history.items()}
        return self

    def keep_to(self, secrecy: Secrecy | None) -> None:
        """Keep to a budget from now on; its ledger must lead to where the checkpoint was made."""
        self.secrecy = secrecy
        if secrecy is not None and secrecy.ledger is not None and self.position is not None:
            secrecy.ledger.check(self.position)

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Return one value per round so far."""
        return {name: np.concatenate(parts) for name, parts in self._curves.items()}

    @property
    def latest(self) -> dict[str, float]:
        """Return the values of the last round."""
        return {name: float(parts[-1][-1]) for name, parts in self._curves.items()}

    @property
    def out_of_budget(self) -> bool:
        """Return whether the budget ends the training before its last round."""
        return self.secrecy is not None and self.done < self.rounds and not self.allowed()

    def allowed(self) -> int:
        """Count the rounds until the last, the next checkpoint, or the end of the budget."""
        most = self.rounds - self.done
        if self.saving is not None:
            most = min(most, max(1, self.saved + self.saving.rounds - self.done))
        return max(0, most) if self.secrecy is None else min(most, self.secrecy.left(self.done))

    def add(self, played: Played) -> None:
        """Take over what a cohort has made of some rounds."""
        self.states = played.states
        for name, values in played.curves.items():
            self._curves.setdefault(name, []).append(values)
        self.done += len(next(iter(played.curves.values()), ()))

    def save_if_due(self) -> None:
        """Write a checkpoint where the last one is old; rounds that cost budget are never lost."""
        if self.saving is not None and (
            self.done - self.saved >= self.saving.rounds
            or time.monotonic() - self._saved_at >= 60 * self.saving.minutes
            or self.secrecy is not None
        ):
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless the last one says it all."""
        if self.saving is None or self.done == self.saved or not self.saving.allowed():
            return
        ledger = self.secrecy.ledger if self.secrecy is not None else None
        position = "" if ledger is None else ledger.position
        here = Checkpoint(self.done, self.states, self.history, position)
        save_checkpoint(self.saving.path, here, self.saving.identity)
        self.kept, self.saved, self._saved_at = self.saved, self.done, time.monotonic()


def play(
    cohort: Cohort,
    training: Training,
    progress: Callable[[Training], None] = lambda training: None,
    stop: Callable[[], str] = lambda: "",
) -> str:
    """Play rounds until the last, the end of the budget, or a wish to stop; return the reason to stop.

    `training` is brought up to date, and saved at the end and whenever that is due. `progress` is called
    after each of the cohort's answers, `stop` before each: "" goes on.
    """
    reason = ""
    while (most := training.allowed()) and not (reason := stop()):
        training.add(cohort.play(training.states, training.done, most))
        progress(training)
        training.save_if_due()
    training.save()
    return reason


class Checkpoint(NamedTuple):
    """The end of a round: what a run goes on from."""

    round: int
    state: States
    history: dict[str, np.ndarray]  # one value per round so far
    ledger: str = ""  # of a private run: the place in its ledger at which this was saved


def save_checkpoint(path: Path, checkpoint: Checkpoint, identity: str) -> None:
    """Write a checkpoint; only a run whose configuration has this `identity` may go on from it."""
    arrays = _named(checkpoint.state) | {
        HISTORY + n: np.asarray(v) for n, v in checkpoint.history.items()
    }
    about = {"identity": identity, "round": str(checkpoint.round)}
    if checkpoint.ledger:
        about["ledger"] = checkpoint.ledger
    if path.exists():
        files.keep(path, before(path))
    files.save_arrays(path, KIND, arrays, about, private=True)


def before(path: Path) -> Path:
    """Return where the checkpoint is that was saved before this one; each says itself what it holds."""
    return path.with_suffix(f".before{path.suffix}")


def load_checkpoint(path: Path, template: States, identity: str) -> Checkpoint | None:
    """Return the checkpoint, or None where there is none.

    Where it is damaged, the one before it is returned, and the damaged one gets another name. One of
    another configuration or of other arrays than `template` is refused.
    """
    if not path.exists():
        return None
    try:
        arrays, about = files.load_arrays(path, KIND, REMEDY)
    except files.Damaged as error:
        try:
            arrays, about = files.load_arrays(before(path), KIND, REMEDY)
        except InputError:
            raise error from None
        with suppress(OSError, InputError):  # who may only read goes on from the older one as well
            path.replace(path.with_suffix(".damaged"))
            files.keep(before(path), path)
    names = [name for name in arrays if name.startswith(HISTORY)]
    history = {name.removeprefix(HISTORY): arrays.pop(name) for name in names}
    expected = _named(template)
    problem = ""
    if about.get("identity") != identity:
        problem = "belongs to a run with another configuration"
    elif _shapes(arrays) != _shapes(expected):
        problem = "holds arrays of other shapes than this run's"
    if problem:
        raise InputError(f"{path} {problem}; choose another folder with --out, or {REMEDY}.")
    leaves = [arrays[name] for name in expected]
    state = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Checkpoint(int(about["round"]), state, history, about.get("ledger", ""))


def _named(tree: States) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {"state" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in pairs}


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
