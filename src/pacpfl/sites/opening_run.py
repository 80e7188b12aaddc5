"""A configuration as the two sides of a run across sites need it: the server's, and a site's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.data.site_folder import is_site_folder, read_site_folder
from pacpfl.data.standardize import standardize
from pacpfl.data.tables.read import load_own
from pacpfl.engine.training import Secrecy
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.sites.opened import Opened
from pacpfl.studies.build import METHODS, build_method
from pacpfl.studies.protect import plan_of, protect, secrecy
from pacpfl.types import Federation, Form


def open_config(text: str, method: str) -> Opened:
    """What the text of a configuration and a method's name stand for."""
    return opened(configuration.load(text, "the run's configuration"), method)


def opened(config: Config, method: str) -> Opened:
    if method not in METHODS or not METHODS[method].rounds:
        able = ", ".join(name for name, entry in METHODS.items() if entry.rounds)
        raise InputError(f"{method} does not learn in rounds; across sites there are {able}.")
    if config.data.standardize == "global":
        raise InputError(
            'standardize = "global" needs everybody\'s samples in one place; across sites choose '
            "client or none."
        )
    private = method == "pacpfl" and config.privacy.mode != "none"

    def build(form: Form) -> Method:
        made = build_method(method, config, form)
        plan = plan_of(config, form.clients) if private else None
        if plan is not None and isinstance(made, PACPFL):
            return protect(made, plan, config)
        return made

    @contextmanager
    def secret(clients: int, folder: Path) -> Iterator[Secrecy | None]:
        plan = plan_of(config, clients) if private else None
        if plan is None:
            yield None
            return
        with secrecy(plan, config, folder) as held:
            yield held

    return Opened(
        method,
        config.seed,
        np.float64 if config.run.precision == "float64" else np.float32,
        config.train.rounds,
        config.train.clients_per_round,
        config.privacy.mode if private else "none",
        config.privacy.clip if private else None,
        configuration.identity(config, engine="sites", method=method),
        build,
        secret,
        private and config.privacy.clip_quantile is not None,
    )


def site_federation(config: Config, data: Path) -> Federation:
    """The site's own clients, read from its own files, in the units of its own scalers."""
    if data.is_dir() and is_site_folder(data):
        return standardize(read_site_folder(data), config.data.standardize)
    if config.data.name == "tables":
        tables = replace(config.tables, source=str(data))
        return standardize(load_own(tables, config.seed).federation, config.data.standardize)
    if not data.exists():
        raise InputError(f"There are no data at {data}; correct the path in site.toml.")
    raise InputError(
        f"{data} holds neither .npz files nor a client store, and the run does not say how to read "
        'tables; put such files there, or train with data.name = "tables".'
    )
