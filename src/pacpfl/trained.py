"""What a finished run left behind, read back: federation, method and particles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.data.store import from_clients
from pacpfl.engine.checkpoint import load_checkpoint
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client, to_device
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.privacy.ledger import FILE as LEDGER
from pacpfl.privacy.ledger import RunRecord, read_ledger
from pacpfl.run import run_identity
from pacpfl.studies.build import build_federation, build_method
from pacpfl.studies.protect import plan_of, protect
from pacpfl.types import Federation


@dataclass(frozen=True)
class Trained:
    """What a finished run left behind, in memory."""

    config: Config
    record: dict[str, Any]
    federation: Federation
    method: PACPFL
    particles: jax.Array  # [k, size]
    dtype: type
    state: Any = None  # of the method, as training left it: networks are drawn from its seed
    spent: RunRecord | None = None  # of a private run: what its ledger says


def load_run(folder: Path) -> Trained:
    """Federation, method and particles of a complete run."""
    if not folder.is_dir():
        raise InputError(f"There is no run folder {folder}; give the folder a run has written.")
    if not (folder / "config.toml").is_file():
        raise InputError(f"{folder} holds no config.toml, so it is no run folder; give one.")
    config = configuration.load_file(folder / "config.toml")
    again = "start the same run again, it goes on where it stopped"
    if not (folder / "run.json").is_file():
        raise InputError(f"The run in {folder} is not complete (no run.json); {again}.")
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        status = record["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'run.json'} cannot be read ({error}); {again}.") from error
    if status != "complete":
        raise InputError(f"The run in {folder} is not complete (status {status!r}); {again}.")
    if "pacpfl" not in config.run.methods:
        raise InputError(f"The run in {folder} trained no particles: certify a run of pacpfl.")
    federation = build_federation(config)
    method = build_method("pacpfl", config, federation.form)
    assert isinstance(method, PACPFL)
    if federation.classes is None:
        base_of(method.prior)
    store = from_clients(federation.existing)
    dtype = np.float64 if config.run.precision == "float64" else np.float32
    example = first_client(store, dtype)
    plan = plan_of(config, store.clients)
    private = None if plan is None else protect(method, plan, config)
    made = method if private is None else private
    template = made.init(Keys.of(config.seed).start(), example)
    name = run_identity(config, store)
    try:
        found = load_checkpoint(folder / "checkpoint.safetensors", (template, ()), name)
    except InputError as error:
        raise InputError(f"The run in {folder} has no particles to certify: {error}") from error
    # A private run may have ended before its last round: run.json says so.
    last = config.train.rounds if plan is None else record["methods"]["pacpfl"]["rounds"]
    if found is None or found.round < last:
        reached = "there is no checkpoint" if found is None else f"round {found.round}"
        raise InputError(f"The run in {folder} is not complete ({reached}); {again}.")
    state = to_device(found.state[0])
    spent = None
    if private is not None:
        state = private.released(state)
        spent = read_ledger(folder / LEDGER, found.ledger)[-1]
    return Trained(config, record, federation, method, state.particles, dtype, state, spent)


def base_of(prior: Prior) -> GPPrior:
    """The Gaussian-process family behind a prior; others have no closed form."""
    if prior.gaussian is None:
        raise InputError(
            f"There are no certificates for this {type(prior).__name__}; certify a run with plain "
            'Gaussian processes (prior.warp = "none") or Bayesian networks.'
        )
    return prior.gaussian
