"""One client's model: a prior's particles, conditioned on the client's rows, in the client's own units.

`Shared` is what a training gives to everybody: the particles, and nobody's rows. A `ClientModel`
conditions them on one client's rows when it is first asked, and answers questions. The command line
and the estimators are shells of both, and all files of models are of one kind (`save` and `load`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pacpfl import arrays, calibration, predictive
from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.data.prepare import Scaler, fit_scaler
from pacpfl.data.settings import TableSettings
from pacpfl.data.store import round_up
from pacpfl.data.tables.columns import Schema
from pacpfl.data.tables.read import load_own
from pacpfl.engine.measure import measure, measure_classes
from pacpfl.errors import InputError, explained
from pacpfl.files import load_arrays, save_arrays
from pacpfl.folder import MODELS, SHARED
from pacpfl.methods.registry import build_prior
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Client, Data, Mixture, Prediction, Probabilities, Samples, WarpedPrediction
from pacpfl.watch import outside

if TYPE_CHECKING:
    import jax

Name = str | int | float | bool
KIND = "pacpfl-model-2"
REMEDY = "make it again, with pacpfl fit, pacpfl personalize, or an estimator's save"
LEAST_ROWS = 64  # that are made room for: small tables cost nothing, and share one program
BLOCKS = (2048, 512, 128)  # rows predicted at once: few sizes, so that few programs are compiled
ENTRIES = 1 << 25  # of the matrix between training rows and those, over all particles
PLAIN = (
    1 << 23
)  # entries of a client's factors up to which NumPy is done before a compiler has begun
LARGEST_FACTOR = 8 * 2**30  # bytes of what exact inference holds: beyond, it is no option


class Question(NamedTuple):
    """What is asked of a prediction: an array with rows last, and how it gets the target's units."""

    of: Callable[..., Any]
    in_units: Callable[[np.ndarray, Scaler], np.ndarray] = lambda answer, scaler: answer
    usable: Callable[[np.ndarray], np.ndarray] = np.isfinite


class Predicted(NamedTuple):
    """What a model says of a number, in the target's own units."""

    mean: np.ndarray  # [rows]
    std: np.ndarray  # [rows], noise included
    quantiles: np.ndarray  # [levels, rows]


def _components(prediction: Mixture) -> Any:
    xp = arrays.of(*prediction)
    warps = prediction.warps.T if isinstance(prediction, WarpedPrediction) else ()
    fixed = (part[:, None] for part in (prediction.weights, *warps))
    weights, *others = (xp.broadcast_to(part, prediction.means.shape) for part in fixed)
    return xp.stack([weights, prediction.means, prediction.stds, *others])


def _components_in_units(answer: np.ndarray, scaler: Scaler) -> np.ndarray:
    whole = predictive.in_units(mixture(answer), scaler.y_mean, scaler.y_std)
    return np.asarray(_components(whole))


def _moments(prediction: Mixture) -> Any:
    moments = [predictive.mean(prediction), predictive.std(prediction)]
    return arrays.of(*moments).stack(moments)


# [2, t]: the mixture's mean and standard deviation, noise included.
MOMENTS = Question(
    _moments,
    lambda a, s: np.stack([s.target(a[0]), a[1] * s.y_std]),
)
# [q, t], given q levels: where the mixture's distribution function reaches each.
QUANTILES = Question(predictive.quantiles, lambda a, s: s.target(a))
# [3, c, t]: weight, mean and std of every component; [7, c, t] with a warp's four numbers.
COMPONENTS = Question(_components, _components_in_units)
# [classes, t]
LOG_PROBABILITIES = Question(
    lambda prediction: prediction.log_probabilities.T, usable=lambda answer: ~np.isnan(answer)
)


