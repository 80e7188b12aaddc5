"""Clients who join with a few rows: folds for scikit-learn's tools, and what a newcomer may expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import _safe_indexing, check_random_state

from pacpfl.client import Name
from pacpfl.errors import InputError
from pacpfl.estimators.base import FederatedEstimator, rows_of, taken_out


class Newcomer(NamedTuple):
    """A client of a fold: the rows it brings, and those it is asked about."""

    name: Name
    own: np.ndarray
    rest: np.ndarray


class NewClientSplit(BaseCrossValidator):  # type: ignore[misc]
    """Folds of clients of whom a few rows are known: each client is asked about its other rows once.

    Unlike `LeaveOneGroupOut`, which knows nothing of a client, this measures what the client may expect
    who joins with some rows. In scikit-learn's tools these rows are part of the training;
    `new_client_scores` keeps them out of it, as a client who joins later would.

    Parameters
    ----------
    rows : int, default=10
        Rows of each client of a fold that are known.
    n_splits : int or None, default=5
        Folds; None makes every client a fold of its own.
    shuffle : bool, default=True
        Whether the known rows are drawn; if not they are the client's first, as in the order of time.
    random_state : int, RandomState instance or None, default=None
        Seed of what is drawn.
    """

    # Splits ask for groups wherever metadata are routed, as GroupKFold does.
    __metadata_request__split: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(
        self,
        rows: int = 10,
        n_splits: int | None = 5,
        *,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.rows, self.n_splits = rows, n_splits
        self.shuffle, self.random_state = shuffle, random_state

    def get_n_splits(
        self, X: object = None, y: object = None, groups: ArrayLike | None = None
    ) -> int:
        """Return the number of folds; without `n_splits` that of the clients, so it needs groups."""
        return self.n_splits or len(set(np.asarray(groups, object).tolist()))

    def split(
        self, X: object, y: object = None, groups: ArrayLike | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each fold the rows to train on and the rows to ask about.

        Parameters
        ----------
        X, y : object
            Not used.
        groups : array-like of shape (n_samples,)
            The client of every row.

        Yields
        ------
        train, test : ndarray
            Numbers of rows.
        """
        for others, fold in self.folds(groups):
            train = np.concatenate([others, *(newcomer.own for newcomer in fold)])
            yield np.sort(train), np.sort(np.concatenate([newcomer.rest for newcomer in fold]))

    def folds(self, groups: ArrayLike | None) -> Iterator[tuple[np.ndarray, list[Newcomer]]]:
        """Yield for each fold the rows of all other clients, and its newcomers."""
        if groups is None:
            raise InputError("NewClientSplit needs groups: the client of every row; give them.")
        random, rows = check_random_state(self.random_state), rows_of(groups, len(list(groups)))  # type: ignore[arg-type]
        clients = [name for name in rows if len(rows[name]) > self.rows]
        count = self.n_splits or len(clients)
        if not 0 < count <= len(clients) or len(rows) < 2:
            raise InputError(
                f"{len(clients)} of {len(rows)} clients have more than {self.rows} rows, too few for "
                f"{count} folds; lower rows or n_splits."
            )
        order = random.permutation(len(clients)) if self.shuffle else np.arange(len(clients))
        for places in np.array_split(order, count):
            fold = []
            for name in (clients[place] for place in places):
                own = random.permutation(rows[name]) if self.shuffle else rows[name]
                fold.append(Newcomer(name, np.sort(own[: self.rows]), np.sort(own[self.rows :])))
            new = {newcomer.name for newcomer in fold}
            yield np.concatenate([own for name, own in rows.items() if name not in new]), fold


def new_client_scores(
    estimator: FederatedEstimator,
    X: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    rows: int = 10,
    n_splits: int | None = 5,
    shuffle: bool = True,
    random_state: Any = None,
) -> pd.DataFrame:
    """Measure what a client may expect who joins after the training with a few rows.

    For each fold the priors are learned from all other clients; then every client of the fold is
    personalised from `rows` of its rows and measured on the rest.

    Parameters
    ----------
    estimator : PACPFLRegressor or PACPFLClassifier
        It stays as it is: copies of it are fitted.
    X, y : array-like
        Rows of all clients and their targets.
    groups : array-like of shape (n_samples,), optional
        The client of every row; needless where the estimator has a `group_column`.
    rows, n_splits, shuffle, random_state
        As of `NewClientSplit`.

    Returns
    -------
    pandas.DataFrame
        A row for each client: its name, the rows it brought, the rows it was measured on, and the
        measures of `pacpfl evaluate`, in the target's units.
    """
    if groups is None and estimator.group_column is not None:
        groups = taken_out(X, estimator.group_column)[1]
    found = []
    for others, fold in NewClientSplit(
        rows, n_splits, shuffle=shuffle, random_state=random_state
    ).folds(groups):
        model = clone(estimator).fit(*_chosen(X, y, groups, others))
        for name, own, rest in fold:
            model.personalize(*_chosen(X, y, groups, own)[:2], group=name)
            x, targets, _ = _chosen(X, y, groups, rest)
            measured = model.measure(x, targets, group=name)
            found.append({"client": name, "rows": len(own), "asked": len(rest), **measured})
    return pd.DataFrame(found)


def _chosen(X: Any, y: Any, groups: Any, rows: np.ndarray) -> tuple[Any, Any, Any]:
    """Return some rows of each."""
    return _safe_indexing(X, rows), _safe_indexing(y, rows), np.asarray(groups, object)[rows]
