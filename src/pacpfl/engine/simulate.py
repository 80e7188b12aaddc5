"""All clients in this process: every gradient of a round in one compiled call, many rounds per call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pacpfl.data.store import ClientStore
from pacpfl.engine.compiled import Rounds, make_call
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import (
    RoundInputs,
    choose_clients,
    divide,
    first_client,
    hold,
    initial_client_states,
    poisson_slots,
    round_inputs,
)
from pacpfl.engine.runtime import compiled_once
from pacpfl.engine.training import Played, Saving, Secrecy, States, Training, play
from pacpfl.errors import InputError
from pacpfl.methods.base import Method

CALL_SECONDS = 0.4  # how long one compiled call should take: what a progress bar needs
MAXIMUM_ROUNDS_PER_CALL = 64
STREAM_BYTES = 64 * 2**20  # bytes of samples handed over per call when clients are sampled
RESIDENT_BYTES = 2**29  # federations up to this size are handed over once and stay on the device


class Progress(NamedTuple):
    """How far a training is, for whoever watches."""

    round: int
    rounds: int
    seconds: float
    diagnostics: dict[str, float]


class Trained(NamedTuple):
    """A training's result, and how it came about."""

    state: PyTree
    client_states: PyTree
    history: dict[str, np.ndarray]
    rounds: int
    compile_seconds: float
    seconds: float  # without compilation
    finished: bool  # False: stopped on request, saved
    out_of_budget: bool = False  # a private run that ends before its last round


def train(
    method: Method,
    store: ClientStore,
    *,
    rounds: int,
    clients_per_round: int | None = None,
    seed: int = 0,
    dtype: type = np.float32,
    matrices_per_client: int = 1,
    saving: Saving | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    secrecy: Secrecy | None = None,
) -> Trained:
    """Train a method on the clients of a store, all in this process.

    Parameters
    ----------
    method
        What is learned, and how.
    store
        The clients' training samples.
    rounds
        Rounds in all, with those of the checkpoint that the training goes on from.
    clients_per_round
        How many clients take part in each round; None: all of them.
    seed
        All randomness of the training comes from it, but that of a private run.
    dtype
        Of samples and states.
    matrices_per_client
        Kernel matrices that a client's update holds at once: decides how many clients go together.
    saving
        Where and how often to save, and where to go on from if there is a checkpoint.
    progress
        Called after each compiled call.
    stop
        Called before each compiled call; True ends the training there, saved.
    secrecy
        The plan of a private run: rounds are released while its budget lasts, and clients are chosen as
        it says.

    Returns
    -------
    Trained
        The states after the last round, and what was measured on the way.
    """
    cohort = InProcess(method, store, clients_per_round, seed, dtype, matrices_per_client, secrecy)
    training = Training(cohort.start(), rounds, saving).resume()
    training.keep_to(secrecy)
    began = time.monotonic()

    def tell(training: Training) -> None:
        if progress is not None:
            seconds = time.monotonic() - began
            progress(Progress(training.done, rounds, seconds, training.latest))

    stopped = play(cohort, training, tell, lambda: "asked to stop" if stop() else "")
    return Trained(
        *training.states, training.history, training.done, cohort.compile_seconds, cohort.seconds,
        not stopped, training.out_of_budget,
    )  # fmt: skip


@dataclass
class InProcess:
    """A cohort of all clients of a store, in this process."""

    method: Method
    store: ClientStore
    clients_per_round: int | None = None
    seed: int = 0
    dtype: type = np.float32
    matrices_per_client: int = 1
    secrecy: Secrecy | None = None
    compile_seconds: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        n, slots = self.store.clients, self.clients_per_round
        slots = self._c = n if slots is None else slots
        if not 1 <= slots <= n:
            raise InputError(
                f"{slots} clients per round cannot be chosen from {n}; choose 1 to {n}."
            )
        self._everyone, self._pace = slots == n, 1
        if self.secrecy is not None:
            plan = self.secrecy.plan
            self._everyone = plan.sampling == "all"
            slots = poisson_slots(n, plan.rate) if plan.sampling == "poisson" else plan.cohort
        self._prepare(slots)

    def start(self) -> States:
        """Return the states before the first round."""
        keys = Keys.of(self.seed)
        state = _start(self.method)(keys.start(), first_client(self.store, self.dtype))
        clients = initial_client_states(self.method, state, self.store, keys, self.dtype)
        return state, clients

    def play(self, states: States, first: int, most: int) -> Played:
        """Play as many rounds as one compiled call takes in about CALL_SECONDS."""
        count = min(most, self._pace, self._capacity)
        chosen = [] if self._everyone else [self._choose(first + i) for i in range(count)]
        if any(len(clients) > self._slots for clients in chosen):
            self._prepare(self.store.clients)
        inputs = self._fixed or self._inputs(chosen, self._capacity, self._held)
        noise = None
        if self.secrecy is not None:
            noise = self.secrecy.noise()
            self.secrecy.release(first, first + count)
        began = time.monotonic()
        state, clients, curves = self._call(*states, inputs, first, count, noise)
        jax.block_until_ready(curves)
        seconds = time.monotonic() - began
        if self.compile_seconds == 0.0:  # a call of one round is nearly all compilation
            self.compile_seconds, self._pace = seconds, 2
        else:
            self.seconds += seconds
            self._pace = max(2, min(4 * count, int(CALL_SECONDS * count / seconds)))
        return Played(
            (state, clients), {n: np.asarray(values)[:count] for n, values in curves.items()}
        )

    def _choose(self, number: int) -> np.ndarray:
        if self.secrecy is not None:
            return self.secrecy.choose(number, self.store.clients)
        return choose_clients(self.seed, number, self.store.clients, self._c)

    def _prepare(self, slots: int) -> None:
        """Make the call for cohorts of up to `slots`; nothing is compiled before the first one."""
        store, dtype, n = self.store, self.dtype, self.store.clients
        layout = divide(slots, store.longest, self.matrices_per_client, np.dtype(dtype).itemsize)
        itemsize = jnp.zeros((), dtype).dtype.itemsize  # float64 may be switched off
        bytes_per_round = layout.slots * store.longest * (store.features + 1) * itemsize
        resident = None
        # Samples that lie on disk stay there: they may be more than fits anywhere.
        in_memory = not isinstance(store.x, np.memmap)
        if not self._everyone and in_memory and store.x.size * itemsize <= RESIDENT_BYTES:
            resident, bytes_per_round = hold(store, dtype), 1
        self._capacity = max(1, min(MAXIMUM_ROUNDS_PER_CALL, STREAM_BYTES // bytes_per_round))
        self._slots, self._held = layout.slots, resident is not None
        rounds = Rounds(self.method, layout, self._capacity, self._everyone, n, store.longest)
        self._call = make_call(rounds, Keys.of(self.seed), resident)
        self._fixed = self._inputs([np.arange(n)]) if self._everyone else None

    def _inputs(
        self, chosen: list[np.ndarray], capacity: int = 1, held: bool = False
    ) -> RoundInputs:
        return round_inputs(self.store, chosen, self._slots, self.dtype, capacity, held)


@compiled_once
def _start(method: Method) -> Callable[..., PyTree]:
    return jax.jit(method.init)
