"""What the regressor and the classifier share: training with groups, clients, and their own models.

The estimators hold no mathematics. They turn tables and groups into a federation, train it
(`engine.simulate.train`), condition the particles on a client's rows (`personal.personal_model`) and
turn what the model says back into the user's units. A client's model is made when it is first asked
for, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from pacpfl.data.standardize import Scaler
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client
from pacpfl.engine.simulate import train
from pacpfl.estimators import persistence, words
from pacpfl.estimators.clients import (
    EVERYBODY,
    Name,
    Owner,
    client_name,
    client_names,
    make_scaler,
    no_scaler,
    rows_of,
)
from pacpfl.estimators.errors import InvalidInput, as_invalid_input
from pacpfl.estimators.programs import Question, answered, conditioned, room
from pacpfl.estimators.progress import watching
from pacpfl.estimators.settings import (
    LARGEST_FACTOR,
    STANDARDIZE,
    UNSEEN,
    Size,
    check_choice,
    make_config,
    seed_from,
    standardize_default,
)
from pacpfl.methods.pacpfl import PACPFL, State
from pacpfl.personal import PersonalModel
from pacpfl.priors.base import Prior
from pacpfl.studies.build import build_pacpfl
from pacpfl.types import Client, Data, Federation, Samples

KEPT = 128  # models of clients in memory; the others are made again when they are asked for
CHUNK = 1024  # rows predicted at once


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """fit, personalize, update, forget, save and load; subclasses say what is predicted."""

    _standardizes_target: ClassVar[bool]

    @staticmethod
    def _defaults(size: Size) -> dict[str, Any]:
        """What "auto" stands for."""
        raise NotImplementedError

    # Where metadata are routed, groups are asked for without a set_fit_request(groups=True).
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True}
    __metadata_request__score: ClassVar = {"groups": True}

    def _fit(self, x: np.ndarray, y: np.ndarray, groups: Any, classes: int | None) -> Self:
        """Train on checked rows; `y` holds numbers, or class numbers where there are `classes`."""
        name = type(self).__name__
        parameters = self.get_params(deep=False)
        check_choice(name, "standardize", self.standardize, STANDARDIZE)
        check_choice(name, "unseen_groups", self.unseen_groups, UNSEEN)
        rows = rows_of(client_names([EVERYBODY] * len(x) if groups is None else groups, len(x)))
        size = Size(len(rows), len(x), max(map(len, rows.values())), x.shape[1])
        seed = seed_from(name, self.random_state)
        chosen = self.standardize
        self.standardize_ = standardize_default(size) if chosen == "auto" else chosen
        self.config_ = make_config(name, parameters, self._defaults(size), size.clients)
        self.grouped_ = groups is not None
        everything = Samples(x, y)
        if self.standardize_ == "none":
            self._common_scaler = no_scaler(x.shape[1])
        else:
            self._common_scaler = make_scaler(everything, self._standardizes_target)
        self._owners: dict[Name, Owner] = {}
        self._models: dict[Name | None, PersonalModel] = {}
        for client, own in rows.items():
            samples = Samples(x[own], y[own])
            self._owners[client] = Owner(samples, self._scaler_for(samples), True)
        federation = Federation(
            name,
            tuple(Client(str(client), owner.scaled()) for client, owner in self._owners.items()),
            features=tuple(f"x{number}" for number in range(x.shape[1])),
            classes=classes,
        )
        self._train(federation, seed)
        return self

    def _train(self, federation: Federation, seed: int) -> None:
        with self._precision(), as_invalid_input():
            method = build_pacpfl(self.config_, federation.form)
            store = from_clients(federation.existing, roomy=True)
            if self.rounds:
                state = self._trained(method, store, seed)
            else:
                example = first_client(store, self._dtype)
                state = method.init(Keys.of(seed).start(), example)
                self.history_: dict[str, np.ndarray] = {}
        self.prior_: Prior = method.prior
        self.particles_ = np.asarray(state.particles)
        self._draw_seed = np.asarray(state.seed) if method.prior.draws else None
        if not np.isfinite(self.particles_).all():
            raise InvalidInput(
                f"{type(self).__name__}: training did not stay finite; lower learning_rate or tau."
            )

    def _trained(self, method: PACPFL, store: ClientStore, seed: int) -> State:
        config = self.config_
        with watching(self.verbose) as progress:
            trained = train(
                method,
                store,
                rounds=config.train.rounds,
                clients_per_round=config.train.clients_per_round,
                seed=seed,
                dtype=self._dtype,
                matrices_per_client=method.settings.particles * method.prior.matrices,
                progress=progress,
            )
        self.history_ = trained.history
        state: State = trained.state
        return state

    def personalize(self, X: Any, y: Any, group: Name) -> Self:
        """Give a client who took no part in the training its own model, from its rows alone.

        The particles stay as they are: nothing about the client leaves it.
        """
        check_is_fitted(self)
        group = client_name(group)
        if group in self._owners:
            raise InvalidInput(
                f"Client {group!r} has a model already; add rows to it with update, or forget it first."
            )
        samples = Samples(*self._checked_more(X, y))
        self._owners[group] = Owner(samples, self._scaler_for(samples), False)
        return self

    def update(self, X: Any, y: Any, group: Name = EVERYBODY) -> Self:
        """Add rows to what a client knows. Its units stay those of its first rows."""
        check_is_fitted(self)
        group, more = self._known(group), Samples(*self._checked_more(X, y))
        owner = self._owners[group]
        self._owners[group] = replace(owner, samples=owner.samples + more)
        # Padded alike, the larger model needs no new program: faster than factors that grow.
        self._models.pop(group, None)
        return self

    def forget(self, group: Name) -> Self:
        """Drop a client's rows and model. What the particles learned from it stays in them."""
        check_is_fitted(self)
        group = self._known(group)
        self._models.pop(group, None)
        del self._owners[group]
        return self

    @property
    def clients_(self) -> list[Name]:
        """Names of the clients that have a model."""
        check_is_fitted(self)
        return list(self._owners)

    def model(self, group: Name | None = None) -> PersonalModel:
        """A client's own model, in standardised units; of None, the prior without any rows."""
        check_is_fitted(self)
        key = None if group is None else self._known(group)
        if key not in self._models:
            while len(self._models) >= KEPT:
                self._models.pop(next(iter(self._models)))
            width = self.n_features_in_
            nothing = Samples(np.zeros((0, width)), np.zeros(0))
            samples = nothing if key is None else self._owners[key].scaled()
            with self._precision():
                data = self._data(samples)
                self._check_room(data, key)
                self._models[key] = conditioned(
                    self.prior_,
                    self.config_.personal.weights,
                    self.particles_,
                    data,
                    self.config_.train.temperature,
                    self._draw_seed,
                )
        return self._models[key]

    def _ask(self, question: Question, X: Any, groups: Any, *arguments: Any) -> np.ndarray:
        """What `question` makes of every row's prediction, by its client's model; rows are last."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        whole = None
        for name, rows in self._rows(groups, len(x)).items():
            scaler = self._common_scaler if name is None else self._owners[name].scaler
            answer = self._answer(
                question, name, (x[rows] - scaler.x_mean) / scaler.x_std, arguments
            )
            answer = question.in_units(answer, scaler)
            if not np.isfinite(answer).all():
                raise InvalidInput(
                    f"The prediction for client {name!r} is not finite; give inputs closer to those it "
                    'was fitted on, or fit with precision="float64".'
                )
            if whole is None:
                whole = np.full((*answer.shape[:-1], len(x)), np.nan)
            whole[..., rows] = answer
        assert whole is not None
        return whole

    def _answer(
        self, question: Question, name: Name | None, x: np.ndarray, arguments: tuple[Any, ...]
    ) -> np.ndarray:
        """One client's answer in standardised units, chunk by chunk."""
        model, parts = self.model(name), []
        with self._precision():
            given: list[np.ndarray] = [np.asarray(argument, self._dtype) for argument in arguments]
            for start in range(0, len(x), CHUNK):
                some = x[start : start + CHUNK]
                padded: np.ndarray = np.zeros((room(len(some)), x.shape[1]), self._dtype)
                padded[: len(some)] = some
                answer = answered(question.of, model, padded, *given)
                parts.append(np.asarray(answer)[..., : len(some)].astype(np.float64))
        return np.concatenate(parts, axis=-1)

    def _rows(self, groups: Any, count: int) -> Mapping[Any, np.ndarray]:
        """The rows of each client who is asked; None stands for those whom nobody knows."""
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
        """Rows of one client, checked against what was fitted."""
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

    def _scaler_for(self, samples: Samples) -> Scaler:
        if self.standardize_ != "client":
            return self._common_scaler
        return make_scaler(samples, self._standardizes_target, self._common_scaler)

    def _data(self, samples: Samples) -> Data:
        """Padded to one of few sizes, so that clients share compiled programs."""
        rows = room(len(samples))
        x: np.ndarray = np.zeros((rows, self.n_features_in_), self._dtype)
        y: np.ndarray = np.zeros(rows, self._dtype)
        x[: len(samples)], y[: len(samples)] = samples.x, samples.y
        return Data(*jax.device_put((x, y, np.arange(rows) < len(samples))))

    def _check_room(self, data: Data, group: Name | None) -> None:
        config, rows = self.config_, data.mask.size
        matrices = config.train.particles * self.prior_.matrices
        if matrices * rows**2 * np.dtype(self._dtype).itemsize > LARGEST_FACTOR:
            raise InvalidInput(
                f"Client {group!r} has {rows} rows, too many for exact Gaussian processes with "
                f"{config.train.particles} particles; divide it into several clients, give it fewer "
                "rows, or lower particles."
            )

    @property
    def _dtype(self) -> type:
        return np.float64 if self.config_.run.precision == "float64" else np.float32

    def _precision(self) -> Any:
        return jax.enable_x64(self.config_.run.precision == "float64")

    def save(self, path: Any, groups: Any = None) -> None:
        """One file, without pickle: particles, parameters, and the rows of all clients or of `groups`.

        A model of a Gaussian process is made of its client's rows, so they are in the file. With
        groups=[] it holds what the server knows: the particles.
        """
        check_is_fitted(self)
        chosen = self.clients_ if groups is None else [self._known(group) for group in groups]
        persistence.save(self, path, chosen)

    @classmethod
    def load(cls, path: Any) -> Self:
        """The estimator that `save` wrote."""
        return persistence.load(cls, path)

    def __getstate__(self) -> dict[str, Any]:
        """Models are made again from rows and particles: copies for other processes stay small."""
        state = super().__getstate__()
        return state | {"_models": {}} if "_models" in state else state

    def _html_repr(self) -> str:
        return str(estimator_html_repr(self)) + words.clients_table(self)
