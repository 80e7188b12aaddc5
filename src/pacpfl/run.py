"""One run: train, personalise, measure, leave a folder behind (docs/run-folder.md), and come back to it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from pacpfl import config as configuration
from pacpfl import svgd
from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_clients, release, row_blocks
from pacpfl.engine import simulate
from pacpfl.engine.evaluate import evaluate
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client
from pacpfl.engine.runtime import compiled_once
from pacpfl.engine.simulate import Progress, train
from pacpfl.engine.training import Saving, Secrecy, keep_secret, load_checkpoint
from pacpfl.errors import InputError, Interrupted
from pacpfl.files import Facts, locked
from pacpfl.folder import AGAIN, Arrays, MethodResult, RunFolder
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL, State
from pacpfl.methods.registry import (
    build_method,
    build_pacpfl,
    build_private,
    entry,
    temperatures,
)
from pacpfl.privacy.ledger import FILE, RunRecord, facts, read_ledger
from pacpfl.types import Federation, Form

if TYPE_CHECKING:
    from pacpfl.methods.transforms import Private

COLLAPSED = 0.02  # predictions this close, in units of the (standardised) target, count as equal


@dataclass
class Watcher:
    """Callbacks of a run; by default silent."""

    stage: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] | None = None
    count: Callable[[int, int, str], None] = lambda done, total, words: None
    stop: Callable[[], bool] = lambda: False


def run(
    config: Config,
    out: Path,
    watcher: Watcher | None = None,
    others: Config | None = None,
    about: Facts | None = None,
) -> dict[str, MethodResult]:
    """Run every method of the configuration and write the folder; go on where it was stopped.

    Where a race has chosen PAC-PFL's settings, `others` are those of the methods beside it. `about` is
    what run.json is to say besides.
    """
    watcher = watcher or Watcher()
    federation = build_federation(config)
    store = from_clients(federation.existing, roomy=federation.classes is not None)
    name = run_identity(config, store)
    folder, results = RunFolder(out), {}
    with locked(out):
        folder.prepare(config)
        started = datetime.now(UTC)
        often = config.run.checkpoint_rounds, config.run.checkpoint_minutes
        for method in config.run.methods:
            saving = Saving(folder.checkpoint(method), name, *often)
            own = config if method == "pacpfl" else others or config
            results[method] = run_method(method, own, federation, store, watcher, saving)
        folder.write(config, federation, results, started, about)
    return results


def run_method(
    name: str,
    config: Config,
    federation: Federation,
    store: ClientStore,
    watcher: Watcher,
    saving: Saving | None = None,
) -> MethodResult:
    """Train (where the method trains) and evaluate on existing and new clients."""
    form, found, began = federation.form, entry(name), time.monotonic()
    private = build_private(name, config, form)
    method: Method = private or build_method(name, config, form)
    title, matrices = found.title_for(form), found.memory(config, form).matrices
    about: Facts = {"title": title}
    history, extra, client_states = Arrays(), Arrays(), ()
    if found.in_rounds:
        watcher.stage(f"{title}: training")
        folder = None if saving is None else saving.path.parent
        secrecy: AbstractContextManager[Secrecy | None] = nullcontext()
        if private is not None:
            identity = configuration.identity(config)
            secrecy = keep_secret(private.plan, config.privacy.noise_seed, identity, folder)
        with secrecy as secret:
            trained = train(
                method,
                store,
                rounds=config.train.rounds,
                clients_per_round=config.train.clients_per_round,
                seed=config.seed,
                dtype=config.run.dtype,
                matrices_per_client=matrices,
                saving=saving,
                progress=watcher.progress,
                stop=watcher.stop,
                secrecy=secret,
            )
        if not trained.finished:
            raise Interrupted(f"stopped after round {trained.rounds} of {config.train.rounds}")
        state, client_states, history = trained.state, trained.client_states, trained.history
        described, extra = describe_training(name, private, trained, config, form, folder)
        about |= described
    else:
        state = method.init(jax.random.key(config.seed), first_client(store, config.run.dtype))
    watcher.stage(f"{title}: personalising and measuring")
    groups = evaluate(
        method,
        state,
        federation,
        client_states=client_states,
        seed=config.seed,
        dtype=config.run.dtype,
        matrices_per_client=max(1, matrices),
        clients_at_once=found.clients_at_once(config, federation, config.run.dtype),
        recalibration=config.run.recalibration if found.particles else "never",
        pooled=config.privacy.mode == "none",
    )
    if config.privacy.sealed:
        del groups["existing"]  # measured on their own data, without noise
    if watcher.stop():
        raise Interrupted("stopped between two methods")
    about["seconds"] = time.monotonic() - began
    return MethodResult(about, history, groups, extra)


def describe_training(
    name: str,
    private: Private | None,
    trained: simulate.Trained,
    config: Config,
    form: Form,
    folder: Path | None,
) -> tuple[Facts, Arrays]:
    """Return what run.json says about a training, and arrays for the page."""
    about: Facts = {
        "rounds": trained.rounds,
        "train_seconds": trained.seconds,
        "compile_seconds": trained.compile_seconds,
    }
    state, with_particles = trained.state, entry(name).particles
    if private is not None:
        runs = read_ledger(folder / FILE) if folder else []
        about["privacy"] = facts(
            private.plan, config.privacy, runs, trained.rounds, trained.out_of_budget
        )
        state = private.released(state)
    if with_particles is None:
        return about, {}
    method = with_particles(config, form)
    mean, pairwise = map(np.asarray, _differences(method)(state))
    value = float(mean)
    about |= {
        "particles": method.settings.particles,
        "components": method.prior.components,
        "dimension": method.prior.size,
        **temperatures(config, form),
        "aggregation": method.settings.aggregation,
        "svgd_kernel": method.settings.svgd_kernel,
        "mixture_weights": method.mixture_weights,
        "diversity": {
            "value": value,
            "at_start": float(trained.history["diversity"][0]),
            "collapsed": have_collapsed(method.settings.particles, value),
        },
        "skipped_steps": int(np.sum(state.skipped)),
    }
    return about, {"diversity/pairwise": pairwise}


def have_collapsed(particles: int, value: float) -> bool:
    """Tell whether particles of this diversity predict nearly the same."""
    return particles > 1 and value < COLLAPSED


@compiled_once
def _differences(method: PACPFL) -> Callable[[State], tuple[jax.Array, jax.Array]]:
    """Compile how far apart particles are, on average and each two of them, as one program."""

    def differences(state: State) -> tuple[jax.Array, jax.Array]:
        fingerprints = jax.vmap(method.fingerprint(state))(state.particles)
        return svgd.diversity(fingerprints), svgd.spread(fingerprints)

    return jax.jit(differences)


def run_identity(config: Config, store: ClientStore) -> str:
    """Name the configuration and the samples: a checkpoint serves only what it was made from.

    A private run's checkpoint does not name the samples: who knows all of them but one could try what
    the missing one is until the name fits.
    """
    if config.privacy.mode != "none":
        return configuration.identity(config)
    return configuration.identity(config, samples=digest(store))


def digest(store: ClientStore) -> str:
    """Name the training samples."""
    total = hashlib.sha256()
    for part in (store.x, store.y, store.offsets):
        for rows in row_blocks(len(part)):  # what lies on disk is never in memory as a whole
            total.update(np.ascontiguousarray(part[rows]).tobytes())
        release(part)
    return total.hexdigest()


@dataclass(frozen=True)
class Trained:
    """A finished run: what it was trained on, and what it learned."""

    config: Config
    record: Facts
    federation: Federation
    method: PACPFL
    state: State  # as training left it: networks are drawn from its seed
    spent: RunRecord | None = None  # of a private run: what its ledger says

    @property
    def particles(self) -> jax.Array:
        """Return the particles, [k, size]."""
        return self.state.particles

    @property
    def dtype(self) -> type:
        return self.config.run.dtype


def load_run(path: Path) -> Trained:
    """Return the federation, the method and the particles of a complete run.

    Raises
    ------
    InputError
        If the folder holds no run, or one that is not complete or trained no particles.
    """
    folder = RunFolder(path)
    config, record = folder.config(), folder.record()
    if record.get("status") != "complete":
        raise InputError(
            f"The run in {path} is not complete (status {record.get('status')!r}); {AGAIN}."
        )
    if "pacpfl" not in config.run.methods:
        raise InputError(f"The run in {path} trained no particles; give a run of pacpfl.")
    federation = build_federation(config)
    store = from_clients(federation.existing)
    method = build_pacpfl(config, federation.form)
    private = build_private("pacpfl", config, federation.form)
    template = (private or method).init(
        Keys.of(config.seed).start(), first_client(store, config.run.dtype)
    )
    name = run_identity(config, store)
    try:
        found = load_checkpoint(folder.checkpoint("pacpfl"), (template, ()), name)
    except InputError as error:
        raise InputError(f"The run in {path} has no particles: {error}") from error
    # A private run may have ended before its last round: run.json says so.
    last = record["methods"]["pacpfl"]["rounds"] if private else config.train.rounds
    if found is None or found.round < last:
        reached = "there is no checkpoint" if found is None else f"round {found.round}"
        raise InputError(f"The run in {path} is not complete ({reached}); {AGAIN}.")
    state = jax.device_put(found.state[0])
    if private is None:
        return Trained(config, record, federation, method, state)
    spent = read_ledger(folder.ledger, found.ledger)[-1]
    return Trained(config, record, federation, method, private.released(state), spent)
