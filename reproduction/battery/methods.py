"""The methods of the battery: PAC-PFL with no argument, and what one would try first instead.

Each takes a task and a seed and returns the predictive distributions of its tests, by group: an object
like those of scipy.stats for numbers, probabilities for classes. What a new client brings is known to
every method: PAC-PFL and the mixed model personalise with it, as one would in a federation; the others
have none and are fitted once, on all clients' rows together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import qr
from scipy.optimize import fmin_l_bfgs_b
from scipy.special import ndtr, ndtri
from scipy.stats import norm, t
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Hyperparameter,
    Kernel,
    WhiteKernel,
)
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import StratifiedKFold

from pacpfl import PACPFLClassifier, PACPFLRegressor, predictive
from reproduction.battery.score import LEAST
from reproduction.battery.task import Rows, Task

Said = dict[str, Any]  # group -> Predictive, or [n, classes]
FITTED = 400  # rows that a GP's hyper-parameters are fitted to; classes need several GPs
CONDITIONED = 1500  # rows that a GP knows when it predicts


# ---------------------------------------------------------------------------------------- PAC-PFL


@dataclass(frozen=True)
class Learned:
    """PAC-PFL's mixtures, [n rows]."""

    mixture: Any  # weights [n, c], means and stds [n, c, 1]

    def mean(self) -> np.ndarray:
        return self._ask(predictive.mean)

    def logpdf(self, y: np.ndarray) -> np.ndarray:
        return self._ask(predictive.log_density, y[:, None])

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._ask(predictive.cdf, y[:, None])

    def ppf(self, levels: np.ndarray) -> np.ndarray:
        return self._ask(predictive.quantiles, levels[:, 0])

    def _ask(self, question: Callable[..., Any], *arguments: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(question(self.mixture, *arguments))[..., 0]


def pacpfl(task: Task, seed: int) -> Said:
    """Return what untouched settings predict: fit, personalise the new clients, ask."""
    kind = PACPFLRegressor if task.classes is None else PACPFLClassifier
    model = kind(random_state=seed)
    model.fit(task.train.x, task.train.y, groups=task.train.clients)
    for client, own in task.given.by_client():
        model.personalize(task.given.x[own], task.given.y[own], group=client)
    said: Said = {}
    for group, rows in task.tests.items():
        if task.classes is not None:
            found = model.predict_proba(rows.x, groups=rows.clients)
            said[group] = every_class(found, model.classes_, task.classes)
            continue
        mixture = model.predict_distribution(rows.x, groups=rows.clients)
        parts = {"means": mixture.means[..., None], "stds": mixture.stds[..., None]}
        said[group] = Learned(mixture._replace(**parts))
    return said


def every_class(found: np.ndarray, present: np.ndarray, classes: int) -> np.ndarray:
    """Return probabilities of all classes, where a method has met only those `present`."""
    whole = np.full((len(found), classes), LEAST)
    whole[:, np.asarray(present, int)] = found
    return whole / whole.sum(1, keepdims=True)


# ------------------------------------------------------------------------------------ mixed models


def mixed(task: Task, seed: int) -> Said:
    """Return a linear mixed model's predictions: random intercepts, and slopes where that converges.

    Of a client with known rows (X, Z, y) and variances Psi, sigma^2 the effects are Gaussian:
    cov M = Psi (I + Z'Z Psi / sigma^2)^-1, mean M Z'(y - X beta) / sigma^2.
    """
    moved, shift, scale = task.standardised()
    kept = independent(design(moved.train.x))
    beta, psi, variance, unsure = fit_mixed(moved.train, kept)
    effects = len(psi)
    posterior: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for rows in (moved.train, moved.given):
        for client, own in rows.by_client():
            x = design(rows.x[own])
            z = x[:, :effects]
            within = psi @ np.linalg.inv(np.eye(effects) + z.T @ z @ psi / variance)
            mean = within @ z.T @ (rows.y[own] - x[:, kept] @ beta) / variance
            posterior[client] = mean, within
    said: Said = {}
    for group, rows in moved.tests.items():
        x = design(rows.x)
        mean = x[:, kept] @ beta
        spread = variance + np.einsum("ni,ij,nj->n", x[:, kept], unsure, x[:, kept])
        for client, own in rows.by_client():
            z = x[own][:, :effects]
            mean[own] += z @ posterior[client][0]
            spread[own] += np.einsum("ni,ij,nj->n", z, posterior[client][1], z)
        said[group] = norm(shift + scale * mean, scale * np.sqrt(spread))
    return said


def design(x: np.ndarray) -> np.ndarray:
    """Return the columns of a linear model: an intercept, then the features."""
    return np.column_stack([np.ones(len(x)), x])


def independent(x: np.ndarray) -> np.ndarray:
    """Return the numbers of columns that are not combinations of others."""
    _, r, order = qr(x, mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    return np.sort(order[: len(size)][size > 1e-6 * size[0]])


def fit_mixed(rows: Rows, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Return fixed effects, covariance of the random ones, noise, and covariance of the fixed ones."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    x = design(rows.x)
    for effects in (2, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = MixedLM(rows.y, x[:, kept], rows.clients, exog_re=x[:, :effects])
                found = model.fit(method="powell")  # its gradients stop at worse places
                beta, psi, variance = found.fe_params, found.cov_re, float(found.scale)
            except (LinAlgError, ValueError):
                continue
        if found.converged and np.isfinite([found.llf, *beta, *np.ravel(psi), variance]).all():
            values, vectors = np.linalg.eigh(np.asarray(psi))
            psi = (vectors * np.maximum(values, 0.0)) @ vectors.T  # on the edge it may be below
            return np.asarray(beta), psi, variance, doubt(rows, kept, psi, variance)
    beta = np.linalg.lstsq(x[:, kept], rows.y, rcond=None)[0]
    variance = float(np.mean((rows.y - x[:, kept] @ beta) ** 2))
    psi = np.zeros((1, 1))
    return beta, psi, variance, doubt(rows, kept, psi, variance)


def doubt(rows: Rows, kept: np.ndarray, psi: np.ndarray, variance: float) -> np.ndarray:
    r"""Return the fixed effects' covariance, $(\sum_i X_i' (\sigma^2 I + Z_i \Psi Z_i')^{-1} X_i)^{-1}$."""
    total = np.zeros((len(kept), len(kept)))
    for _, own in rows.by_client():
        x = design(rows.x[own])
        z = x[:, : len(psi)]
        total += x[:, kept].T @ np.linalg.solve(
            variance * np.eye(len(own)) + z @ psi @ z.T, x[:, kept]
        )
    return np.linalg.inv(total)


def mixed_classes(task: Task, seed: int) -> Said:
    """Return a logistic model with random intercepts, by penalised likelihood.

    A client's effect is N(0, spread^2); the spread is chosen by cross-validation.
    """
    weak = 100.0  # variance of the fixed effects
    grid = [(spread / np.sqrt(weak), weak) for spread in (0.1, 0.3, 1.0, 2.0)]
    return logistic(task, seed, grid)


def dummies_classes(task: Task, seed: int) -> Said:
    """Return ridge logistic regression with a column for each client."""
    return logistic(task, seed, [(1.0, strength) for strength in (0.01, 0.1, 1.0, 10.0)])


def logistic(task: Task, seed: int, grid: list[tuple[float, float]]) -> Said:
    """Return logistic regression with the best of the (scale of the clients' columns, C) given."""
    moved, _, _ = task.standardised()
    names, classes = np.unique(moved.known.clients), task.classes or 0

    def probabilities(known: Rows, asked: Rows, scale: float, strength: float) -> np.ndarray:
        x, at = (
            np.column_stack([rows.x, scale * (rows.clients[:, None] == names)])
            for rows in (known, asked)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of more steps than it may take
            model = LogisticRegression(C=strength, max_iter=300).fit(x, known.y)
        return every_class(model.predict_proba(at), model.classes_, classes)

    def loss(scale: float, strength: float) -> float:
        total = 0.0
        folds = StratifiedKFold(3, shuffle=True, random_state=seed)
        for ours, theirs in folds.split(moved.known.x, moved.known.y):
            rows = moved.known.take(theirs)
            found = probabilities(moved.known.take(ours), rows, scale, strength)
            total -= float(np.log(found[np.arange(len(rows.y)), rows.y]).sum())
        return total

    best = min(grid, key=lambda choice: loss(*choice))
    return {g: probabilities(moved.known, rows, *best) for g, rows in moved.tests.items()}


# ----------------------------------------------------------------------------------------- ridge


def dummies(task: Task, seed: int) -> Said:
    """Return Bayesian ridge regression with a column for each client."""
    moved, shift, scale = task.standardised()
    known = moved.known
    names = np.unique(known.clients)

    def columns(rows: Rows) -> np.ndarray:
        return np.column_stack([rows.x, rows.clients[:, None] == names])

    model = BayesianRidge().fit(columns(known), known.y)
    said: Said = {}
    for group, rows in moved.tests.items():
        mean, std = model.predict(columns(rows), return_std=True)
        said[group] = norm(shift + scale * mean, scale * std)
    return said


def ridge(task: Task, seed: int) -> Said:
    """Return each client's own Bayesian ridge regression, whose strength its evidence chooses.

    With w ~ N(0, sigma^2 diag(1 / strength)) and sigma^2 ~ inverse gamma (1, 0.1) in units of all
    training rows, the predictive is Student's t with 2 + n degrees of freedom.
    """
    moved, shift, scale = task.standardised()
    own = dict((*pairs(moved.train), *pairs(moved.given)))
    said: Said = {}
    for group, rows in moved.tests.items():
        place, width, freedom = (np.zeros(len(rows.y)) for _ in range(3))
        for client, asked in rows.by_client():
            fits = [student(*own[client], 10.0**power) for power in range(-2, 4)]
            _, mean, cov, a, b = max(fits, key=lambda fit: fit[0])
            x = design(rows.x[asked])
            place[asked], freedom[asked] = x @ mean, 2 * a
            width[asked] = np.sqrt(b / a * (1 + np.einsum("ni,ij,nj->n", x, cov, x)))
        said[group] = t(freedom, shift + scale * place, scale * width)
    return said


def pairs(rows: Rows) -> list[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Return each client with its features and targets."""
    return [(client, (rows.x[own], rows.y[own])) for client, own in rows.by_client()]


def student(
    features: np.ndarray, y: np.ndarray, strength: float
) -> tuple[float, np.ndarray, np.ndarray, float, float]:
    """Return log evidence (up to a constant), mean and covariance / sigma^2, and a, b of sigma^2."""
    x = design(features)
    prior = np.diag([1e-3, *[strength] * (x.shape[1] - 1)])  # the intercept is nearly free
    precision = prior + x.T @ x
    cov = np.linalg.inv(precision)
    mean = cov @ x.T @ y
    a, b = 1 + len(y) / 2, 0.1 + max(0.0, float(y @ y - mean @ precision @ mean)) / 2
    determinants = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]
    return determinants / 2 - a * np.log(b), mean, cov, a, b


def ridge_classes(task: Task, seed: int) -> Said:
    """Return each client's own ridge logistic regression, with one row's worth of all clients' shares."""
    moved, _, _ = task.standardised()
    classes = task.classes or 0
    shares = np.bincount(moved.train.y, minlength=classes) / len(moved.train.y)
    own = dict((*pairs(moved.train), *pairs(moved.given)))
    said: Said = {}
    for group, rows in moved.tests.items():
        found = np.zeros((len(rows.y), classes))
        for client, asked in rows.by_client():
            x, y = own[client]
            said_here = np.bincount(y, minlength=classes) / len(y)
            if len(np.unique(y)) > 1:
                model = LogisticRegression(max_iter=300).fit(x, y)
                said_here = every_class(model.predict_proba(rows.x[asked]), model.classes_, classes)
            found[asked] = (len(y) * said_here + shares) / (len(y) + 1)
        said[group] = found
    return said


# ----------------------------------------------------------------------------------------- trees


@dataclass(frozen=True)
class TwoPieces:
    """Half a Gaussian below the median and half of another above it, and a mean from elsewhere."""

    average: np.ndarray
    median: np.ndarray
    below: np.ndarray
    above: np.ndarray

    def mean(self) -> np.ndarray:
        return self.average

    def _z(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        std = np.where(y < self.median, self.below, self.above)
        return (y - self.median) / std, std

    def logpdf(self, y: np.ndarray) -> np.ndarray:
        z, std = self._z(y)
        return np.asarray(norm.logpdf(z) - np.log(std))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(ndtr(self._z(y)[0]))

    def ppf(self, levels: np.ndarray) -> np.ndarray:
        z = ndtri(levels)
        return np.asarray(self.median + z * np.where(z < 0, self.below, self.above))


def trees(task: Task, seed: int, objective: str, **more: Any) -> Callable[[Rows], np.ndarray]:
    """Return what LightGBM says of rows; a client is a category, and a fifth of the rows stops it."""
    import lightgbm

    known = task.known
    names = np.unique(known.clients)

    def data(rows: Rows) -> np.ndarray:
        return np.column_stack([np.searchsorted(names, rows.clients), rows.x])

    settings = {
        "objective": objective, "learning_rate": 0.05, "num_leaves": 15, "num_threads": 1,
        "min_data_in_leaf": 5 if len(known.y) < 300 else 20, "verbose": -1, "seed": seed,
        "deterministic": True, "force_row_wise": True, **more,
    }  # fmt: skip

    def dataset(which: np.ndarray) -> Any:
        return lightgbm.Dataset(data(known.take(which)), known.y[which], categorical_feature=[0])

    order = np.random.default_rng(seed).permutation(len(known.y))
    stop: list[Callable[..., Any]] = [lightgbm.early_stopping(20, verbose=False)]
    held, rest = dataset(order[: len(order) // 5]), dataset(order[len(order) // 5 :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = lightgbm.train(settings, rest, 500, valid_sets=[held], callbacks=stop)
        model = lightgbm.train(settings, dataset(order), max(1, first.best_iteration))
    return lambda rows: np.asarray(model.predict(data(rows)))


def boosted(task: Task, seed: int) -> Said:
    """Return LightGBM's mean, and the Gaussian halves that go through its quantiles."""
    moved, shift, scale = task.standardised()
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    average = trees(moved, seed, "regression")
    fits = [trees(moved, seed, "quantile", alpha=level) for level in levels]
    said: Said = {}
    for group, rows in moved.tests.items():
        at = np.sort([fit(rows) for fit in fits], axis=0)
        below = ((at[2] - at[0]) / ndtri(0.95) + (at[2] - at[1]) / ndtri(0.75)) / 2
        above = ((at[4] - at[2]) / ndtri(0.95) + (at[3] - at[2]) / ndtri(0.75)) / 2
        spread = (scale * np.maximum(part, 0.05) for part in (below, above))
        middle = (shift + scale * average(rows), shift + scale * at[2])
        said[group] = TwoPieces(*middle, *spread)
    return said


def boosted_classes(task: Task, seed: int) -> Said:
    """Return LightGBM's probabilities."""
    fit = trees(task, seed, "multiclass", num_class=task.classes)
    return {group: fit(rows) for group, rows in task.tests.items()}


# ---------------------------------------------------------------------------- Gaussian processes


class OfFeatures(Kernel):  # type: ignore[misc]
    """A kernel of the features; the number of the client, which is the first column, stays out of it.

    With `within` it is zero between rows of two clients.
    """

    def __init__(self, kernel: Kernel, within: bool = False) -> None:
        self.kernel, self.within = kernel, within

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        return [h._replace(name=f"kernel__{h.name}") for h in self.kernel.hyperparameters]

    @property
    def theta(self) -> np.ndarray:
        return self.kernel.theta

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        self.kernel.theta = theta

    @property
    def bounds(self) -> np.ndarray:
        return self.kernel.bounds

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        other = X if Y is None else Y
        same = (X[:, :1] == other[:, 0]).astype(float) if self.within else np.ones(1)
        if eval_gradient:
            value, gradient = self.kernel(X[:, 1:], eval_gradient=True)
            return value * same, gradient * same[..., None]
        return self.kernel(X[:, 1:], None if Y is None else Y[:, 1:]) * same

    def diag(self, X: Any) -> Any:
        return self.kernel.diag(X[:, 1:])

    def is_stationary(self) -> bool:
        return False


def minimise(objective: Any, start: Any, bounds: Any) -> tuple[np.ndarray, float]:
    """Return the best hyper-parameters that thirty steps of L-BFGS find."""
    best, value, _ = fmin_l_bfgs_b(objective, start, bounds=bounds, maxiter=30)
    return best, float(value)


def chosen_rows(task: Task, count: int, seed: int) -> Rows:
    """Return known rows, at most `count`: every client keeps about the same share of its own."""
    random, known = np.random.default_rng(seed), task.known
    if len(known.y) <= count:
        return known
    rank = np.zeros(len(known.y))
    for _, own in known.by_client():
        rank[own] = (random.permutation(len(own)) + random.random(len(own))) / len(own)
    return known.take(np.argsort(rank, kind="stable")[:count])


def process(task: Task, seed: int) -> Said:
    """Return a hierarchical GP: what all clients share, and each client's own line and function."""
    moved, shift, scale = task.standardised()
    names = np.unique(moved.known.clients)

    def data(rows: Rows) -> np.ndarray:
        return np.column_stack([np.searchsorted(names, rows.clients), rows.x])

    size = moved.train.x.shape[1]
    wide = (1e-4, 1e3)
    shared = ConstantKernel(0.5, wide) * RBF(np.full(size, np.sqrt(size)), (0.05, 1e3))
    shared += ConstantKernel(0.5, wide) * DotProduct(1.0, "fixed")
    own = ConstantKernel(0.1, wide) * RBF(np.sqrt(size), (0.05, 1e3))
    own += ConstantKernel(0.1, wide) * DotProduct(1.0, "fixed")
    kernel = OfFeatures(shared) + OfFeatures(own, within=True) + WhiteKernel(0.1, (1e-6, 10.0))
    few, many = chosen_rows(moved, FITTED, seed), chosen_rows(moved, CONDITIONED, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hyper-parameters at their bounds
        fitted = GaussianProcessRegressor(kernel, optimizer=minimise).fit(data(few), few.y)
        model = GaussianProcessRegressor(fitted.kernel_, optimizer=None).fit(data(many), many.y)
        found = {g: model.predict(data(rows), return_std=True) for g, rows in moved.tests.items()}
    return {g: norm(shift + scale * mean, scale * std) for g, (mean, std) in found.items()}


def process_classes(task: Task, seed: int) -> Said:
    """Return a GP classifier with what all clients share and a level of each, one against the rest."""
    moved, _, _ = task.standardised()
    names = np.unique(moved.known.clients)

    def data(rows: Rows) -> np.ndarray:
        return np.column_stack([np.searchsorted(names, rows.clients), rows.x])

    wide = (1e-3, 1e3)
    shared = ConstantKernel(1.0, wide) * RBF(np.sqrt(moved.train.x.shape[1]), (0.05, 1e3))
    kernel = OfFeatures(shared) + OfFeatures(ConstantKernel(0.5, wide), within=True)
    few = chosen_rows(moved, FITTED, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GaussianProcessClassifier(kernel, optimizer=minimise).fit(data(few), few.y)
        found = {g: model.predict_proba(data(rows)) for g, rows in moved.tests.items()}
    classes = task.classes or 0
    return {g: every_class(part, model.classes_, classes) for g, part in found.items()}


# -------------------------------------------------------------------------------------- registry


@dataclass(frozen=True)
class Method:
    """A method by its title, for numbers and for classes, and the package that it needs."""

    title: str
    numbers: Callable[[Task, int], Said]
    classes: Callable[[Task, int], Said]
    package: str = "sklearn"

    def predict(self, task: Task, seed: int) -> Said:
        """Return the predictive distributions of a task's tests."""
        return (self.numbers if task.classes is None else self.classes)(task, seed)


OURS = "pacpfl"
METHODS = {
    OURS: Method("PAC-PFL", pacpfl, pacpfl),
    "mixed": Method("mixed model", mixed, mixed_classes, "statsmodels"),
    "lightgbm": Method("LightGBM", boosted, boosted_classes, "lightgbm"),
    "ridge": Method("ridge per client", ridge, ridge_classes),
    "dummies": Method("ridge with dummies", dummies, dummies_classes),
    "gp": Method("hierarchical GP", process, process_classes),
}
