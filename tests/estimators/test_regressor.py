"""The regressor answers in the user's units; `test_defaults` compares it with a run, to the bit."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import r2_score

from pacpfl import PACPFLRegressor, predictive
from pacpfl.personal import personal_model
from pacpfl.types import Data

pytestmark = pytest.mark.filterwarnings("ignore:PACPFL.* is fitted without groups")

SIZES = {"north": 9, "south": 6, "east": 7}
ROUNDS, RATE, SEED = 6, 0.05, 11
OPTIONS = {
    "particles": 2,
    "rounds": ROUNDS,
    "learning_rate": RATE,
    "hyper_std": 0.7,
    "tau": 0.5,
    "mean": "linear",
    "kernel": "ard",
    "precision": "float64",
    "random_state": SEED,
    "standardize": "client",
    "settings": {
        "train.schedule": "constant", "prior.output_scale": "fixed", "train.temperature": 0.8
    },
}  # fmt: skip


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    groups = np.repeat(list(SIZES), list(SIZES.values()))
    x = random.normal(2.0, 3.0, (len(groups), 2))
    y = 50 + 4 * np.sin(x[:, 0]) + 2 * x[:, 1] * (groups == "south") + random.normal(size=len(x))
    return x, y, groups


AT = np.random.default_rng(6).normal(2.0, 3.0, (5, 2))


@pytest.fixture(scope="module")
def fitted() -> PACPFLRegressor:
    x, y, groups = table()
    return PACPFLRegressor(**OPTIONS).fit(x, y, groups)


def test_a_noise_that_depends_on_the_features_is_found():
    """Twelve clients with noise of 0.05 on the left and 0.5 on the right of zero."""
    rng = np.random.default_rng(8)
    x = rng.uniform(-1, 1, (600, 1))
    y = 2 * x[:, 0] + np.where(x[:, 0] < 0, 0.05, 0.5) * rng.normal(size=600)
    groups, at = np.repeat(np.arange(12), 50), np.array([[-0.7], [0.7]])
    options = {"mean": "linear", "kernel": "ard", "rounds": 200, "particles": 2, "random_state": 0}
    model = PACPFLRegressor(**options, noise_model="mlp").fit(x, y, groups)
    left, right = model.predict(at, [3, 3], return_std=True)[1]
    assert left < 0.11 and 0.35 < right < 0.75


def bent(z: np.ndarray) -> np.ndarray:
    """A target that falls far below what is foretold, and never rises far above it."""
    return 300 + 50 * np.sinh(np.arcsinh(z) - 0.9)


def skewed_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.uniform(-1, 1, (600, 1))
    return x, bent(x[:, 0] + 0.6 * rng.normal(size=600)), np.repeat(np.arange(12), 50)


@pytest.fixture(scope="module")
def warped() -> PACPFLRegressor:
    options = {"mean": "linear", "kernel": "ard", "rounds": 300, "particles": 2, "random_state": 0}
    settings = {"prior.noise_spread": 1.0}
    return PACPFLRegressor(**options, warp="sinh-arcsinh", settings=settings).fit(*skewed_table())


def test_a_skewed_target_is_found(warped):
    at = np.array([[-0.5], [0.5]])
    levels = np.array([0.05, 0.5, 0.95])
    every = [warped.predict_quantiles(at, levels, [client] * 2) for client in range(12)]
    found = np.mean(every, axis=0)  # each has seen fifty rows, and leans towards them
    expected = bent(at + 0.6 * stats.norm.ppf(levels))
    np.testing.assert_allclose(found, expected, atol=15)  # they span 213
    low, middle, high = found[0]
    assert middle - low > 1.3 * (high - middle)
    assert (warped.predict(at, [4, 4]) < every[4][:, 1]).all()


WARPED_AT = np.array([[-0.5], [0.1], [0.5]])


@pytest.mark.parametrize(
    ("kind", "at", "groups", "atol"),
    [("fitted", AT, ["east"] * 5, 1e-10), ("warped", WARPED_AT, [4, 7, 4], 1e-4)],
)
def test_an_answer_is_whole_in_the_targets_units(kind, at, groups, atol, request):
    """Moments, quantiles and draws from weights, means, stds and warps, as documented."""
    model, levels = request.getfixturevalue(kind), np.array([0.01, 0.1, 0.5, 0.9])
    weights, means, stds, *warps = map(np.asarray, model.predict_distribution(at, groups))
    assert weights.shape == (len(at), 2)
    quantiles = model.predict_quantiles(at, levels, groups)
    draws = model.sample_y(at, 4000, random_state=1, groups=groups)
    mean, std = model.predict(at, groups, return_std=True)

    def below(row: int, y: np.ndarray) -> np.ndarray:
        z = y[:, None]
        if warps:
            c, log_l, e, log_d = warps[0][row].T
            z = np.sinh(np.exp(log_d) * np.arcsinh((z - c) / np.exp(log_l)) - e)
        return (weights[row] * stats.norm.cdf(z, means[row], stds[row])).sum(1)

    for row in range(len(at)):
        np.testing.assert_allclose(below(row, quantiles[row]), levels, atol=atol)
        assert stats.kstest(below(row, draws[row]), "uniform").pvalue > 1e-3
        np.testing.assert_allclose(mean[row], draws[row].mean(), atol=5 * std[row] / np.sqrt(4000))
        np.testing.assert_allclose(std[row], draws[row].std(), rtol=0.1)
    if not warps:
        np.testing.assert_allclose(mean, (weights * means).sum(1), rtol=1e-12)
        second = (weights * (stds**2 + means**2)).sum(1)
        np.testing.assert_allclose(std, np.sqrt(second - mean**2), rtol=1e-8)


def test_the_calibration_of_a_warped_target_is_drawn(warped):
    x, y, groups = skewed_table()
    ax = warped.plot_calibration(x, y, groups)
    below = [np.mean(y <= warped.predict_quantiles(x, [q], groups)[:, 0]) for q in (0.2, 0.7)]
    levels, shares = ax.lines[0].get_data()
    np.testing.assert_allclose(np.interp([0.2, 0.7], levels, shares), below, atol=0.02)
    assert float(ax.get_title(loc="left").split()[-1]) < 0.04


def test_every_row_is_answered_by_its_own_client(fitted):
    groups = ["south", "north", "east", "south", "north"]
    mean, std = fitted.predict(AT, groups, return_std=True)
    for row, name in enumerate(groups):
        alone = fitted.predict(AT[[row]], [name], return_std=True)
        assert (mean[row], std[row]) == pytest.approx((alone[0][0], alone[1][0]), rel=1e-12)


@pytest.mark.parametrize("standardize", ["client", "global"])
def test_units_of_the_target_and_of_features_carry_over(standardize):
    x, y, groups = table()
    options = OPTIONS | {"standardize": standardize}
    before = PACPFLRegressor(**options).fit(x, y, groups)
    after = PACPFLRegressor(**options).fit(x * [100, 0.01] + 7, 1000 * y + 3, groups)
    mean, std = before.predict(AT, ["south"] * 5, return_std=True)
    scaled, wider = after.predict(AT * [100, 0.01] + 7, ["south"] * 5, return_std=True)
    np.testing.assert_allclose(scaled, 1000 * mean + 3, rtol=1e-8)
    np.testing.assert_allclose(wider, 1000 * std, rtol=1e-8)


def test_one_client_and_one_particle_is_an_ordinary_gaussian_process():
    x, y, _ = table()
    ours = PACPFLRegressor(
        rounds=0, particles=1, mean="zero", kernel="ard", precision="float64", random_state=2,
        settings={"prior.output_scale": "fixed"},
    ).fit(x, y)  # fmt: skip
    lengths, noise = np.exp(ours.particles_[0, :2]), np.log1p(np.exp(ours.particles_[0, -1]))
    theirs = GaussianProcessRegressor(RBF(lengths), alpha=noise**2, optimizer=None)
    theirs.fit((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std())
    mean, std = theirs.predict((AT - x.mean(0)) / x.std(0), return_std=True)
    found = ours.predict(AT, return_std=True)
    np.testing.assert_allclose(found[0], y.mean() + y.std() * mean, rtol=1e-9)
    np.testing.assert_allclose(found[1], y.std() * np.sqrt(std**2 + noise**2), rtol=1e-9)


def test_training_makes_the_evidence_grow_and_is_reproducible(fitted):
    assert fitted.history_["log_evidence"].shape == (ROUNDS,)
    assert fitted.history_["log_evidence"][-1] > fitted.history_["log_evidence"][0]
    x, y, groups = table()
    order = np.random.default_rng(0).permutation(len(y))
    again = PACPFLRegressor(**OPTIONS).fit(x[order], y[order], groups[order])
    np.testing.assert_allclose(again.particles_, fitted.particles_, rtol=1e-9)
    other = PACPFLRegressor(**OPTIONS | {"random_state": SEED + 1}).fit(x, y, groups)
    assert not np.allclose(other.particles_, fitted.particles_)


def test_score_is_the_share_of_variance_explained(fitted):
    x, y, groups = table()
    assert fitted.score(x, y, groups) == pytest.approx(r2_score(y, fitted.predict(x, groups)))


def test_more_rows_later_equal_all_rows_at_once():
    x, y, groups = table()
    south = groups == "south"
    model = PACPFLRegressor(**OPTIONS | {"rounds": 0}).fit(x[~south], y[~south], groups[~south])
    early, late = np.flatnonzero(south)[:4], np.flatnonzero(south)[4:]
    model.personalize(x[early], y[early], group="south")
    model.predict(AT, ["south"] * 5)  # the model that is there must give way
    model.update(x[late], y[late], group="south")
    with jax.enable_x64(True):
        mean, std = x[early].mean(0), x[early].std(0)
        centre, scale = y[early].mean(), y[early].std()
        data = Data((x[south] - mean) / std, (y[south] - centre) / scale, np.ones(6, bool))
        prior, at = model.prior_, (AT - mean) / std
        answer = partial(personal_model, prior, data=data, temperature=0.8)
        whole = jax.jit(lambda phi: predictive.mean(answer(phi)(at)))
        expected = np.asarray(whole(model.particles_))
    found = model.predict(AT, ["south"] * 5)
    np.testing.assert_allclose(found, centre + scale * expected, rtol=1e-8)


def test_a_client_nobody_knows_is_answered_by_the_prior():
    x, y, groups = table()
    changes = {"rounds": 0, "standardize": "global", "unseen_groups": "prior"}
    model = PACPFLRegressor(**OPTIONS | changes).fit(x, y, groups)
    inputs = (AT - x.mean(0)) / x.std(0)
    means = np.array([inputs @ phi[:2] + phi[2] for phi in model.particles_])
    variances = 1 + np.log1p(np.exp(model.particles_[:, -1])) ** 2
    expected = means.mean(0)
    spread = np.sqrt(variances.mean() + means.var(0))
    for asked in (["west"] * 5, None):
        mean, std = model.predict(AT, asked, return_std=True)
        np.testing.assert_allclose(mean, y.mean() + y.std() * expected, rtol=1e-9)
        np.testing.assert_allclose(std, y.std() * spread, rtol=1e-9)
    mixed = model.predict(AT, ["west", "north", "west", "north", "other"])
    np.testing.assert_allclose(mixed[[0, 2, 4]], model.predict(AT)[[0, 2, 4]])
    np.testing.assert_allclose(mixed[[1, 3]], model.predict(AT, ["north"] * 5)[[1, 3]])
