"""What the regressor and the classifier share: training with groups, and clients with their models.

The estimators hold no mathematics. They turn tables and groups into a federation, train it
(`engine.simulate.train`) and ask the models of its clients (`pacpfl.client`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from pacpfl import client
from pacpfl.client import ClientModel, Name, Question, Shared
from pacpfl.data.prepare import Scaler, fit_scaler
from pacpfl.data.store import from_clients
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.defaults import scaling
from pacpfl.engine import runtime
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client
from pacpfl.engine.simulate import train
from pacpfl.estimators import words
from pacpfl.estimators.clients import EVERYBODY, client_name, client_names, rows_of
from pacpfl.estimators.errors import InvalidInput, as_invalid_input
from pacpfl.estimators.settings import (
    STANDARDIZE,
    UNSEEN,
    check_choice,
    make_config,
    parameters_of,
    seed_from,
)
from pacpfl.methods.registry import build_pacpfl
from pacpfl.personal import PersonalModel
from pacpfl.priors.base import Prior
from pacpfl.report.progress import training_bar
from pacpfl.types import Client, Federation, Samples
from pacpfl.version import __version__

KEPT = 128  # models of clients in memory; the others are made again when they are asked for


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """fit, personalize, update, forget, save and load; subclasses say what is predicted."""

    # Where metadata are routed, groups are asked for without a set_fit_request(groups=True).
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True}
    __metadata_request__score: ClassVar = {"groups": True}

    def _fit(self, x: np.ndarray, y: np.ndarray, groups: Any) -> Self:
        """Train on checked rows; `y` holds numbers, or class numbers where there are `classes_`."""
        name = type(self).__name__
        check_choice(name, "standardize", self.standardize, STANDARDIZE)
        check_choice(name, "unseen_groups", self.unseen_groups, UNSEEN)
        self.grouped_ = groups is not None
        rows = rows_of(client_names([EVERYBODY] * len(x) if groups is None else groups, len(x)))
        samples = {owner: Samples(x[own], y[own]) for owner, own in rows.items()}
        columns = getattr(self, "feature_names_in_", None)
        if columns is None:
            columns = [f"x{number}" for number in range(x.shape[1])]
        schema = Schema(
            tuple(Column(str(column), "number") for column in columns), "y", self._class_names()
        )
        form = schema.form._replace(clients=len(samples), sizes=tuple(map(len, samples.values())))
        self.standardize_ = self.standardize
        if self.standardize == "auto":
            with np.errstate(over="ignore", invalid="ignore"):
                moments = [[len(own), own.y.sum(), (own.y**2).sum()] for own in samples.values()]
                how, _ = scaling(np.array(moments))
            self.standardize_ = how if schema.classes is None else "global"
        seed = seed_from(name, self.random_state)
        self.config_ = make_config(name, self.get_params(deep=False), form, self.standardize_, seed)
        runtime.prepare()
        with as_invalid_input():
            self._prior_units = _units(schema, self.standardize_, list(samples.values()))
        common = None if self.standardize_ == "client" else self._prior_units
        shared = Shared(self.config_, schema, common, np.zeros((0, 0)))
        with as_invalid_input():
            scalers = {owner: shared.scaler_for(own) for owner, own in samples.items()}
            federation = Federation(
                name,
                tuple(Client(str(o), scalers[o](own)) for o, own in samples.items()),
                features=schema.features,
                classes=form.classes,
            )
            shared = self._train(shared, federation, seed)
        models = [ClientModel(o, shared, scalers[o], own) for o, own in samples.items()]
        self._set(shared, models, set(samples))
        return self

    def _train(self, shared: Shared, federation: Federation, seed: int) -> Shared:
        config = shared.config
        method = build_pacpfl(config, federation.form)
        with shared.precision():
            store = from_clients(federation.existing, roomy=federation.classes is not None)
            if self.rounds == 0:
                example = first_client(store, shared.dtype)
                state = method.init(Keys.of(seed).start(), example)
                self.history_: dict[str, np.ndarray] = {}
            else:
                with training_bar(self.verbose) as progress:
                    trained = train(
                        method,
                        store,
                        rounds=config.train.rounds,
                        clients_per_round=config.train.clients_per_round,
                        seed=seed,
                        dtype=shared.dtype,
                        matrices_per_client=config.train.particles * method.prior.matrices,
                        progress=progress,
                    )
                state, self.history_ = trained.state, trained.history
        particles = np.asarray(state.particles)
        if not np.isfinite(particles).all():
            raise InvalidInput(
                f"{type(self).__name__}: training did not stay finite; lower learning_rate or tau."
            )
        return replace(
            shared, particles=particles, seed=np.asarray(state.seed) if method.prior.draws else None
        )

    def _set(self, shared: Shared, models: list[ClientModel], trained: set[Name]) -> None:
        self._shared = shared
        self._owners: dict[Name, ClientModel] = {model.name: model for model in models}
        self._trained = trained
        self._recent: dict[Name, None] = {}
        nothing = Samples(np.zeros((0, len(shared.schema.features))), np.zeros(0))
        self._prior_model = ClientModel("nobody", shared, self._prior_units, nothing)

    def _class_names(self) -> tuple[str, ...] | None:
        classes = getattr(self, "classes_", None)
        return None if classes is None else tuple(map(str, classes.tolist()))

    @property
    def prior_(self) -> Prior:
        """The family of priors that was learned."""
        check_is_fitted(self)
        return self._shared.prior

    @property
    def particles_(self) -> np.ndarray:
        """Parameters of the learned priors, [k, size]."""
        check_is_fitted(self)
        return self._shared.particles

    @property
    def clients_(self) -> list[Name]:
        """Names of the clients that have a model."""
        check_is_fitted(self)
        return list(self._owners)

    def personalize(self, X: Any, y: Any, group: Name) -> Self:
        """Give a client who took no part in the training its own model, from its rows alone.

        The particles stay as they are: nothing about the client leaves it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The client's rows.
        y : array-like of shape (n_samples,)
            Their targets.
        group : str or int
            The client's name.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        group = client_name(group)
        if group in self._owners:
            raise InvalidInput(
                f"Client {group!r} has a model already; add rows to it with update, or forget it first."
            )
        with as_invalid_input():
            self._owners[group] = ClientModel.condition(
                self._shared, group, *self._checked_more(X, y)
            )
        return self

    def update(self, X: Any, y: Any, group: Name = EVERYBODY) -> Self:
        """Add rows to what a client knows. Its units stay those of its first rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            More rows of the client.
        y : array-like of shape (n_samples,)
            Their targets.
        group : str or int
            The client's name; needless where all rows are one client's.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        group = self._known(group)
        with as_invalid_input():
            self._owners[group] = self._owners[group].extend(*self._checked_more(X, y))
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
        check_is_fitted(self)
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
        with as_invalid_input():
            return self._model(None if group is None else self._known(group)).personal

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

    def _ask(self, question: Question, X: Any, groups: Any, *arguments: Any) -> np.ndarray:
        """Answer a question at every row, by the model of its client; rows are last."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        parts = {
            name: (rows, self._answer(question, name, x[rows], arguments))
            for name, rows in self._rows(groups, len(x)).items()
        }
        first = next(iter(parts.values()))[1]
        whole = np.full((*first.shape[:-1], len(x)), np.nan)
        for rows, answer in parts.values():
            whole[..., rows] = answer
        return whole

    def _answer(
        self, question: Question, name: Name | None, x: np.ndarray, arguments: tuple[Any, ...]
    ) -> np.ndarray:
        with as_invalid_input():
            return self._model(name).ask(question, x, *arguments)

    def _rows(self, groups: Any, count: int) -> Mapping[Any, np.ndarray]:
        """Return the rows of each client who is asked; None stands for those whom nobody knows."""
        if groups is None:
            if not self.grouped_ and EVERYBODY in self._owners:
                return {EVERYBODY: np.arange(count)}
            if self.unseen_groups == "prior":
                return {None: np.arange(count)}
            raise InvalidInput(
                f"This {type(self).__name__} was fitted with groups; give groups for the rows of X, "
                'or set unseen_groups="prior" for predictions that know no client.'
            )
        rows = rows_of(client_names(groups, count))
        unseen = [name for name in rows if name not in self._owners]
        if unseen and self.unseen_groups != "prior":
            raise InvalidInput(
                f"Client {unseen[0]!r} is not known; give it a model with personalize(X, y, "
                f'group={unseen[0]!r}), or set unseen_groups="prior" for predictions without its data.'
            )
        known: dict[Any, np.ndarray] = {n: rows[n] for n in rows if n in self._owners}
        if unseen:
            known[None] = np.concatenate([rows[name] for name in unseen])
        return known

    def _checked_more(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of one client, checked against what was fitted."""
        raise NotImplementedError

    def _known(self, group: Any) -> Name:
        name = client_name(group)
        if name not in self._owners:
            known = ", ".join(map(repr, list(self._owners)[:5]))
            raise InvalidInput(
                f"Client {name!r} is not known (there are {len(self._owners)}: {known}...); give it a "
                "model with personalize first."
            )
        return name

    def plot_predictions(self, group: Name | None = None, feature: Any = 0, **options: Any) -> Any:
        """Draw a client's predictions along one feature: see `estimators.plots.predictions`.

        Parameters
        ----------
        group : str or int, optional
            The client's name; needless where there is one.
        feature : int or str, default=0
            The feature, by number or name.
        **options
            `ax`, `theme` and `points`.

        Returns
        -------
        matplotlib Axes
        """
        from pacpfl.estimators import plots

        return plots.predictions(self, group, feature, **options)

    def plot_calibration(self, X: Any, y: Any, groups: Any = None, **options: Any) -> Any:
        """Draw how honest the uncertainty is, on rows the model has not seen.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows that were not fitted.
        y : array-like of shape (n_samples,)
            Their targets or labels.
        groups : array-like of shape (n_samples,), optional
            The client of every row.
        **options
            `ax` and `theme`.

        Returns
        -------
        matplotlib Axes
        """
        from pacpfl.estimators import plots

        return plots.calibration(self, X, y, groups, **options)

    def save(self, path: Any, groups: Any = None) -> None:
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
            "class": type(self).__name__,
            "parameters": self.get_params(deep=False),
            "grouped": self.grouped_,
            "trained": [name for name in chosen if name in self._trained],
            "named": hasattr(self, "feature_names_in_"),
            "classes": None if classes is None else classes.tolist(),
            "classes_dtype": None if classes is None else classes.dtype.str,
        }
        units = self._prior_units
        arrays = {f"history/{name}": values for name, values in self.history_.items()} | {
            "prior_units": np.stack([units.x_mean, units.x_std]),
            "prior_target": np.array([units.y_mean, units.y_std]),
        }
        with as_invalid_input():
            client.save(
                Path(path),
                self._shared,
                [self._owners[name] for name in chosen],
                {"estimator": json.dumps(header, default=_plain)},
                arrays,
            )

    @classmethod
    def load(cls, path: Any) -> Self:
        """Return the estimator in a file: from `save`, `pacpfl fit` or `pacpfl personalize`.

        Parameters
        ----------
        path : path-like
            The file. That of a training (prior.safetensors) has no clients yet: `personalize` adds them.
            Features are as the command line encodes them: `feature_names_in_` tells which.

        Returns
        -------
        estimator
        """
        with as_invalid_input():
            saved = client.load(Path(path))
        shared, classes = saved.shared, saved.shared.schema.classes
        header = json.loads(saved.about.get("estimator", "{}"))
        kind = "PACPFLRegressor" if classes is None else "PACPFLClassifier"
        if kind != cls.__name__:
            raise InvalidInput(f"{path} holds a {kind}; load it with {kind}.load.")
        self = cls(**header.get("parameters", parameters_of(cls, shared.config)))
        self.config_, self.standardize_ = shared.config, shared.config.data.standardize
        self.grouped_ = header.get("grouped", True)
        self.n_features_in_ = len(shared.schema.features)
        if header.get("named", True):
            self.feature_names_in_ = np.array(shared.schema.features, object)
        if classes is not None:
            named = header.get("classes", classes)
            self.classes_ = np.array(named, header.get("classes_dtype"))
        self.history_ = {
            name.removeprefix("history/"): values
            for name, values in saved.arrays.items()
            if name.startswith("history/")
        }
        self._prior_units = shared.scaler or _units(shared.schema, "none", [])
        if "prior_units" in saved.arrays:
            target = saved.arrays["prior_target"].tolist()
            self._prior_units = Scaler(*saved.arrays["prior_units"], *target)
        self._set(shared, list(saved.models), set(header.get("trained", ())))
        return self

    def _html_repr(self) -> str:
        return str(estimator_html_repr(self)) + words.clients_table(self)


def _units(schema: Schema, how: str, samples: list[Samples]) -> Scaler:
    """Return the units of all clients together, or those of the table itself."""
    if how == "none":
        width = len(schema.features)
        return Scaler(np.zeros(width), np.ones(width), 0.0, 1.0)
    return fit_scaler(samples, labels=schema.classes is not None)


def _plain(value: Any) -> Any:
    """Parameters that JSON does not know: NumPy's numbers; of a generator, that there was one."""
    return value.item() if isinstance(value, np.generic) else None
