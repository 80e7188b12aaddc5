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

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pacpfl.config import Config, flat, updated
from pacpfl.data.settings import CLASSIFICATION
from pacpfl.data.tables.read import load_own
from pacpfl.errors import InputError
from pacpfl.files import read_toml


class Choice(NamedTuple):
    """One of some values."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, key: str) -> Any:
        return trial.suggest_categorical(key, self.values)

    def proposal(self, key: str, value: Any) -> dict[str, Any]:
        """Return what a trial that suggests this value holds; nothing where it cannot."""
        return {key: value} if value in self.values else {}

    @property
    def examples(self) -> list[Any]:
        """Return values that the key must be able to have."""
        return list(self.values)


class Range(NamedTuple):
    """A number in between; whole where both ends are."""

    low: float
    high: float
    log: bool = True

    def suggest(self, trial: Any, key: str) -> float:
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(key, self.low, self.high, log=self.log)
        # Three digits are enough, and what people read is what was measured.
        return float(f"{trial.suggest_float(key, self.low, self.high, log=self.log):.3g}")

    def proposal(self, key: str, value: float) -> dict[str, Any]:
        return {key: value} if self.low <= value <= self.high else {}

    @property
    def examples(self) -> list[Any]:
        return [self.low, self.high]


class Widths(NamedTuple):
    """Hidden layers that all have the same number of neurons."""

    neurons: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    layers: tuple[int, ...] = (2, 4)

    def suggest(self, trial: Any, key: str) -> list[int]:
        neurons = trial.suggest_categorical(f"{key}.neurons", self.neurons)
        return [neurons] * trial.suggest_categorical(f"{key}.layers", self.layers)

    def proposal(self, key: str, value: tuple[int, ...]) -> dict[str, Any]:
        known = list(value) in self.examples
        return {f"{key}.neurons": value[0], f"{key}.layers": len(value)} if known else {}

    @property
    def examples(self) -> list[Any]:
        return [[width] * depth for width in self.neurons for depth in self.layers]


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


def has_classes(config: Config) -> bool:
    """Tell whether the target is a class; tables that do not say are looked at."""
    if config.data.name != "tables":
        return config.data.name in CLASSIFICATION
    if config.tables.task != "auto":
        return config.tables.task == "classes"
    return load_own(config.tables, config.seed).federation.classes is not None


def spaces_for(config: Config) -> Mapping[str, Space]:
    return CLASS_SPACES if has_classes(config) else SPACES


def suggest(trial: Any, method: str, space: Space, config: Config) -> Config:
    """Return the configuration with a proposed value for every key of the space that matters.

    The trial is one of Optuna's, or whatever else proposes values as it does.
    """
    for key, dimension in space.items():
        if able := _limited(key, dimension, config):
            config = updated(config, {key: able.suggest(trial, key)}, "a proposal")
    if method == "mtl":  # whose new clients train as long at home as the others have in all rounds
        steps = config.train.rounds * config.local.steps
        config = updated(config, {"mtl.personal_steps": steps}, "a proposal")
    return config


def start(space: Space, config: Config) -> dict[str, Any]:
    """Return the proposal that changes nothing, as far as the space holds what the configuration says."""
    now, values = flat(config), dict[str, Any]()
    for key, dimension in space.items():
        if (able := _limited(key, dimension, config)) and now.get(key) is not None:
            values |= able.proposal(key, now[key])
    return values


def _limited(key: str, dimension: Dimension, config: Config) -> Dimension | None:
    """Return what a key may be, if it changes the model; a mean of zero is a decision, and stays."""
    name, part = NEEDS.get(key, ("", ""))
    idle = name and part not in getattr(config.prior, name).split("+")
    if idle or (key == "prior.mean" and config.prior.mean == "zero"):
        return None
    if key == "train.tau" and isinstance(dimension, Range):
        low = max(dimension.low, 1.01 * tau_limit(config))
        dimension = dimension._replace(low=low, high=max(low, dimension.high))
    return dimension


def tau_limit(config: Config) -> float:
    """Return 1 / (1 + n beta), beta = t m_i: above it lambda > n_2 + upsilon (server bound)."""
    clients, samples = config.data.clients, float(config.data.samples)
    if config.data.name == "tables":  # whose sizes nobody has to write down
        existing = load_own(config.tables, config.seed).federation.existing
        clients = len(existing)
        samples = sum(len(client.train) for client in existing) / clients
    return 1.0 / (1.0 + clients * config.train.temperature * samples)


def read_spaces(path: Path, others: Mapping[str, Space] = SPACES) -> dict[str, Space]:
    """Read spaces from a file; methods that it does not name keep theirs."""
    spaces = dict(others)
    for method, table in read_toml(path, "give a file of search spaces").items():
        if method not in SPACES or not isinstance(table, dict):
            raise InputError(f"{path}: {method!r} is no method; name {', '.join(SPACES)}.")
        spaces[method] = {key: _dimension(path, key, value) for key, value in table.items()}
    return spaces


def _dimension(path: Path, key: str, value: Any) -> Dimension:
    if key.count(".") != 1:
        raise InputError(f"{path}: {key} needs its section before it, as in train.tau.")
    match value:
        case [_, *_]:
            found: Dimension = Choice(tuple(value))
        case {"neurons": [_, *_] as neurons, "layers": [_, *_] as layers, **rest} if not rest:
            found = Widths(tuple(neurons), tuple(layers))
        case {"low": low, "high": high, **rest} if (
            rest.keys() <= {"log"} and low <= high and (low > 0 or rest.get("log") is False)
        ):
            found = Range(low, high, bool(rest.get("log", True)))
        case _:
            raise InputError(
                f"{path}: {key} must be a list of values, {{ neurons, layers }} or {{ low, high }}, "
                f"not {value!r}."
            )
    for example in found.examples:  # a key that does not exist, or a value it cannot have
        updated(Config(), {key: example}, str(path))
    return found