@dataclass(frozen=True, eq=False)
class Shared:
    """What a training has learned for all clients, also for those who come later."""

    config: Config
    schema: Schema  # what the columns of a table mean
    scaler: Scaler | None  # of all clients together; None where each is scaled by its own rows
    particles: np.ndarray  # parameters of k priors, [k, size]
    seed: np.ndarray | None = (
        None  # of the draws that all clients share, where posteriors are drawn
    )

    # What clients have in common of the map of their probabilities (pacpfl.calibration.learn). None: it
    # is not known, as after a private training, and each client's own rows decide.
    recalibration: np.ndarray | None = None

    @cached_property
    def prior(self) -> Prior:
        """The family of priors that the configuration describes."""
        return build_prior(self.config, self.schema.form)

    @property
    def dtype(self) -> type:
        """The type of all numbers inside."""
        return self.config.run.dtype

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Let JAX compute in the configuration's precision, whatever the caller works in."""
        import jax

        from pacpfl.engine import runtime

        runtime.prepare()
        with jax.enable_x64(self.dtype is np.float64):
            yield

    def scaler_for(self, samples: Samples) -> Scaler:
        """Return the units of a client with these rows."""
        return fit_units(self.schema, [samples]) if self.scaler is None else self.scaler

    def key(self, client: Name) -> jax.Array | None:
        """Return the key of a client's draws as in training: shared by all clients, or its own."""
        if not self.prior.draws:
            return None
        import jax

        if self.prior.draws == "shared" and self.seed is not None:
            return jax.random.wrap_key_data(jax.device_put(self.seed))
        own = jax.random.fold_in(jax.random.key(self.config.seed), zlib.crc32(str(client).encode()))
        return jax.random.fold_in(own, 1)


