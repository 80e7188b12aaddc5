"""One client's model: made from what a run has learned, used and extended in the client's own units.

`Shared` is what a run on tables gives to everybody (its particles; no client's rows). `ClientModel` is
one client's: the particles, its rows, and the factors of its posteriors, so that it predicts at
once and takes in more rows without starting over. `model_file` writes both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from pacpfl import metrics, predictive
from pacpfl.config import Config
from pacpfl.data.standardize import Scaler, fit_scaler
from pacpfl.data.store import round_up
from pacpfl.data.tables.columns import Schema
from pacpfl.engine.evaluate import measure, measure_classes
from pacpfl.errors import InputError
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.studies.build import build_prior
from pacpfl.types import Client, Data, Mixture, Probabilities, Samples

BLOCKS = (2048, 512, 128)  # rows predicted at once: few sizes, so that few programs are compiled
ENTRIES = 1 << 25  # of the matrix between training rows and those, over all particles


@dataclass(frozen=True)
class Shared:
    """What a run has learned for all clients, also for those who come later."""

    config: Config
    schema: Schema
    scaler: Scaler | None  # of all clients together; None: each client is scaled by its own rows
    particles: np.ndarray  # [k, size]
    seed: np.ndarray | None = None  # of the draws all clients share, where posteriors are drawn


@dataclass(frozen=True)
class ClientModel:
    client: str
    config: Config
    schema: Schema
    scaler: Scaler
    personal: PersonalModel

    @property
    def rows(self) -> int:
        """How many rows the model has learned from."""
        with precision(self.config):
            return int(np.asarray(self.data.mask).sum())

    @property
    def data(self) -> Data:
        return first_data(self.personal.posteriors)


class Predicted(NamedTuple):
    """Regression, in the target's own units."""

    mean: np.ndarray  # [t]
    std: np.ndarray  # [t]
    quantiles: np.ndarray  # [levels, t]


@contextmanager
def precision(config: Config) -> Iterator[None]:
    """Double precision where the configuration asks for it, whatever the caller works in."""
    with jax.enable_x64(config.run.precision == "float64"):
        yield


def dtype_of(config: Config) -> type:
    return np.float64 if config.run.precision == "float64" else np.float32


def personalize(shared: Shared, client: str, x: np.ndarray, y: np.ndarray) -> ClientModel:
    """The model of a client from its rows (encoded by the schema, in the owner's units)."""
    samples = check_rows(shared.schema, x, y)
    unscaled = np.isin(np.array(shared.schema.features, dtype=object), shared.schema.unscaled)
    scaler = shared.scaler or fit_scaler(samples, unscaled, shared.schema.classes is not None)
    prior = build_prior(shared.config, shared.schema.form)
    with precision(shared.config):
        data = to_data(scaler(samples), dtype_of(shared.config))
        particles = jax.device_put(shared.particles)
        model = condition(
            prior,
            shared.config.personal.weights,
            particles,
            data,
            shared.config.train.temperature,
            draw_key(shared, client, prior),
        )
    model = ClientModel(client, shared.config, shared.schema, scaler, model)
    if (
        not np.isfinite(np.asarray(model.personal.weights)).all()
        or not np.asarray(model.personal.weights).any()
    ):
        raise InputError(
            f"No particle explains the {len(samples)} rows of {client!r} in finite numbers; check their "
            "units against those of the training rows."
        )
    return model


def draw_key(shared: Shared, client: str, prior: Prior) -> jax.Array | None:
    """As in training: the draws that all clients share, or the client's own."""
    if not prior.draws:
        return None
    if prior.draws == "shared" and shared.seed is not None:
        return jax.random.wrap_key_data(jax.device_put(shared.seed))
    own = jax.random.fold_in(jax.random.key(shared.config.seed), zlib.crc32(client.encode()))
    return jax.random.fold_in(own, 1)


@partial(jax.jit, static_argnames=("prior", "rule"))
def condition(
    prior: Prior,
    rule: str,
    particles: jax.Array,
    data: Data,
    temperature: float,
    key: jax.Array | None,
) -> PersonalModel:
    return personal_model(prior, particles, data, rule, temperature, key)


def update(model: ClientModel, x: np.ndarray, y: np.ndarray) -> ClientModel:
    """The model with more rows. Gaussian processes end exactly where a new start would; networks go on
    from where their inference stood. Units stay those of the first rows."""
    samples = check_rows(model.schema, x, y)
    with precision(model.config):
        more = to_data(model.scaler(samples), dtype_of(model.config))
        return replace(model, personal=_extended(model.personal, more))


@jax.jit
def _extended(model: PersonalModel, more: Data) -> PersonalModel:
    return model.extend(more)


def predict(model: ClientModel, x: np.ndarray, levels: Sequence[float] = ()) -> Predicted:
    """Mean, standard deviation and quantiles of a number, noise included."""
    if model.schema.classes is not None:
        raise InputError(f"The target of {model.client!r} is a class; ask for its probabilities.")
    scaler = model.scaler
    with precision(model.config):
        asked: np.ndarray = np.array(levels, dtype_of(model.config))
        parts = list(_in_blocks(model, x, lambda rows: _summary(model.personal, rows, asked)))
    mean, std, quantiles = (
        np.concatenate(part, axis=-1).astype(float) for part in zip(*parts, strict=True)
    )
    return Predicted(scaler.target(mean), std * scaler.y_std, scaler.target(quantiles))


