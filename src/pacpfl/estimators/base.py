"""What the regressor and the classifier share: training with groups, and clients with their models.

The estimators hold no mathematics. They turn tables and groups into a federation, train it
(`engine.simulate.train`) and ask the models of its clients (`pacpfl.client`).
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from pacpfl import client
from pacpfl.client import ClientModel, Name, Question, Shared, fit_units, no_rows, recalibrated
from pacpfl.config import SECTIONS, Config, differing, flat, updated
from pacpfl.data.prepare import Scaler
from pacpfl.data.store import from_samples
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.data.tables.read import read_features, schema_of
from pacpfl.defaults import defaults, scaling
from pacpfl.engine import runtime
from pacpfl.engine.simulate import train
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.methods.registry import build_pacpfl, entry
from pacpfl.personal import PersonalModel
from pacpfl.race import choose
from pacpfl.report.measures import counted
from pacpfl.report.terminal import Bar
from pacpfl.settings import convert, key, rules_of
from pacpfl.types import Form, Samples
from pacpfl.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = TypeVar("Kind", bound="FederatedEstimator")
Curve = tuple[np.ndarray, np.ndarray, float, tuple[str, str]]
KEPT = 128  # models of clients in memory; the others are made again when they are asked for
SHOWN = 12  # clients in the table of a notebook; of the others it tells how many there are
EVERYBODY = "all"  # the one client there is where no groups are given

# The sections of the configuration that parameters and `settings` reach. What others ask for, such as
# privacy, an estimator does not do.
REACHED = ("train", "prior", "network", "bnn", "posterior", "personal")

# What the documentation of both estimators has in common: `documented` puts it before the examples.
COMMON = """
Parameters bear the names of the configuration's keys; `settings` reaches the others. "auto" is what
`pacpfl init` would write for the same rows (docs/python-api.md has the table), and `config_` tells
what it became.

Parameters
----------
{parameters}

Attributes
----------
config_ : Config
    Every setting of the training.
particles_ : ndarray of shape (particles, size)
    Parameters of the learned priors.
prior_ : Prior
    The family of priors that these are members of.
clients_ : list
    Names of the clients that have a model.
history_ : dict of ndarray
    Curves of the training, one number for each round.
standardize_ : str
    What "auto" became.
race_ : tuple of dict
    How the candidates of the race did, the best first: what each changes, its rounds, and the negative
    log density of a held-out row of existing and of new clients; empty where there was none.
classes_ : ndarray
    The labels, sorted; of a classifier only.

