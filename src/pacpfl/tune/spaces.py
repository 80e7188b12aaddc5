"""Search spaces: for each method the keys of the configuration, and what they may be.

The paper's: networks with the same number of neurons, 2 to 64, in each of 2 or 4 hidden layers; tau
above the limit of the server-level theorem; spread of the hyper-prior; learning rate. PAC-PFL may also
choose the shape of its prior and what is done with its particles, pFedGP with a mean and the Gaussian
processes without a federation the shape of theirs.

Ridge regression and the GP with one length scale per feature are not searched: they choose their
penalty and their scales themselves, from each client's training samples.

A file can take the place of these spaces, one table per method:

    [pacpfl]
    "prior.mean" = ["mlp", "linear"]                                   # one of these
    "prior.mean_widths" = { neurons = [16, 32, 64], layers = [2, 4] }  # layers of equal width
    "train.tau" = { low = 1e-3, high = 1.0, log = true }               # in between
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pacpfl.config import Config, override
from pacpfl.data.settings import CLASSIFICATION
from pacpfl.data.tables.read import load_own
from pacpfl.errors import InputError
from pacpfl.files import read_toml


class Choice(NamedTuple):
    """One of some values."""

    values: tuple[Any, ...]


class Range(NamedTuple):
    """A number in between; whole where both ends are."""

    low: float
    high: float
    log: bool = True


class Widths(NamedTuple):
    """Hidden layers that all have the same number of neurons."""

    neurons: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    layers: tuple[int, ...] = (2, 4)


Dimension = Choice | Range | Widths
Space = Mapping[str, Dimension]


MEANS = Choice(("mlp", "linear", "linear+mlp"))
SCALES = Choice(("fixed", "learned"))
LEARNING_RATE = Range(1e-3, 1e-1)
SHAPE: Space = {"prior.mean": MEANS, "prior.mean_widths": Widths(), "prior.kernel_widths": Widths()}
ALONE: Space = {
    "alone.learning_rate": LEARNING_RATE,
    "alone.hyper_std": Range(0.1, 2.0),
    "alone.steps": Range(50, 1000),
}
INDUCING: Space = {"alone.inducing": Choice((32, 64, 128, 256))}
LOCAL: Space = {
    "network.widths": Widths(),
    "local.learning_rate": Range(1e-3, 0.5),
    "local.steps": Range(1, 10),
    "local.optimizer": Choice(("sgd", "adam")),
}
SPACES: Mapping[str, Space] = {
    "pacpfl": {
        "prior.mean": MEANS,
        "prior.mean_widths": Widths(),
        "prior.kernel": Choice(("deep", "ard", "deep+ard", "deep+linear", "ard+linear")),
        "prior.kernel_widths": Widths(),
        "prior.output_scale": SCALES,
        "prior.noise_model": Choice(("constant", "linear", "mlp")),
        "prior.warp": Choice(("none", "sinh-arcsinh")),
        "prior.members": Choice((1, 2)),
        "train.tau": Range(1e-4, 10.0),
        "train.hyper_std": Range(0.1, 3.0),
        "train.learning_rate": LEARNING_RATE,
        "train.svgd_kernel": Choice(("rbf", "function")),
        "personal.weights": Choice(("uniform", "stacking")),
    },
    "pfedgp": {**SHAPE, "prior.output_scale": SCALES, "train.learning_rate": LEARNING_RATE},
    "mtl": {**LOCAL, "mtl.coupling": Range(1e-3, 10.0)},
    "maml": {
        "network.widths": Widths(),
        "maml.inner_learning_rate": Range(1e-3, 0.5),
        "maml.inner_steps": Range(1, 5),
        "maml.personal_steps": Range(1, 100),
        "train.learning_rate": LEARNING_RATE,
    },
    "fedavg": LOCAL,
    "vanilla": ALONE,
    "vanilla-deep": {**SHAPE, **ALONE},
    "pooled": {**ALONE, **INDUCING},
    "pooled-deep": {**SHAPE, **ALONE, **INDUCING},
    "ridge": {},
    "ard": {},
}

# The same for classes, where a particle is a Bayesian network.
CLASS_SPACES: Mapping[str, Space] = {
    "pacpfl": {
        "network.widths": Widths(layers=(1, 2)),
        "bnn.initial_std": Range(0.01, 0.3),
        "train.tau": Range(1e-2, 10.0),
        "train.hyper_std": Range(0.1, 3.0),
        "train.learning_rate": LEARNING_RATE,
        "posterior.steps": Range(5, 100),
        "posterior.temperature": Range(0.3, 3.0),
    },
    **{name: SPACES[name] for name in ("mtl", "maml", "fedavg")},
}

# A key that only matters where another one has a certain part.
NEEDS = {"prior.mean_widths": ("mean", "mlp"), "prior.kernel_widths": ("kernel", "deep")}


class Suggester(Protocol):
    """Proposes values, as a trial of Optuna does."""

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int: ...

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...


def has_classes(config: Config) -> bool:
    """Tell whether the target is a class; tables that do not say are looked at."""
    if config.data.name != "tables":
        return config.data.name in CLASSIFICATION
    if config.tables.task != "auto":
        return config.tables.task == "classes"
    return load_own(config.tables, config.seed).federation.classes is not None


def spaces_for(config: Config) -> Mapping[str, Space]:
    return CLASS_SPACES if has_classes(config) else SPACES


def suggest(trial: Suggester, method: str, space: Space, config: Config) -> Config:
    """Return the configuration with a proposed value for every key of the space that matters."""
    for key, dimension in space.items():
        if _matters(key, config):
            value = _suggest(trial, key, _within_limits(key, dimension, config))
            config = override(config, [f"{key}={json.dumps(value)}"])
    if method == "mtl":  # whose new clients train as long at home as the others have in all rounds
        steps = config.train.rounds * config.local.steps
        config = override(config, [f"mtl.personal_steps={steps}"])
    return config


def _matters(key: str, config: Config) -> bool:
    """Tell whether a key changes the model. A mean of zero is a decision, and stays."""
    if key == "prior.mean":
        return config.prior.mean != "zero"
    name, part = NEEDS.get(key, ("", ""))
    return not name or part in getattr(config.prior, name).split("+")


def _within_limits(key: str, dimension: Dimension, config: Config) -> Dimension:
    if key == "train.tau" and isinstance(dimension, Range):
        low = max(dimension.low, 1.01 * tau_limit(config))
        return dimension._replace(low=low, high=max(low, dimension.high))
    return dimension


def tau_limit(config: Config) -> float:
    """Return 1 / (1 + n beta), beta = t m_i: above it lambda > n_2 + upsilon (server bound)."""
    clients, samples = config.data.clients, float(config.data.samples)
    if config.data.name == "tables":  # whose sizes nobody has to write down
        existing = load_own(config.tables, config.seed).federation.existing
        clients = len(existing)
        samples = sum(len(client.train) for client in existing) / clients
    return 1.0 / (1.0 + clients * config.train.temperature * samples)


def _suggest(trial: Suggester, key: str, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(key, dimension.values)
    if isinstance(dimension, Widths):
        neurons = trial.suggest_categorical(f"{key}.neurons", dimension.neurons)
        return [neurons] * trial.suggest_categorical(f"{key}.layers", dimension.layers)
    low, high, log = dimension
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=log)
    # Three digits are enough, and what people read is what was measured.
    return float(f"{trial.suggest_float(key, low, high, log=log):.3g}")


def start(space: Space, config: Config) -> dict[str, Any]:
    """Return the proposal that changes nothing, as far as the space holds what the configuration says."""
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        section, name = key.split(".")
        now = getattr(getattr(config, section), name, None)
        limited = _within_limits(key, dimension, config)
        if now is None or not _matters(key, config):
            continue
        if isinstance(limited, Widths):
            if len(set(now)) == 1 and now[0] in limited.neurons and len(now) in limited.layers:
                values |= {f"{key}.neurons": now[0], f"{key}.layers": len(now)}
        elif isinstance(limited, Choice):
            values |= {key: now} if now in limited.values else {}
        elif limited.low <= now <= limited.high:
            values[key] = now
    return values


def read_spaces(path: Path, others: Mapping[str, Space] = SPACES) -> dict[str, Space]:
    """Read spaces from a file; methods that it does not name keep theirs."""
    spaces = dict(others)
    for method, table in read_toml(path, "give a file of search spaces").items():
        if method not in SPACES or not isinstance(table, dict):
            raise InputError(f"{path}: {method!r} is no method; name {', '.join(SPACES)}.")
        spaces[method] = {key: _dimension(path, key, value) for key, value in table.items()}
    return spaces


def _dimension(path: Path, key: str, value: Any) -> Dimension:
    wrong = InputError(
        f"{path}: {key} must be a list of values, {{ neurons, layers }} or {{ low, high }}, "
        f"not {value!r}."
    )
    if key.count(".") != 1:
        raise InputError(f"{path}: {key} needs its section before it, as in train.tau.")
    if isinstance(value, list) and value:
        kind: Dimension = Choice(tuple(value))
        examples: list[Any] = value
    elif isinstance(value, dict) and set(value) == {"neurons", "layers"}:
        if not all(isinstance(part, list) and part for part in value.values()):
            raise wrong
        kind = Widths(tuple(value["neurons"]), tuple(value["layers"]))
        examples = [[n] * k for n in kind.neurons for k in kind.layers]
    elif isinstance(value, dict) and {"low", "high"} <= set(value) <= {"low", "high", "log"}:
        kind = Range(value["low"], value["high"], value.get("log", True))
        if not kind.low <= kind.high or (kind.log and kind.low <= 0):
            raise wrong
        examples = [kind.low, kind.high]
    else:
        raise wrong
    for example in examples:  # a key that does not exist, or a value it cannot have, is named here
        override(Config(), [f"{key}={json.dumps(example)}"])
    return kind
