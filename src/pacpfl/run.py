"""One run: train, personalise, measure, and leave a folder behind (docs/run-folder.md)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pacpfl import config as configuration
from pacpfl import svgd
from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_clients, release, row_blocks
from pacpfl.engine.evaluate import evaluate
from pacpfl.engine.rounds import first_client
from pacpfl.engine.runtime import compiled_once
from pacpfl.engine.simulate import Progress, Trained, train
from pacpfl.engine.training import Saving, Secrecy, keep_secret
from pacpfl.folder import MethodResult, RunFolder
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.registry import build_method, entry, temperatures
from pacpfl.methods.transforms import Private, protect
from pacpfl.privacy.ledger import FILE, facts, read_ledger
from pacpfl.types import Federation

COLLAPSED = 0.02  # predictions this close, in units of the (standardised) target, count as equal


class Interrupted(Exception):
    """The run was asked to stop; what it had reached is saved."""


@dataclass
class Watcher:
    """Callbacks of a run; by default silent."""

    stage: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] = lambda: False


def run(config: Config, out: Path, watcher: Watcher | None = None) -> dict[str, MethodResult]:
    """Run every method of the configuration and write the folder; go on where it was stopped."""
    watcher = watcher or Watcher()
    federation = build_federation(config)
    store = from_clients(federation.existing, roomy=federation.classes is not None)
    name = run_identity(config, store)
    folder = RunFolder(out)
    folder.prepare(config)
    started = datetime.now(UTC)
    results = {}
    for method in config.run.methods:
        saving = Saving(
            folder.checkpoint(method),
            name,
            config.run.checkpoint_rounds,
            config.run.checkpoint_minutes,
        )
        results[method] = run_method(method, config, federation, store, watcher, saving)
    folder.write(config, federation, results, started)
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
    method: Method = build_method(name, config, federation.form)
    plan = None
    if isinstance(method, PACPFL):
        rounds, most = config.train.rounds, config.train.clients_per_round
        plan = config.privacy.plan(rounds, store.clients, most)
        if plan is not None:
            method = protect(method, plan, config.privacy, rounds)
    folder = saving.path.parent if saving is not None else None
    dtype = np.float64 if config.run.precision == "float64" else np.float32
    began = time.monotonic()
    form, found = federation.form, entry(name)
    title = found.title_for(form)
    held = found.memory(config, form)
    about: dict[str, Any] = {"title": title}
    trained = None
    extra: dict[str, np.ndarray] = {}
    if found.in_rounds:
        watcher.stage(f"{title}: training")
        secrecy: AbstractContextManager[Secrecy | None] = nullcontext()
        if plan is not None:
            identity = configuration.identity(config)
            secrecy = keep_secret(plan, config.privacy.noise_seed, identity, folder)
        with secrecy as secret:
            trained = train(
                method,
                store,
                rounds=config.train.rounds,
                clients_per_round=config.train.clients_per_round,
                seed=config.seed,
                dtype=dtype,
                matrices_per_client=held.matrices,
                saving=saving,
                progress=watcher.progress,
                stop=watcher.stop,
                secrecy=secret,
            )
        if not trained.finished:
            raise Interrupted(f"stopped after round {trained.rounds} of {config.train.rounds}")
        described, extra = describe_training(method, trained, config, federation, folder)
        about |= described
    watcher.stage(f"{title}: personalising and measuring")
    if trained:
        state = trained.state
    else:
        state = method.init(jax.random.key(config.seed), first_client(store, dtype))
    groups = evaluate(
        method,
        state,
        federation,
        client_states=trained.client_states if trained else (),
        seed=config.seed,
        dtype=dtype,
        matrices_per_client=max(1, held.matrices),
        clients_at_once=found.clients_at_once(config, federation, dtype),
    )
    if config.privacy.mode != "none" and config.privacy.strict:
        del groups["existing"]  # measured on their own data, without noise
    if watcher.stop():
        raise Interrupted("stopped between two methods")
    about["seconds"] = time.monotonic() - began
    return MethodResult(about, trained.history if trained else {}, groups, extra)


def describe_training(
    method: Method, trained: Trained, config: Config, federation: Federation, folder: Path | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what run.json says about any training, and arrays for the page."""
    about: dict[str, Any] = {
        "rounds": trained.rounds,
        "train_seconds": trained.seconds,
        "compile_seconds": trained.compile_seconds,
    }
    if isinstance(method, Private):
        runs = read_ledger(folder / FILE) if folder else []
        about["privacy"] = facts(
            method.plan, config.privacy, runs, trained.rounds, trained.out_of_budget
        )
        trained, method = trained._replace(state=method.released(trained.state)), method.method
    if not isinstance(method, PACPFL):
        return about, {}
    described, extra = describe(method, trained, config, federation)
    return about | described, extra


def describe(
    method: PACPFL, trained: Trained, config: Config, federation: Federation
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what run.json says about a PAC-PFL training, and how far its particles are apart."""
    state = trained.state
    mean, pairwise = map(np.asarray, _differences(method)(state))
    value = float(mean)
    at_start = float(trained.history["diversity"][0])
    return {
        "particles": method.settings.particles,
        "components": method.prior.components,
        "dimension": method.prior.size,
        **temperatures(config, federation.form),
        "aggregation": method.settings.aggregation,
        "svgd_kernel": method.settings.svgd_kernel,
        "mixture_weights": method.mixture_weights,
        "diversity": {
            "value": value,
            "at_start": at_start,
            "collapsed": have_collapsed(method.settings.particles, value),
        },
        "skipped_steps": int(np.sum(state.skipped)),
    }, {"diversity/pairwise": pairwise}


def have_collapsed(particles: int, value: float) -> bool:
    """Tell whether particles of this diversity predict nearly the same."""
    return particles > 1 and value < COLLAPSED


@compiled_once
def _differences(method: PACPFL) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Compile how far apart particles are, on average and each two of them, as one program."""

    def differences(state: Any) -> tuple[jax.Array, jax.Array]:
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
    """Name the training samples: a checkpoint serves only the data it was made from."""
    total = hashlib.sha256()
    for part in (store.x, store.y, store.offsets):
        for rows in row_blocks(len(part)):  # what lies on disk is never in memory as a whole
            total.update(np.ascontiguousarray(part[rows]).tobytes())
        release(part)
    return total.hexdigest()