@jax.jit
def _summary(model: PersonalModel, x: jax.Array, levels: jax.Array) -> tuple[jax.Array, ...]:
    said = model(x)
    assert not isinstance(said, Probabilities)
    return predictive.mean(said), predictive.std(said), predictive.quantiles(said, levels)


@jax.jit
def _said(model: PersonalModel, x: jax.Array) -> Mixture | Probabilities:
    return model(x)


def probabilities(model: ClientModel, x: np.ndarray) -> np.ndarray:
    """[t, classes], in the order of the schema's classes."""
    if model.schema.classes is None:
        raise InputError(f"The target of {model.client!r} is a number; ask for mean and std.")
    with precision(model.config):
        parts = list(
            _in_blocks(
                model,
                x,
                lambda rows: (_said(model.personal, rows).log_probabilities.T,),
            )
        )
    found = np.exp(np.concatenate([part[0] for part in parts], axis=-1).T.astype(float))
    return found / found.sum(1, keepdims=True)


def _in_blocks(
    model: ClientModel, x: np.ndarray, function: Any
) -> Iterator[tuple[np.ndarray, ...]]:
    """`function` of scaled rows, in blocks of one size; its results end with the axis of the rows."""
    check_features(model.schema, x)
    scaled = ((x - model.scaler.x_mean) / model.scaler.x_std).astype(dtype_of(model.config))
    size = _block(len(x), len(model.personal.weights) * model.data.mask.shape[-1])
    for start in range(0, len(x), size):
        rows = scaled[start : start + size]
        padded = np.concatenate([rows, np.zeros((size - len(rows), x.shape[1]), rows.dtype)])
        found = tuple(np.asarray(part)[..., : len(rows)] for part in function(padded))
        unusable = np.isnan if model.schema.classes is not None else _not_finite
        if any(unusable(part).any() for part in found):
            raise InputError(
                f"The model of {model.client!r} has no finite prediction near row {start + 1}; its "
                "inputs are too far from what it was trained on."
            )
        yield found


def _not_finite(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


def _block(rows: int, width: int) -> int:
    room = max(BLOCKS[-1], ENTRIES // max(1, width))
    fitting = [size for size in BLOCKS if size <= room] or [BLOCKS[-1]]
    return next((size for size in reversed(fitting) if size >= rows), fitting[0])


def evaluate(model: ClientModel, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """How good and how honest the model is on rows it has not seen, in the target's own units."""
    samples = check_rows(model.schema, x, y)
    client = Client(model.client, samples, test=samples)
    if model.schema.classes is not None:
        said = Probabilities(np.log(np.maximum(probabilities(model, x), 1e-300))[None])
        return measure_classes(said, [client]).rows[0]
    if len(samples) < 2:
        raise InputError("One row tells nothing about calibration; give at least two.")
    scaler = model.scaler
    blocks: list[Mixture] = []  # all but means and standard deviations is the same in each

    def components(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        said = _said(model.personal, rows)
        assert not isinstance(said, Probabilities)
        blocks.append(said)
        return said.means, said.stds

    with precision(model.config):
        parts = zip(*_in_blocks(model, x, components), strict=True)
        means, stds = (jax.device_put(np.concatenate(part, axis=-1)) for part in parts)
        scaled = blocks[0]._replace(means=means, stds=stds)
        whole = predictive.in_units(scaled, scaler.y_mean, scaler.y_std)
        row = measure(whole, samples.y, metrics.calibration_levels())[0]
        error = samples.y - np.asarray(predictive.mean(whole), float)
    return {"rmse": float(np.sqrt(np.mean(error**2))), **row}


def to_data(samples: Samples, dtype: type) -> Data:
    """Padded to one of few sizes, so that models of like sizes share their programs."""
    room = round_up(len(samples)) - len(samples)
    x: np.ndarray = np.pad(samples.x, ((0, room), (0, 0))).astype(dtype)
    y: np.ndarray = np.pad(samples.y, (0, room)).astype(dtype)
    return Data(*jax.device_put((x, y, np.arange(len(y)) < len(samples))))


def check_features(schema: Schema, x: np.ndarray) -> None:
    expected = len(schema.features)
    if x.ndim != 2 or x.shape[1] != expected or not len(x):
        raise InputError(
            f"Features of shape {x.shape} do not fit the model; give rows of {expected} numbers "
            f"({', '.join(schema.features[:6])}{', ...' if expected > 6 else ''})."
        )
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InputError(
            f"Row {row + 1} has {x[row, column]} for {schema.features[column]!r}; fill it."
        )


def check_rows(schema: Schema, x: np.ndarray, y: np.ndarray) -> Samples:
    x, y = np.asarray(x, float), np.asarray(y, float)
    check_features(schema, x)
    if y.shape != (len(x),) or not np.isfinite(y).all():
        raise InputError(
            f"{len(x)} rows need as many finite values of {schema.target!r}; there are "
            f"{int(np.isfinite(y).sum())}."
        )
    if schema.classes is not None and not np.isin(y, np.arange(len(schema.classes))).all():
        raise InputError(
            f"Class numbers of {schema.target!r} must be 0 to {len(schema.classes) - 1}; correct them."
        )
    return Samples(x, y)


def first_data(tree: Any) -> Data:
    """The rows that posteriors hold: the same for every particle, and for every base prior."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Data))
    data: Data = next(leaf for leaf in leaves if isinstance(leaf, Data))
    extra = data.mask.ndim - 1
    return jax.tree.map(lambda leaf: leaf[(0,) * extra], data)