@dataclass(frozen=True, eq=False)
class ClientModel:
    """One client's model, in the owner's units."""

    name: Name
    shared: Shared
    scaler: Scaler  # the units of this client: they stay those of its first rows
    samples: Samples = field(repr=False)  # in their own units, encoded by the schema; maybe none
    window: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)  # see `observe`

    @classmethod
    def condition(cls, shared: Shared, name: Name, x: np.ndarray, y: np.ndarray) -> ClientModel:
        """Make the model of a client from its rows; InputError if they do not fit the schema.

        Features, [rows, features], are in the owner's units and in the order of the schema; targets
        are numbers in the owner's units, or class numbers.
        """
        samples = check_rows(shared.schema, x, y)
        return cls(name, shared, shared.scaler_for(samples), samples)

    def extend(self, x: np.ndarray, y: np.ndarray) -> ClientModel:
        """Return the model with more rows: the one that all rows at once would have made."""
        return replace(self, samples=self.samples + check_rows(self.shared.schema, x, y))

    @property
    def is_plain(self) -> bool:
        """Whether NumPy computes, in double precision: there are closed forms, and few rows."""
        prior = self.shared.prior
        entries = len(self.shared.particles) * prior.matrices * len(self.samples) ** 2
        return prior.plain and entries <= PLAIN

    @cached_property
    def personal(self) -> PersonalModel:
        """Every particle conditioned on the rows, in standardised units; made when first asked."""
        shared, scaled = self.shared, self.scaler(self.samples)
        rule, temperature = shared.config.personal.weights, shared.config.train.temperature
        if self.is_plain:
            data = Data(scaled.x, scaled.y, np.ones(len(scaled), bool))  # type: ignore[arg-type]
            with np.errstate(all="ignore"):  # answers are looked at, once for all
                particles: Any = shared.particles.astype(float)
                return personal_model(shared.prior, particles, data, rule, temperature)
        data, most = _padded(scaled, shared.dtype), shared.config.personal.exact
        rows, matrices = data.mask.size, len(shared.particles) * shared.prior.matrices
        held = (matrices + 3) * rows**2 * np.dtype(shared.dtype).itemsize
        if matrices and len(scaled) <= most and held > LARGEST_FACTOR:
            raise InputError(
                f"Client {self.name!r} has {rows} rows, too many for exact Gaussian processes with "
                f"{len(shared.particles)} particles; lower personal.exact, or particles."
            )
        with shared.precision():
            import jax

            from pacpfl.priors.sparse import suited

            given = jax.device_put((shared.particles, data))
            prior = suited(shared.prior, given[0], data, temperature, most)
            return _programs()[0](prior, *given, rule, temperature, shared.key(self.name))

    @cached_property
    def shares(self) -> np.ndarray | None:
        """The client's map of probabilities (`pacpfl.calibration`); None where there is none."""
        shares = self._shares_of_rows()
        if not len(self.window):
            return shares
        start = calibration.WIDTHS if shares is None else shares
        return calibration.own_shares(start, self.window, calibration.RECENT)

    def _shares_of_rows(self) -> np.ndarray | None:
        how, prior = self.shared.config.run.recalibration, self.shared.recalibration
        if how == "never" or self.shared.schema.classes is not None or not len(self.samples):
            return None
        if prior is not None and (not len(prior) or calibration.is_pooled(prior)):
            return prior / prior.sum() if len(prior) else None
        pits = self.held_out()
        return None if pits is None else calibration.shares_of(pits, prior, how)

    def held_out(self) -> np.ndarray | None:
        """Return where each of the client's rows lies in what the others say of it; None if unknown."""
        with nullcontext() if self.is_plain else self.shared.precision(), np.errstate(all="ignore"):
            program = PersonalModel.held_out if self.is_plain else _programs()[2]
            pits = program(self.personal)
        return None if pits is None else np.asarray(pits, float)[: len(self.samples)]

    def observe(self, x: np.ndarray, y: np.ndarray) -> ClientModel:
        """Return the model recalibrated by rows that came later, and otherwise unchanged.

        It remembers where the last `calibration.WINDOW` of them lay in its predictions: after a change
        of the seasons its intervals are right again within some tens of rows, without training.
        """
        kept = np.concatenate([self.window, self._below(x, y)])[-calibration.WINDOW :]
        return replace(self, window=kept)

    def pits(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the client's own rows lay when they were left out, and where these rows lie."""
        held_out = self.held_out() if self.shared.schema.classes is None else None
        if held_out is None:
            raise InputError(
                f"The model of {self.name!r} cannot be watched: only Gaussian processes of numbers can."
            )
        return held_out, self._below(x, y)

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Tell which rows lie beyond what the client's own rows span (`pacpfl.watch.outside`)."""
        known, asked = (
            (rows - self.scaler.x_mean) / self.scaler.x_std for rows in (self.samples.x, x)
        )
        return outside(known, asked)

    def cdf(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the probability of less than y at every row."""
        below = self._below(x, y)
        return below if self.shares is None else calibration.recalibrate(self.shares, below)

    def _below(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the same before recalibration: the PITs of rows."""
        samples = check_rows(self.shared.schema, x, y)
        targets: Any = samples.y
        with np.errstate(all="ignore"):
            return np.asarray(predictive.cdf(mixture(self.ask(COMPONENTS, samples.x)), targets))

    def check(self) -> None:
        """Raise InputError unless some particle explains the rows in finite numbers."""
        weights = np.asarray(self.personal.weights)
        if not (np.isfinite(weights).all() and weights.any()):
            raise InputError(
                f"No particle explains the {len(self.samples)} rows of client {self.name!r} in finite "
                "numbers; check their units against those of the training rows."
            )

    def ask(self, question: Question, x: np.ndarray, *arguments: ArrayLike) -> np.ndarray:
        """Return the answer to a question at every row, in the owner's units; rows are last.

        Rows are answered in blocks of few sizes, so that models and tables share compiled programs.
        Rows that do not fit the schema, and answers that are not finite, are an InputError. Quantiles
        are recalibrated; the components of a mixture are the model's own.
        """
        check_features(self.shared.schema, x)
        if question is QUANTILES and self.shares is not None:
            arguments = (calibration.invert(self.shares, np.asarray(arguments[0])),)
        scaled = (x - self.scaler.x_mean) / self.scaler.x_std
        with np.errstate(all="ignore"):
            parts = list(
                (self._plainly if self.is_plain else self._compiled)(question, scaled, arguments)
            )
            whole = question.in_units(np.concatenate(parts, axis=-1), self.scaler)
        usable = question.usable(whole).reshape(-1, len(x)).all(0)
        if not usable.all():
            raise InputError(
                f"The model of client {self.name!r} has no finite prediction for row "
                f"{int(np.argmin(usable)) + 1}; its inputs are too far from what it was trained on, or it "
                "needs double precision."
            )
        return whole

    def _plainly(
        self, question: Question, x: np.ndarray, arguments: Sequence[ArrayLike]
    ) -> Iterator[np.ndarray]:
        more: list[Any] = [np.asarray(argument, float) for argument in arguments]
        for start in range(0, len(x), BLOCKS[0]):
            rows: Any = x[start : start + BLOCKS[0]]
            yield question.of(self.personal(rows), *more)

    def _compiled(
        self, question: Question, x: np.ndarray, arguments: Sequence[ArrayLike]
    ) -> Iterator[np.ndarray]:
        dtype, personal = self.shared.dtype, self.personal
        # Beyond, there are at most so many inducing inputs.
        entries = _room(min(len(self.samples), self.shared.config.personal.exact))
        size = _block(len(x), len(personal.weights) * entries)
        with self.shared.precision():
            more: list[Any] = [np.asarray(argument, dtype) for argument in arguments]
            for start in range(0, len(x), size):
                rows: Any = x[start : start + size].astype(dtype)
                filled = np.pad(rows, ((0, size - len(rows)), (0, 0)))
                answer = np.asarray(_programs()[1](question.of, personal, filled, *more))
                yield answer[..., : len(rows)].astype(np.float64)

    def predict(self, x: np.ndarray, levels: Sequence[float] = ()) -> Predicted:
        """Return mean, standard deviation and quantiles of a number at every row."""
        if self.shared.schema.classes is not None:
            raise InputError(f"The target of {self.name!r} is a class; ask for its probabilities.")
        mean, std = self.ask(MOMENTS, x)
        quantiles = self.ask(QUANTILES, x, levels) if len(levels) else np.zeros((0, len(x)))
        return Predicted(mean, std, quantiles)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return class probabilities, [rows, classes], in the order of the schema's classes."""
        if self.shared.schema.classes is None:
            raise InputError(f"The target of {self.name!r} is a number; ask for mean and std.")
        likely = np.exp(self.ask(LOG_PROBABILITIES, x).T)
        return likely / likely.sum(1, keepdims=True)

    def measure(self, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """Return how good and how honest the model is on rows it has not seen, in the owner's units."""
        samples = check_rows(self.shared.schema, x, y)
        if self.shared.schema.classes is not None:
            likely = np.log(np.maximum(self.probabilities(samples.x), 1e-300))
            return measure_classes(Probabilities(likely[None]), [samples]).rows[0]
        if len(samples) < 2:
            raise InputError("One row tells nothing about calibration; give at least two.")
        whole = mixture(self.ask(COMPONENTS, samples.x))
        with np.errstate(all="ignore"):
            row = measure(whole, samples.y, self.shares)[0]
            error = samples.y - np.asarray(predictive.mean(whole), float)
        found = {"rmse": float(np.sqrt(np.mean(error**2))), **row}
        if len(self.window):  # of the last rows that it was shown, before they recalibrated it
            start = self._shares_of_rows()
            u = self.window if start is None else calibration.recalibrate(start, self.window)
            found["window_coverage_90"] = float(np.mean((u >= 0.05) & (u <= 0.95)))
        return found

    def save(self, path: Path) -> None:
        """Write the model: particles, configuration, units, and the client's rows."""
        save(path, self.shared, [self])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made from the rows, so that copies for other processes stay small."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def recalibrated(shared: Shared, models: Sequence[ClientModel]) -> Shared:
    """Return what is shared, with what the held-out rows of clients who trained say of a map."""
    how = shared.config.run.recalibration
    if how == "never" or shared.schema.classes is not None:
        return shared
    known = models[calibration.chosen(len(models))]
    pits = [replace(model).held_out() for model in known]  # copies: what they compute is not kept
    told = [own for own in pits if own is not None]
    return replace(shared, recalibration=calibration.learn(told, how == "always"))


def no_rows(schema: Schema) -> Samples:
    return Samples(np.zeros((0, len(schema.features))), np.zeros(0))


def fit_units(schema: Schema, samples: Sequence[Samples], how: str = "global") -> Scaler:
    """Return the units in which samples together have mean 0 and variance 1; "none": their own."""
    if how == "none":
        width = len(schema.features)
        return Scaler(np.zeros(width), np.ones(width), 0.0, 1.0)
    unscaled = np.isin(np.array(schema.features, dtype=object), schema.unscaled)
    return fit_scaler(samples, unscaled, schema.classes is not None)


def mixture(components: np.ndarray) -> Mixture:
    """Return what COMPONENTS answered as a mixture whose components have one weight at every row."""
    parts: Any = components
    weights, means, stds = parts[0, :, 0], parts[1], parts[2]
    if len(parts) == 3:
        return Prediction(weights, means, stds)
    return WarpedPrediction(weights, means, stds, np.moveaxis(parts[3:, :, 0], 0, -1))


@cache
def _programs() -> tuple[Callable[..., PersonalModel], Callable[..., Any], Callable[..., Any]]:
    """Return what conditions, what answers, and what leaves rows out, in JAX."""
    import jax

    def answer(function: Callable[..., Any], model: PersonalModel, x: Any, *more: Any) -> Any:
        return function(model(x), *more)

    condition = jax.jit(personal_model, static_argnames=("prior", "rule"))
    return condition, jax.jit(answer, static_argnums=0), jax.jit(PersonalModel.held_out)


def _room(rows: int) -> int:
    return round_up(max(rows, LEAST_ROWS))


def _block(rows: int, width: int) -> int:
    most = max(BLOCKS[-1], ENTRIES // max(1, width))
    fitting = [size for size in BLOCKS if size <= most]
    return min((size for size in fitting if size >= rows), default=fitting[0])


def _padded(samples: Samples, dtype: type) -> Data:
    """Return the rows at one of few sizes."""
    count = len(samples)
    more = _room(count) - count
    x, y = np.pad(samples.x, ((0, more), (0, 0))), np.pad(samples.y, (0, more))
    return Data(x.astype(dtype), y.astype(dtype), np.arange(len(y)) < count)  # type: ignore[arg-type]


def check_features(schema: Schema, x: np.ndarray) -> None:
    """Raise InputError unless there are rows, as wide as the schema, of finite numbers."""
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
    """Return rows with their targets; InputError where they are no rows of this schema."""
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


class Saved(NamedTuple):
    """A file of models: what all share, the clients' models, and what else was written with them."""

    shared: Shared
    models: tuple[ClientModel, ...]
    about: dict[str, str]
    arrays: dict[str, np.ndarray]


def save(
    path: Path,
    shared: Shared,
    models: Sequence[ClientModel] = (),
    about: Mapping[str, str] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write what all clients share and the rows and units of some, as one safetensors file.

    Without `models` it holds what the server knows; with them, rows, and only the user may read it.
    Where the tables lay, and who the other clients were, is not written. `about` and `arrays` are more to
    keep, by name; `load` gives them back.
    """
    tables = TableSettings(source="-", target=shared.schema.target, most=shared.config.tables.most)
    scalers = [*filter(None, [shared.scaler]), *(model.scaler for model in models)]
    rows = [no_rows(shared.schema), *(model.samples for model in models)]
    content = {
        "particles": shared.particles,
        "x": np.concatenate([part.x for part in rows]),
        "y": np.concatenate([part.y for part in rows]),
        "lengths": np.array([len(model.samples) for model in models], np.int64),
        "x_mean": np.array([scaler.x_mean for scaler in scalers], float),
        "x_std": np.array([scaler.x_std for scaler in scalers], float),
        "y_moments": np.array([(scaler.y_mean, scaler.y_std) for scaler in scalers], float),
    }
    if shared.seed is not None:
        content["seed"] = shared.seed
    if shared.recalibration is not None:
        content["recalibration"] = shared.recalibration
    if any(len(model.window) for model in models):
        content["window"] = np.concatenate([model.window for model in models])
        content["windows"] = np.array([len(model.window) for model in models], np.int64)
    words = {
        "config": configuration.dump(replace(shared.config, tables=tables)),
        "schema": shared.schema.to_json(),
        "common_units": json.dumps(shared.scaler is not None),
        "clients": json.dumps([model.name for model in models]),
    }
    every = content | dict(arrays or {})
    save_arrays(path, KIND, every, words | dict(about or {}), private=bool(models))


def load(path: Path) -> Saved:
    """Read a file that `save` wrote; InputError if its content makes no sense."""
    path = Path(path)
    arrays, about = load_arrays(path, KIND, REMEDY)
    faults = (InputError, LookupError, ValueError, TypeError, AttributeError)
    with explained(f"{path} is damaged", REMEDY, *faults):
        config = configuration.load(about.pop("config"), "the model's configuration")
        schema = Schema.from_json(about.pop("schema"))
        moments = [arrays.pop(name) for name in ("x_mean", "x_std", "y_moments")]
        scalers = [Scaler(*of_x, *of_y.tolist()) for *of_x, of_y in zip(*moments, strict=True)]
        common = scalers.pop(0) if json.loads(about.pop("common_units")) else None
        more = (arrays.pop(name, None) for name in ("seed", "recalibration"))
        shared = Shared(config, schema, common, arrays.pop("particles"), *more)
        size, width = shared.prior.size, len(schema.features)
        if shared.particles.shape[1:] != (size,):
            raise ValueError(f"particles of shape {shared.particles.shape}, not (k, {size})")
        if any(part.shape[1:] != (width,) for part in moments[:2] if len(part)):
            raise ValueError(f"units that are not those of {width} features")
        x, y, lengths = (arrays.pop(name) for name in ("x", "y", "lengths"))
        if lengths.sum() != len(x):
            raise ValueError(f"{len(x)} rows instead of {lengths.sum()}")
        parts = (np.split(rows, np.cumsum(lengths))[:-1] for rows in (x, y))
        window, sizes = arrays.pop("window", np.zeros(0)), arrays.pop("windows", 0 * lengths)
        windows = np.split(window, np.cumsum(sizes))[:-1]
        each = zip(json.loads(about.pop("clients")), scalers, windows, *parts, strict=True)
        models = tuple(ClientModel(n, shared, u, Samples(*own), w) for n, u, w, *own in each)
    return Saved(shared, models, about, arrays)


def load_model(path: Path | str, client: Name | None = None) -> ClientModel:
    """Read the model of one client, whoever wrote it: `pacpfl personalize` or an estimator's `save`.

    Parameters
    ----------
    path
        The file.
    client
        Which one, in a file of several clients.

    Returns
    -------
    ClientModel
        With `predict`, `probabilities`, `extend`, `measure` and `save`.

    Raises
    ------
    InputError
        If the file holds no model, or several and `client` names none of them.
    """
    models = load(Path(path)).models
    if not models:
        raise InputError(
            f"{path} holds what all clients share, and no client's model; make one with pacpfl "
            "personalize."
        )
    if len(models) == 1:
        return models[0]
    matches = [model for model in models if str(model.name) == str(client)]
    if not matches:
        names = ", ".join(str(model.name) for model in models[:5])
        more = ", ..." if len(models) > 5 else ""
        raise InputError(
            f"{path} holds the models of {len(models)} clients ({names}{more}); choose one with --client "
            "NAME, or client=NAME in Python."
        )
    return matches[0]


def load_shared(path: Path) -> Shared:
    """Return what a run folder, or a file of a model, holds for new clients."""
    if not path.is_dir():
        return load(path).shared
    if (path / SHARED).is_file():
        return load(path / SHARED).shared
    return shared_of_run(path)


def load_known(path: Path) -> Saved:
    """Return what a run folder, or a file, holds: what all share, and its clients' models, if any."""
    if (path / MODELS).is_file():
        return load(path / MODELS)
    return Saved(load_shared(path), (), {}, {}) if path.is_dir() else load(path)


def common_units(saved: Saved) -> Scaler:
    """Return the units of a client without rows; of all known rows where each client has its own."""
    shared = saved.shared
    if shared.scaler is None and not saved.models:
        raise InputError(
            "A client without any target has no units: this run scales each by its own rows. Give it "
            "some rows with a target."
        )
    known = [model.samples for model in saved.models]
    return fit_units(shared.schema, known) if shared.scaler is None else shared.scaler


def models_of(shared: Shared, clients: Iterable[Client]) -> Iterator[ClientModel]:
    """Make the models that a run has measured: from the rows of training, and those that came later."""
    for client in clients:
        model = ClientModel.condition(shared, client.name, client.train.x, client.train.y)
        later = client.later
        yield model if later is None else model.extend(later.x, later.y)


def shared_of_run(folder: Path) -> Shared:
    """Return what a run on tables has learned, from its checkpoint and its tables."""
    from pacpfl.run import load_run

    trained = load_run(folder)
    config = trained.config
    if config.data.name != "tables":
        raise InputError(
            f"The run in {folder} is on {config.data.name}, not on tables; personalise from a run that "
            "pacpfl fit has made."
        )
    tables = load_own(config.tables, config.seed)
    scaler, how = None, config.data.standardize
    if how != "client":
        existing = [client.train for client in tables.federation.existing]
        scaler = fit_units(tables.schema, existing, how)
    drawn = trained.state.seed  # () where nothing is drawn
    seed = None if isinstance(drawn, tuple) else np.asarray(drawn)
    return Shared(config, tables.schema, scaler, np.asarray(trained.particles), seed)
