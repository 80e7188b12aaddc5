"""From an estimator's parameters to the configuration of a run.

The parameters bear the names of the configuration's keys, and the configuration checks them: a value
that cannot be used is named with what can. What "auto" stands for is `pacpfl.defaults`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.defaults import defaults
from pacpfl.estimators.errors import InvalidInput, as_invalid_input
from pacpfl.types import Form

# The section of every parameter that is a key of the configuration.
SECTIONS = {
    **dict.fromkeys(("rounds", "particles", "tau", "hyper_std", "learning_rate"), "train"),
    **dict.fromkeys(("batch", "clients_per_round"), "train"),
    **dict.fromkeys(("mean", "mean_widths", "kernel", "kernel_widths", "members"), "prior"),
    **dict.fromkeys(("noise", "noise_model", "warp"), "prior"),
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


def make_config(
    name: str, parameters: Mapping[str, Any], form: Form, standardize: str, seed: int
) -> Config:
    """Return the configuration that the parameters describe, where they say "auto" that of `defaults`.

    rounds = 0, no training at all, is the estimators' own: the configuration of a run has none.
    `settings` reaches the keys that are no parameters: {"train.svgd_kernel": "function"}.
    `name` stands before what is wrong.
    """
    config = replace(defaults(form, standardize), seed=seed)
    config = replace(config, tables=replace(config.tables, most=0))
    lines = []
    for key, section in SECTIONS.items():
        value = parameters.get(key, "auto")
        if (isinstance(value, str) and value == "auto") or (
            key == "rounds" and type(value) is int and value == 0
        ):
            continue
        if value is None:
            config = replace(config, **{section: replace(getattr(config, section), **{key: None})})
        else:
            lines.append(f"{section}.{key} = {_toml(name, key, value)}")
    for key, value in (parameters.get("settings") or {}).items():
        section, _, inner = str(key).partition(".")
        if section not in REACHED or not inner:
            raise InvalidInput(
                f"{name}: settings has keys of the sections {', '.join(REACHED)}, such as train.batch, "
                f"and cannot use {key!r}; for the others use pacpfl run."
            )
        lines.append(f"{section}.{json.dumps(inner)} = {_toml(name, inner, value)}")
    with as_invalid_input():
        config = configuration.load("\n".join(lines), name, config)
    if (config.train.clients_per_round or 0) > form.clients:
        raise InvalidInput(
            f"{name}: clients_per_round = {config.train.clients_per_round} is more than the "
            f"{form.clients} clients there are."
        )
    return config


def parameters_of(kind: type, config: Config) -> dict[str, Any]:
    """Return the parameters of an estimator that a configuration describes."""
    known = inspect.signature(kind).parameters
    values = {
        key: getattr(getattr(config, section), key)
        for key, section in SECTIONS.items()
        if key in known
    }
    usual = Config()
    others = {
        f"{section}.{part.name.rstrip('_')}": getattr(getattr(config, section), part.name)
        for section in REACHED
        for part in fields(getattr(config, section))
        if part.name not in values
        and getattr(getattr(config, section), part.name)
        != getattr(getattr(usual, section), part.name)
    }
    return values | {
        "standardize": config.data.standardize,
        "random_state": config.seed,
        "settings": others or None,
    }


def check_choice(name: str, parameter: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise InvalidInput unless the value is one of those allowed."""
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