Examples
"""


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """fit, personalize, update, forget, save and load; subclasses say what is predicted."""

    particles: int | str = key("auto", "k: particles of the hyper-posterior")
    tau: float | str = "auto"
    hyper_std: float | str = "auto"
    rounds: int | str = key("auto", "T: rounds of training; 0 leaves the priors as they are drawn")
    learning_rate: float | str = key("auto", "eta: step size of the training")
    batch: int | str | None = key("auto", "b: rows of a client in one round; None is all")
    clients_per_round: int | str | None = key("auto", "c: clients in one round; None is all")
    weights: str = "uniform"
    group_column: str | int | None = key(
        None, "the column of X that names the client, by name or number; it may hold text"
    )
    standardize: str = key(
        "auto",
        "whether rows are scaled by the statistics of each client, of all clients, or not",
        choices=("auto", "client", "global", "none"),
    )
    unseen_groups: str = key(
        "error",
        "whether an unknown client at prediction is an error, or is answered by the prior",
        choices=("error", "prior"),
    )
    race: bool = key(
        True, "whether candidates race for what is auto; where the rounds are given there is none"
    )
    recalibration: str = "auto"
    precision: str = key("float32", "type of all numbers inside: float32 or float64")
    settings: dict[str, Any] | None = key(
        None, 'further keys of the configuration, such as {"train.svgd_kernel": "function"}'
    )
    random_state: Any = key(None, "seed of everything that is drawn, or a RandomState")
    verbose: bool = key(False, "whether to show a progress bar")

    # Where metadata are routed, groups are asked for without a set_fit_request(groups=True).
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"groups": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"groups": True}

    _metric: ClassVar[Callable[..., float]]  # of targets and predictions, for `score`

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Learn the priors from all clients' rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows of all clients. Columns of true and false keep their unit; all others are scaled.
            A data frame may hold text, and gaps: they are read as `pacpfl fit` reads a table, text as
            categories, gaps filled by medians.
        y : array-like of shape (n_samples,)
            Their targets: numbers, or for the classifier labels, text or numbers.
        groups : array-like of shape (n_samples,), optional
            The client of every row, by text or numbers; needless with `group_column`. Without either
            all rows are one client's, and a warning says so.

        Returns
        -------
        self
        """
        for name in ("standardize", "unseen_groups"):
            convert(type(self), name, getattr(self, name), type(self).__name__)
        X, groups = self._apart(X, groups)
        if groups is None:
            warnings.warn(
                f"{type(self).__name__} is fitted without groups: all rows are one client's, and nothing "
                "is shared; give groups, or name the column of clients with group_column.",
                stacklevel=2,
            )
        self._reading = reading_of(X)
        x, targets = self._checked(self._read(X), y, first=True)
        self.grouped_ = groups is not None
        rows = {EVERYBODY: np.arange(len(x))} if groups is None else rows_of(groups, len(x))
        samples = {name: Samples(x[own], targets[own]) for name, own in rows.items()}
        gaps = "error" if self._reading is None else self._reading.missing
        schema = Schema(self._columns(X, x.shape[1]), "y", self._class_names(), missing=gaps)
        form = schema.form._replace(clients=len(samples), sizes=tuple(map(len, samples.values())))
        self.standardize_ = self.standardize
        if self.standardize == "auto":
            self.standardize_ = scaling(list(samples.values()), schema.classes is not None)[0]
        runtime.prepare()
        self.config_, self.race_ = self._raced(list(samples.values()), schema, form)
        self.standardize_ = self.config_.data.standardize
        how = "none" if self.standardize_ == "none" else "global"
        units = fit_units(schema, list(samples.values()), how)
        common = None if self.standardize_ == "client" else units
        untrained = Shared(self.config_, schema, common, np.zeros((0, 0)))
        scalers = {name: untrained.scaler_for(own) for name, own in samples.items()}
        shared = self._train(untrained, [scalers[n](own) for n, own in samples.items()], form)
        models = [ClientModel(n, shared, scalers[n], own) for n, own in samples.items()]
        shared = recalibrated(shared, models)
        models = [replace(model, shared=shared) for model in models]
        self._set(shared, models, set(samples), units)
        return self

    def _apart(self, X: Any, groups: ArrayLike | None = None) -> tuple[Any, ArrayLike | None]:
        """Return X without the column of clients, if there is one, and the client of every row."""
        if self.group_column is None:
            return X, groups
        rest, own = taken_out(X, self.group_column)
        return rest, own if groups is None else groups

    def _read(self, X: Any) -> Any:
        """Return a frame with text or gaps as features, as the command line reads it; all else as it is."""
        known = self._reading
        if known is None or not {column.name for column in known.columns} <= {
            *getattr(X, "columns", ())
        }:
            return X
        return pd.DataFrame(read_features(X, known), columns=list(known.features))

    def _own(self, X: Any, group: Name | None) -> tuple[Any, Name]:
        """Return features of one client's rows and its name: as given, or as the column of clients says."""
        X, groups = self._apart(X)
        if group is None and groups is not None:
            group, *others = rows_of(groups, len(groups))  # type: ignore[arg-type]
            if others:
                raise InputError(f"X holds rows of {1 + len(others)} clients; give those of one.")
        return self._read(X), EVERYBODY if group is None else client_name(group)

    def _checked(self, X: ArrayLike, y: ArrayLike, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and their targets in numbers; where not `first`, checked against what was fitted."""
        raise NotImplementedError

    def _class_names(self) -> tuple[str, ...] | None:
        return None

    def _columns(self, X: object, width: int) -> tuple[Column, ...]:
        if self._reading is not None:
            return self._reading.columns
        names = getattr(self, "feature_names_in_", [f"x{number}" for number in range(width)])
        types = getattr(X, "dtypes", [getattr(X, "dtype", None)] * width)  # of a frame, of an array
        kinds = ["boolean" if str(t).lower() in ("bool", "boolean") else "number" for t in types]
        return tuple(Column(str(name), kind) for name, kind in zip(names, kinds, strict=True))

    def _given(self) -> Facts:
        """Return what has been given, which is all that is not "auto", by the keys of a configuration."""
        values = {key: _plain(getattr(self, name)) for name, key in keys_of(type(self)).items()}
        if self._is_untrained:
            del values["train.rounds"]  # a run has one at least
        for key_, value in (self.settings or {}).items():
            if _section(str(key_)) not in REACHED:
                raise InputError(
                    f"{type(self).__name__}: settings has keys of the sections {', '.join(REACHED)}, such "
                    f"as train.batch, and cannot use {key_!r}; for the others use pacpfl run."
                )
            values[str(key_)] = _plain(value)
        return {name: value for name, value in values.items() if value != "auto"}

    def _raced(
        self, samples: list[Samples], schema: Schema, form: Form
    ) -> tuple[Config, tuple[Facts, ...]]:
        """Return what was given, and for "auto" what suits the rows by their size (`pacpfl.defaults`)
        or, after a race, what predicts held-out rows best; and how all its candidates did."""
        given, seed = self._given(), self._seed(self.random_state)
        suited = replace(defaults(form, self.standardize_, given), seed=seed)
        config = updated(suited, given, type(self).__name__)
        if not self.race or self.rounds != "auto":
            return config, ()
        unscaled = np.isin(np.array(schema.features, dtype=object), schema.unscaled)
        with Bar("race of settings", self.verbose) as bar:
            asked: Facts = {"unscaled": unscaled, "fixed": set(given), "progress": bar.count}
            outcome = choose(config, samples, form, **asked)
        return outcome.config, outcome.table

    @property
    def _is_untrained(self) -> bool:
        """Whether the particles stay as they are drawn."""
        return not isinstance(self.rounds, (str, bool)) and self.rounds == 0

    def _train(self, shared: Shared, scaled: list[Samples], form: Form) -> Shared:
        config = shared.config
        with shared.precision(), Bar("training", self.verbose) as bar:
            trained = train(
                build_pacpfl(config, form),
                from_samples(scaled, roomy=form.classes is not None),
                rounds=0 if self._is_untrained else config.train.rounds,
                clients_per_round=config.train.clients_per_round,
                seed=config.seed,
                dtype=shared.dtype,
                matrices_per_client=entry("pacpfl").memory(config, form).matrices,
                progress=bar.rounds,
            )
        self.history_ = trained.history
        particles = np.asarray(trained.state.particles)
        if not np.isfinite(particles).all():
            raise InputError(
                f"{type(self).__name__}: training did not stay finite; lower learning_rate or tau."
            )
        seed = np.asarray(trained.state.seed) if shared.prior.draws else None
        return replace(shared, particles=particles, seed=seed)

    def _set(
        self, shared: Shared, models: list[ClientModel], trained: set[Name], units: Scaler
    ) -> None:
        """Keep what was learned; `units` are those of who is nobody's client."""
        self._shared, self.prior_, self.particles_ = shared, shared.prior, shared.particles
        self._owners: dict[Name, ClientModel] = {model.name: model for model in models}
        self._trained = trained
        self._recent: dict[Name, None] = {}
        self._prior_model = ClientModel("nobody", shared, units, no_rows(shared.schema))

    def _seed(self, random_state: Any) -> int:
        """A whole number is the seed itself; anything else that scikit-learn accepts draws one."""
        if not isinstance(random_state, (int, np.integer)) or isinstance(random_state, bool):
            return int(check_random_state(random_state).randint(2**31 - 1))
        if not 0 <= random_state < 2**32:
            raise InputError(f"{type(self).__name__}: random_state must be from 0 to 2**32 - 1.")
        return int(random_state)

    @property
    def clients_(self) -> list[Name]:
        """Names of the clients that have a model."""
        check_is_fitted(self)
        return list(self._owners)

    def personalize(self, X: ArrayLike, y: ArrayLike, group: Name | None = None) -> Self:
        """Give a client who took no part in the training its own model, from its rows alone.

        The particles stay as they are: nothing about the client leaves it.

        Parameters
        ----------
        X, y : array-like
            The client's rows and their targets.
        group : str or int, optional
            The client's name; needless with `group_column`.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        X, group = self._own(X, group)
        if group in self._owners:
            raise InputError(
                f"Client {group!r} has a model already; add rows to it with update, or forget it first."
            )
        rows = self._checked(X, y, first=False)
        self._owners[group] = ClientModel.condition(self._shared, group, *rows)
        return self

    def update(self, X: ArrayLike, y: ArrayLike, group: Name | None = None) -> Self:
        """Add rows to what a client knows. Its units stay those of its first rows.

        Parameters
        ----------
        X, y : array-like
            More rows of the client and their targets.
        group : str or int, optional
            The client's name; needless with `group_column`, and where all rows are one client's.

        Returns
        -------
        self
        """
        X, name = self._own(X, group)
        group = self._known(name)
        self._owners[group] = self._owners[group].extend(*self._checked(X, y, first=False))
        return self

    def observe(self, X: ArrayLike, y: ArrayLike, group: Name | None = None) -> Self:
        """Recalibrate a client by rows that came later; its means stay as they are.

        Parameters
        ----------
        X, y : array-like
            Rows in the order of time, and their targets; the last hundred are remembered.
        group : str or int
            The client's name; needless where all rows are one client's.

        Returns
        -------
        self
        """
        X, name = self._own(X, group)
        group = self._known(name)
        self._owners[group] = self._owners[group].observe(*self._checked(X, y, first=False))
        return self

    def forget(self, group: Name) -> Self:
        """Drop a client's rows and model. What the particles learned from it stays in them.

        Parameters
        ----------
        group : str or int
            The client's name.

        Returns
        -------
        self
        """
        group = self._known(group)
        del self._owners[group]
        self._recent.pop(group, None)
        self._trained.discard(group)
        return self

    def model(self, group: Name | None = None) -> PersonalModel:
        """Return a client's own model, in standardised units.

        Parameters
        ----------
        group : str or int, optional
            The client's name; None is the prior without any rows.

        Returns
        -------
        PersonalModel
        """
        check_is_fitted(self)
        return self._model(None if group is None else self._known(group)).personal

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return R^2 of the predicted means, or the share of rows whose class is predicted.

        Parameters
        ----------
        X, y, groups : array-like
            Rows to answer, their targets, and the client of each.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
        """
        return float(self._metric(y, self.predict(X, groups), sample_weight=sample_weight))

    def measure(self, X: ArrayLike, y: ArrayLike, group: Name | None = None) -> dict[str, float]:
        """Return how good and how honest a client's model is on rows it has not seen.

        Parameters
        ----------
        X, y : array-like
            Rows of the client and their targets; of a number at least two.
        group : str or int, optional
            The client's name; needless with `group_column`, and where all rows are one client's.

        Returns
        -------
        dict
            The measures of `pacpfl evaluate`, in the target's units: of a number `rmse`, `nll`,
            `coverage_90` and others.
        """
        check_is_fitted(self)
        X, name = self._own(X, group)
        return self._model(self._known(name)).measure(*self._checked(X, y, first=False))

    def _model(self, name: Name | None) -> ClientModel:
        """Return a client's model, and let go of the ones that were not asked for long."""
        if name is None:
            return self._prior_model
        self._recent.pop(name, None)
        self._recent[name] = None
        while len(self._recent) > KEPT:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            self._owners[oldest] = replace(self._owners[oldest])  # without what it has computed
        return self._owners[name]

    def _ask(
        self, question: Question, X: ArrayLike, groups: ArrayLike | None, *arguments: ArrayLike
    ) -> np.ndarray:
        """Answer a question at every row, by the model of its client; rows are last."""
        return self._each(X, groups, lambda model, x: model.ask(question, x, *arguments))

    def _each(
        self,
        X: ArrayLike,
        groups: ArrayLike | None,
        answer: Callable[[ClientModel, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Return what each client's model answers at its rows; rows are last."""
        check_is_fitted(self)
        X, groups = self._apart(X, groups)
        x = validate_data(self, self._read(X), reset=False, dtype=np.float64)
        rows = self._rows(groups, len(x))
        answers = [answer(self._model(name), x[own]) for name, own in rows.items()]
        order = np.argsort(np.concatenate(list(rows.values())))
        return np.concatenate(answers, axis=-1)[..., order]

    def _rows(self, groups: ArrayLike | None, count: int) -> dict[Name | None, np.ndarray]:
        """Return the rows of each client who is asked; None stands for those whom nobody knows."""
        alone = None if self.grouped_ else EVERYBODY
        asked: dict[Name | None, np.ndarray] = {alone: np.arange(count)}
        if groups is not None:
            asked = {name: own for name, own in rows_of(groups, count).items()}
        unseen = [name for name in asked if name not in self._owners]
        if not unseen:
            return asked
        if self.unseen_groups != "prior":
            raise InputError(
                f"This {type(self).__name__} was fitted with groups; give groups for the rows of X, "
                'or set unseen_groups="prior" for predictions that know no client.'
                if groups is None
                else f"Client {unseen[0]!r} is not known; give it a model with personalize(X, y, "
                f'group={unseen[0]!r}), or set unseen_groups="prior" for predictions without its data.'
            )
        strangers = np.concatenate([asked.pop(name) for name in unseen])
        return asked | {None: strangers}

    def _known(self, group: Name) -> Name:
        """Return the name as it is kept; InputError where the client has no model."""
        check_is_fitted(self)
        name = client_name(group)
        if name not in self._owners:
            known = ", ".join(map(repr, list(self._owners)[:5]))
            raise InputError(
                f"Client {name!r} is not known (there are {len(self._owners)}: {known}...); give it a "
                "model with personalize first."
            )
        return name

    def plot_predictions(
        self, group: Name | None = None, feature: int | str = 0, **options: Any
    ) -> Axes:
        """Draw a client's predictions along one feature, the others at the medians of its rows.

        Parameters
        ----------
        group : str or int, optional
            The client's name; needless where there is one.
        feature : int or str, default=0
            The feature, by number or name.
        **options
            `ax`, `theme` (auto, light or dark) and `points`.

        Returns
        -------
        matplotlib Axes
            Of a number: mean, 50% and 90% intervals, and the client's rows. Of classes: their
            probabilities.
        """
        from pacpfl.estimators import plots

        known = self.clients_
        if group is None and len(known) != 1:
            raise InputError(
                f"There are {len(known)} clients; name one, such as group={known[0]!r}."
                if known
                else "There is no client yet; make one with personalize."
            )
        model = self._model(self._known(known[0] if group is None else group))
        names = list(getattr(self, "feature_names_in_", []))
        column = names.index(feature) if feature in names else feature
        if isinstance(column, str) or not 0 <= column < self.n_features_in_:
            there = ", ".join(names) or f"numbers from 0 to {self.n_features_in_ - 1}"
            raise InputError(f"There is no feature {feature!r}; there are {there}.")
        label = str(names[column]) if names else f"feature {column}"
        return plots.predictions(model, int(column), label, **options)

    def plot_calibration(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, **options: Any
    ) -> Axes:
        """Draw how honest the uncertainty is, on rows the model has not seen; the diagonal is perfect.

        Parameters
        ----------
        X, y, groups : array-like
            Rows that were not fitted, their targets or labels, and the client of each.
        **options
            `ax` and `theme` (auto, light or dark).

        Returns
        -------
        matplotlib Axes
            Of a number: the share of targets below each predicted quantile. Of classes: the share of
            right answers against their predicted probability.
        """
        from pacpfl.estimators import plots

        return plots.calibration(*self._calibration(X, y, groups), **options)

    def _calibration(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> Curve:
        """Return what is promised, what is observed, the error, and what the two are called."""
        raise NotImplementedError

    def save(self, path: Path | str, groups: list[Name] | None = None) -> None:
        """Write one file, without pickle: particles, parameters, and clients with their rows.

        A client's model is made of its rows, so they are in the file. `pacpfl predict` opens it.

        Parameters
        ----------
        path : path-like
            The file.
        groups : list, optional
            Whose rows to write; all clients' if None. With groups=[] the file holds what the server
            knows: the particles.
        """
        check_is_fitted(self)
        chosen = self.clients_ if groups is None else [self._known(group) for group in groups]
        classes = getattr(self, "classes_", None)
        header = {
            "pacpfl": __version__,
            "parameters": self.get_params(deep=False),
            "grouped": self.grouped_,
            "trained": [name for name in chosen if name in self._trained],
            "named": hasattr(self, "feature_names_in_"),
            "classes": None if classes is None else classes.tolist(),
            "classes_dtype": None if classes is None else classes.dtype.str,
        }
        units = self._prior_model.scaler
        arrays = {f"history/{name}": values for name, values in self.history_.items()} | {
            "prior_units": np.stack([units.x_mean, units.x_std]),
            "prior_target": np.array([units.y_mean, units.y_std]),
        }
        # NumPy's numbers and arrays become Python's; a generator of random numbers, nothing.
        written = json.dumps(header, default=lambda value: getattr(value, "tolist", lambda: None)())
        models = [self._owners[name] for name in chosen]
        client.save(Path(path), self._shared, models, {"estimator": written}, arrays)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Return the estimator in a file: from `save`, `pacpfl fit` or `pacpfl personalize`.

        Parameters
        ----------
        path : path-like
            The file. That of a training (prior.safetensors) has no clients yet: `personalize` adds them.
            A data frame with the columns of its table is read as the command line reads it.

        Returns
        -------
        estimator
        """
        runtime.prepare()
        saved = client.load(Path(path))
        shared, schema = saved.shared, saved.shared.schema
        header = json.loads(saved.about.get("estimator", "{}"))
        kind = "PACPFLRegressor" if schema.classes is None else "PACPFLClassifier"
        if kind != cls.__name__:
            raise InputError(f"{path} holds a {kind}; load it with {kind}.load.")
        self = cls(**header.get("parameters", parameters_of(cls, shared.config)))
        self.config_, self.standardize_ = shared.config, shared.config.data.standardize
        self.grouped_ = header.get("grouped", True)
        self.n_features_in_ = len(schema.features)
        if header.get("named", True):
            self.feature_names_in_ = np.array(schema.features, object)
        if schema.classes is not None:
            named = header.get("classes", schema.classes)
            self.classes_ = np.array(named, header.get("classes_dtype"))
        read = any(c.median is not None or c.kind in ("category", "date") for c in schema.columns)
        self._reading = schema if read else None
        units = shared.scaler or fit_units(schema, [], "none")
        if "prior_units" in saved.arrays:
            moments, target = (saved.arrays.pop(f"prior_{name}") for name in ("units", "target"))
            units = Scaler(*moments, *target.tolist())
        self.history_ = {n.removeprefix("history/"): curve for n, curve in saved.arrays.items()}
        self._set(shared, list(saved.models), set(header.get("trained", ())), units)
        return self

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram, and below it a table of the clients where there are any.

        Its colours are those of the text around, so that it serves light and dark.
        """
        diagram = str(estimator_html_repr(self))
        if not hasattr(self, "_owners"):
            return diagram
        rows = [
            f"<tr><td>{escape(str(name))}</td><td>{len(owner.samples)}</td>"
            f"<td>{'trained' if name in self._trained else 'joined later'}</td></tr>"
            for name, owner in list(self._owners.items())[:SHOWN]
        ]
        count = len(self._owners)
        if count > SHOWN:
            rows.append(f'<tr><td colspan="3">and {count - SHOWN} more</td></tr>')
        k, size = self.particles_.shape
        return (
            f'{diagram}<table style="margin-top:.5em;color:inherit"><caption style="text-align:left">'
            f"{counted(count, 'client')}; {k} particles of {size} numbers</caption>"
            "<thead><tr><th>client</th><th>rows</th><th>part</th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>"
        )


def documented(kind: type[Kind]) -> type[Kind]:
    """Add to a docstring what both have in common, and every parameter with the help of its key."""
    keys, lines = keys_of(kind), []
    for part in fields(kind):
        rules = part.metadata or rules_of(type(SECTIONS[_section(keys[part.name])]), part.name)
        lines += [f"{part.name} : {part.type}, default={part.default!r}", f"    {rules['help']}"]
    own, _, examples = inspect.cleandoc(kind.__doc__ or "").partition("Examples\n")
    kind.__doc__ = own.rstrip() + "\n" + COMMON.format(parameters="\n".join(lines)) + examples
    return kind


def keys_of(kind: type[FederatedEstimator]) -> dict[str, str]:
    """Return the key of every parameter that the configuration has: in the first section that has it."""
    parameters = {part.name for part in fields(kind)}
    found = {
        part.name: f"{section}.{part.name}"
        for section in reversed((*REACHED, "run"))
        for part in fields(SECTIONS[section])
        if part.name in parameters
    }
    return found | {"standardize": "data.standardize"}


def parameters_of(kind: type[FederatedEstimator], config: Config) -> dict[str, object]:
    """Return the parameters of an estimator that a configuration describes."""
    keys, now = keys_of(kind), flat(config)
    further = differing(config, Config()) - {*keys.values()}
    others = {key: now[key] for key in now if key in further and _section(key) in REACHED}
    values = {name: now[key] for name, key in keys.items()}
    return values | {"random_state": config.seed, "settings": others or None}


def client_name(value: object) -> Name:
    """Return the name as it is kept: text, a number, or true and false, so that a file can hold it."""
    value = _plain(value)
    if not isinstance(value, (str, int, float, bool)) or value != value:
        raise InputError(
            f"A client is named {value!r} in groups; name clients by text or whole numbers, such as "
            "those of groups.astype(str), and leave none out."
        )
    return value


def taken_out(X: Any, column: str | int) -> tuple[Any, np.ndarray]:
    """Return a table without one of its columns, and that column."""
    if hasattr(X, "columns"):
        names = list(X.columns)
        at = names.index(column) if column in names else column
    else:
        X = X if hasattr(X, "ndim") else np.asarray(X, object)
        names, at = list(range(X.shape[1] if X.ndim == 2 else 0)), column
    if isinstance(at, str) or not -len(names) <= at < len(names):
        raise InputError(
            f"X has no column {column!r}, which group_column names; it has "
            f"{', '.join(map(str, names[:6])) or 'no columns'}."
        )
    if not hasattr(X, "columns"):
        return np.delete(X, at, axis=1), X[:, at]
    name = names[at]
    return X[[other for other in names if other != name]], np.asarray(X[name], object)


def reading_of(X: Any) -> Schema | None:
    """Return how a data frame with text or gaps is read; None for numbers without gaps."""
    if not hasattr(X, "columns"):
        return None
    frame = pd.DataFrame({str(n): np.asarray(X[n]) for n in X.columns})
    plain = all(frame[name].dtype.kind in "biuf" for name in frame)
    return None if plain and not frame.isna().any(axis=None) else schema_of(X)


def rows_of(groups: ArrayLike, count: int) -> dict[Name, np.ndarray]:
    """Return the rows of every client, in the order in which clients appear: that of `pacpfl fit`."""
    values = np.asarray(groups, dtype=object)
    if values.ndim != 1 or len(values) != count:
        raise InputError(
            f"groups has shape {values.shape} and X has {count} rows; give the client of every row."
        )
    rows: dict[Name, list[int]] = {}
    for row, value in enumerate(values):
        rows.setdefault(client_name(value), []).append(row)
    return {name: np.array(own) for name, own in rows.items()}


def _section(key: str) -> str:
    """Return the section of a key such as "train.tau", and nothing for one without."""
    return key.rpartition(".")[0]


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's; anything else as it is."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
