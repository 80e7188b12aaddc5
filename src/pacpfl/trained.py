"""A finished run in memory: federation, method and particles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.store import from_clients
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client, to_device
from pacpfl.engine.training import load_checkpoint
from pacpfl.errors import InputError
from pacpfl.folder import AGAIN, RunFolder
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.registry import build_method
from pacpfl.methods.transforms import protect
from pacpfl.privacy.ledger import RunRecord, read_ledger
from pacpfl.run import run_identity
from pacpfl.types import Federation


@dataclass(frozen=True)
class Trained:
    """A finished run: what it was trained on, and what it learned."""

    config: Config
    record: dict[str, Any]
    federation: Federation
    method: PACPFL
    particles: jax.Array  # [k, size]
    dtype: type
    state: Any = None  # of the method, as training left it: networks are drawn from its seed
    spent: RunRecord | None = None  # of a private run: what its ledger says


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
    method = build_method("pacpfl", config, federation.form)
    assert isinstance(method, PACPFL)
    store = from_clients(federation.existing)
    dtype = np.float64 if config.run.precision == "float64" else np.float32
    example = first_client(store, dtype)
    train = config.train
    plan = config.privacy.plan(train.rounds, store.clients, train.clients_per_round)
    private = None if plan is None else protect(method, plan, config.privacy, train.rounds)
    made = method if private is None else private
    template = made.init(Keys.of(config.seed).start(), example)
    name = run_identity(config, store)
    try:
        found = load_checkpoint(folder.checkpoint("pacpfl"), (template, ()), name)
    except InputError as error:
        raise InputError(f"The run in {path} has no particles: {error}") from error
    # A private run may have ended before its last round: run.json says so.
    last = train.rounds if plan is None else record["methods"]["pacpfl"]["rounds"]
    if found is None or found.round < last:
        reached = "there is no checkpoint" if found is None else f"round {found.round}"
        raise InputError(f"The run in {path} is not complete ({reached}); {AGAIN}.")
    state = to_device(found.state[0])
    spent = None
    if private is not None:
        state = private.released(state)
        spent = read_ledger(folder.ledger, found.ledger)[-1]
    return Trained(config, record, federation, method, state.particles, dtype, state, spent)
