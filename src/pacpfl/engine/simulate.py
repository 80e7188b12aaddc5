"""All clients in one process: every gradient of a round in one compiled call, many rounds per call.

Randomness depends on (seed, round, client) alone, never on how rounds are grouped into calls, so an
interrupted run that goes on from a checkpoint ends with the same bits as one that was left alone.
Private runs are the exception: their noise and their choice of clients come from the operating
system, so that a run that goes on draws them anew. What they release is written in a ledger first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl.data.store import ClientStore
from pacpfl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.engine.compiled import make_call
from pacpfl.engine.kept import kept
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import (
    RoundInputs,
    choose_clients,
    divide,
    first_client,
    gather_round,
    hold,
    initial_client_states,
    point_round,
    poisson_clients,
    poisson_slots,
    stack_rounds,
    to_device,
)
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.privacy.accounting import Plan
from pacpfl.privacy.ledger import Ledger
from pacpfl.privacy.source import generator, noise_key

CALL_SECONDS = 0.4  # how long one compiled call should take: what a progress bar needs
MAXIMUM_ROUNDS_PER_CALL = 64
STREAM_BYTES = 64 * 2**20  # bytes of samples handed over per call when clients are sampled
RESIDENT_BYTES = 2**29  # federations up to this size are handed over once and stay on the device


@dataclass(frozen=True)
class Saving:
    """Where and how often to save, and the name of the configuration the checkpoint belongs to."""

    path: Path
    identity: str
    rounds: int = 500
    minutes: float = 1.0


@dataclass(frozen=True)
class Secrecy:
    """What a private run does differently: who takes part, whence the noise comes, what is counted."""

    plan: Plan
    ledger: Ledger | None = None
    noise_seed: int | None = None

    def left(self, done: int) -> int:
        """Rounds the budget still allows; `done` stands for what was released where no ledger does."""
        released = done if self.ledger is None else self.ledger.released
        limit = self.plan.rounds
        return 2**31 if limit is None else max(0, limit - released)

    def choose(self, number: int, n: int) -> np.ndarray:
        rng = generator(self.noise_seed, number)
        if self.plan.sampling == "poisson":
            return poisson_clients(rng, n, self.plan.rate)
        return np.sort(rng.choice(n, self.plan.cohort, replace=False, shuffle=False))


class Progress(NamedTuple):
    round: int
    rounds: int
    seconds: float
    diagnostics: dict[str, float]


class Trained(NamedTuple):
    state: Any
    client_states: Any
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
    """Run `rounds` rounds. Goes on from the checkpoint where `saving` finds one.

    With `secrecy`, rounds are released while its budget lasts, and clients are chosen as its plan says.
    """
    n = store.clients
    c = n if clients_per_round is None else clients_per_round
    if not 1 <= c <= n:
        raise InputError(f"{c} clients per round cannot be chosen from {n}; choose 1 to {n}.")
    slots = c
    if secrecy is not None:
        plan = secrecy.plan
        slots = poisson_slots(n, plan.rate) if plan.sampling == "poisson" else plan.cohort
    keys = Keys.of(seed)
    state = _start(method)(keys.start(), first_client(store, dtype))
    client_states = initial_client_states(method, state, store, keys, dtype)
    history: dict[str, list[np.ndarray]] = {}
    start = 0
    if saving is not None:
        found = load_checkpoint(saving.path, (state, client_states), saving.identity)
        if found is not None:
            if secrecy is not None and secrecy.ledger is not None:
                secrecy.ledger.check(found.ledger)
            start = found.round
            state, client_states = to_device(found.state)
            history = {name: [values] for name, values in found.history.items()}

    def choose(number: int) -> np.ndarray:
        if secrecy is not None:
            return secrecy.choose(number, n)
        return choose_clients(seed, number, n, c)

    def save(done: int) -> None:
        if saving is not None:
            flat = {name: np.concatenate(values) for name, values in history.items()}
            ledger = secrecy.ledger if secrecy is not None else None
            position = "" if ledger is None else ledger.position
            save_checkpoint(
                saving.path, Checkpoint(done, (state, client_states), flat, position),
                saving.identity,
            )  # fmt: skip

    everyone = secrecy.plan.sampling == "all" if secrecy is not None else c == n
    sizes = (everyone, dtype, matrices_per_client, secrecy is not None)
    calls = prepare(method, store, keys, slots, *sizes)
    done, count = start, 1
    compile_seconds = train_seconds = 0.0
    began = last_saved = time.monotonic()
    last_saved_round = start
    stopped = out_of_budget = False
    while done < rounds and not stopped:
        count = min(count, calls.capacity, rounds - done)
        if saving is not None:
            count = min(count, last_saved_round + saving.rounds - done)
        if secrecy is not None:
            count = min(count, secrecy.left(done))
            out_of_budget = count == 0
            if out_of_budget:
                break
        numbers = range(done, done + count)
        chosen = [] if everyone else [choose(number) for number in numbers]
        if any(len(clients) > calls.slots for clients in chosen):
            calls = prepare(method, store, keys, n, *sizes)
        inputs = calls.inputs(chosen)
        noise: tuple[jax.Array, ...] = ()
        if secrecy is not None:
            noise = (jax.random.key_data(noise_key(secrecy.noise_seed)),)
            if secrecy.ledger is not None:
                secrecy.ledger.release(done, done + count)
        called = time.monotonic()
        state, client_states, curves = calls.call(state, client_states, inputs, done, count, *noise)
        jax.block_until_ready(curves)
        seconds = time.monotonic() - called
        for name, values in curves.items():
            history.setdefault(name, []).append(np.asarray(values)[:count])
        done += count
        if compile_seconds == 0.0:  # the first call, one round, is nearly all compilation
            compile_seconds = seconds
        else:
            train_seconds += seconds
            count = min(4 * count, int(CALL_SECONDS * count / seconds))
        count = max(count, 2)
        if progress is not None:
            latest = {name: float(values[-1][-1]) for name, values in history.items()}
            progress(Progress(done, rounds, time.monotonic() - began, latest))
        stopped = stop()
        due = saving is not None and (
            done - last_saved_round >= saving.rounds
            or time.monotonic() - last_saved >= 60 * saving.minutes
            or secrecy is not None  # rounds that are lost are paid for twice
        )
        if due or stopped:
            save(done)
            last_saved, last_saved_round = time.monotonic(), done
    if saving is not None and done != last_saved_round:
        save(done)
    flat = {name: np.concatenate(values) for name, values in history.items()}
    finished = done >= rounds or out_of_budget
    return Trained(
        state, client_states, flat, done, compile_seconds, train_seconds, finished, out_of_budget
    )


@kept
def _start(method: Method) -> Callable[..., Any]:
    return jax.jit(method.init)


class Calls(NamedTuple):
    """Compiled rounds for cohorts up to a size, and how their inputs are made."""

    call: Callable[..., Any]
    inputs: Callable[[list[np.ndarray]], RoundInputs]  # from the clients chosen in each round
    capacity: int  # rounds in a call, at most
    slots: int  # clients in a round, at most


def prepare(
    method: Method,
    store: ClientStore,
    keys: Keys,
    slots: int,
    everyone: bool,
    dtype: type,
    matrices_per_client: int,
    secret: bool,
) -> Calls:
    """Nothing is compiled before the first call."""
    itemsize = np.dtype(dtype).itemsize
    layout = divide(slots, store.longest, matrices_per_client, itemsize)
    itemsize = jnp.zeros((), dtype).dtype.itemsize  # float64 may be switched off
    bytes_per_round = layout.slots * store.longest * (store.features + 1) * itemsize
    resident = None
    # Samples that lie on disk stay there: they may be more than fits anywhere.
    in_memory = not isinstance(store.x, np.memmap)
    if not everyone and in_memory and store.x.size * itemsize <= RESIDENT_BYTES:
        resident = to_device(hold(store, dtype))
        bytes_per_round = 1
    capacity = max(1, min(MAXIMUM_ROUNDS_PER_CALL, STREAM_BYTES // bytes_per_round))
    n = store.clients
    call = make_call(method, keys, layout, capacity, everyone, n, resident, store.longest, secret)
    fixed = None
    if everyone:
        fixed = to_device(stack_rounds([gather_round(store, np.arange(n), layout.slots, dtype)], 1))

    def inputs(chosen: list[np.ndarray]) -> RoundInputs:
        if fixed is not None:
            return fixed
        make = gather_round if resident is None else point_round
        each = [make(store, clients, layout.slots, dtype) for clients in chosen]
        return to_device(stack_rounds(each, capacity))

    return Calls(call, inputs, capacity, layout.slots)
