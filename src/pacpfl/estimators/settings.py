"""From an estimator's parameters to the configuration of a run, and what "auto" stands for.

The parameters bear the names of the configuration's keys, and the configuration checks them: a value
that cannot be used is named with what can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.estimators.errors import InvalidInput, as_invalid_input
from pacpfl.studies.own_sizes import mean_for, tau_for

# The section of every parameter that is a key of the configuration.
SECTIONS = {
    **dict.fromkeys(("rounds", "particles", "tau", "hyper_std", "learning_rate"), "train"),
    **dict.fromkeys(("batch", "clients_per_round"), "train"),
    **dict.fromkeys(("mean", "mean_widths", "kernel", "kernel_widths", "members"), "prior"),
    **dict.fromkeys(("noise", "noise_spread", "noise_model", "warp", "output_scale"), "prior"),
    "widths": "network",
    "initial_std": "bnn",
    "networks": "posterior",
    "weights": "personal",
    "precision": "run",
}
# What a section outside these asks for, such as privacy, an estimator does not do.
REACHED = ("train", "prior", "network", "bnn", "posterior", "personal")
STANDARDIZE = ("auto", "client", "global", "none")
UNSEEN = ("error", "prior")
MANY_CLIENTS = 10
ENOUGH_ROWS = 30
LARGEST_BATCH = 256  # rows of a client in one round, where it has more
LARGEST_FACTOR = 8 * 2**30  # bytes of a client's factors: beyond, exact inference is no option


class Size(NamedTuple):
    """What a default may depend on."""

    clients: int
    rows: int  # of all clients
    longest: int  # rows of the largest client
    features: int

    @property
    def samples(self) -> float:
        """Rows of a client, on average."""
        return self.rows / self.clients


def regression_defaults(size: Size) -> dict[str, Any]:
    """What "auto" means for Gaussian processes.

    Networks in the prior learn from clients, not from rows: with one client they over-fit (diabetes
    data: R^2 0.39 against 0.47 of the plain kernel). With many clients and several features these are
    the settings of `pacpfl init`; a deep kernel would be worse there than ridge regression (0.42
    against 0.26 in RSMSE on 30 simulated clients with 5 features, and 0.22 with `ard+linear`).
    """
    batch = {"batch": LARGEST_BATCH if size.longest > LARGEST_BATCH else None}
    widths = {"mean_widths": (32, 32), "kernel_widths": (32, 32)}
    if size.clients < MANY_CLIENTS:
        return batch | widths | _FEW_CLIENTS
    if size.features == 1:
        return batch | widths | _ONE_FEATURE
    found = {"mean": mean_for(size.rows, size.features), "tau": tau_for(size.rows)}
    return batch | widths | _SEVERAL_FEATURES | found


_FEW_CLIENTS = {
    **{"mean": "linear", "kernel": "ard+linear", "output_scale": "learned"},
    **{"tau": 1.0, "hyper_std": 0.5, "noise_spread": 0.4, "rounds": 200, "learning_rate": 0.03},
}
_ONE_FEATURE = {  # with networks a wide hyper-prior lets the noise collapse
    **{"mean": "linear+mlp", "kernel": "deep", "output_scale": "fixed"},
    **{"tau": 1.0, "hyper_std": 0.5, "noise_spread": 0.1, "rounds": 500, "learning_rate": 0.02},
}
_SEVERAL_FEATURES = {
    **{"kernel": "ard+linear", "output_scale": "learned"},
    **{"hyper_std": 0.3, "noise_spread": 0.5, "rounds": 500, "learning_rate": 0.01},
}


def classification_defaults(size: Size) -> dict[str, Any]:
    """What "auto" means for Bayesian networks."""
    width = 32 if size.features < 32 else 64
    return {
        "widths": (width, width),
        "rounds": 600,
        "learning_rate": 0.01,
        "batch": LARGEST_BATCH if size.longest > LARGEST_BATCH else None,
    }


def standardize_default(size: Size) -> str:
    """A client's own statistics, unless it has so few rows that they say little."""
    return "client" if size.samples >= ENOUGH_ROWS else "global"


def make_config(
    name: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any], clients: int
) -> Config:
    """The configuration that the parameters describe; `name` stands before what is wrong with them.

    rounds = 0, no training at all, is the estimators' own: the configuration of a run has none.
    `settings` reaches the keys that are no parameters: {"train.svgd_kernel": "function"}.
    """
    tables: dict[str, dict[str, Any]] = {"data": {"clients": clients}}
    for key, section in SECTIONS.items():
        value = parameters.get(key)
        if key not in parameters or (isinstance(value, str) and value == "auto"):
            value = defaults.get(key)
        untrained = key == "rounds" and type(value) is int and value == 0
        if value is not None and not untrained:
            tables.setdefault(section, {})[key] = value
    for key, value in (parameters.get("settings") or {}).items():
        section, _, inner = str(key).partition(".")
        if section not in REACHED or not inner:
            raise InvalidInput(
                f"{name}: settings has keys of the sections {', '.join(REACHED)}, such as train.batch, "
                f"and cannot use {key!r}; for the others use pacpfl run."
            )
        tables.setdefault(section, {})[inner] = value
    lines = []
    for section, table in tables.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(name, key, value)}" for key, value in table.items()]
    with as_invalid_input():
        return configuration.load("\n".join(lines), name)


def check_choice(name: str, parameter: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(
            f"{name}: {parameter} = {value!r} is not one of {', '.join(allowed)}; choose one of them."
        )


def seed_from(name: str, random_state: Any) -> int:
    """A whole number is the seed itself; anything else that scikit-learn accepts draws one."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        if not 0 <= random_state < 2**32:
            raise InvalidInput(f"{name}: random_state must be from 0 to 2**32 - 1.")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _toml(name: str, key: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list, np.ndarray)):
        return "[" + ", ".join(_toml(name, key, item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return json.dumps(value)
    raise InvalidInput(f"{name}: {key} must be a number, text, or a list of them, not {value!r}.")
