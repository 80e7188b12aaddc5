"""Maps of probabilities: learned where the rows' evidence is clear, and then everywhere the same map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats
from test_client import LEVELS, rows
from test_client import model as model  # a fixture
from test_client import shared as shared  # a fixture

from pacpfl import PACPFLRegressor, calibration
from pacpfl.calibration import EDGES, OFF, WIDTHS, invert, learn, log_slope, own_shares, recalibrate
from pacpfl.client import ClientModel, Shared, load_model, recalibrated
from pacpfl.config import override
from pacpfl.engine.measure import measure
from pacpfl.types import Prediction


def pits(truth: stats.rv_continuous, clients: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """What a standard normal model says of targets that are not."""
    random = np.random.default_rng(seed)
    return [stats.norm.cdf(truth.rvs(count, random_state=random)) for _ in range(clients)]


WIDE = stats.norm(0, 2)
SOME = own_shares(learn(pits(WIDE, 8, 100)), np.zeros(0))


def test_honest_models_stay_as_they_are_nineteen_times_in_twenty() -> None:
    kept = [len(learn(pits(stats.norm(), 6, 50, seed))) == 0 for seed in range(200)]
    assert np.mean(kept) > 0.95


@pytest.mark.parametrize(("clients", "count"), [(20, 20), (1, 200)])
def test_a_wrong_shape_is_found_and_mended(clients: int, count: int) -> None:
    """Also by the rows of one client alone, as after a private training."""
    spiky = stats.t(1.5, 0, 0.4)
    prior = learn(pits(spiky, clients, count))
    fresh = pits(spiky, 1, 20_000, 1)[0]
    shares = own_shares(prior, np.zeros(0))
    mended = recalibrate(shares, fresh)
    assert (
        stats.kstest(mended, "uniform").statistic < 0.5 * stats.kstest(fresh, "uniform").statistic
    )
    assert log_slope(shares, fresh).mean() > 0.1


def test_a_spell_of_weather_is_no_shape() -> None:
    """Everybody's first rows lie low and the last ones high: no map of one part serves another."""
    random = np.random.default_rng(0)
    drift = np.linspace(-2, 2, 60)
    assert len(learn([stats.norm.cdf(random.normal(drift)) for _ in range(12)])) == 0


def test_clients_who_differ_trust_their_own_rows_more() -> None:
    alike = learn(pits(WIDE, 10, 100)).sum()
    apart = learn(pits(stats.norm(0, 3), 6, 100) + pits(stats.norm(0, 0.3), 6, 100, 1)).sum()
    assert apart < alike


def test_cdf_quantiles_and_density_are_of_one_distribution() -> None:
    levels = np.linspace(0.001, 0.999, 333)
    np.testing.assert_allclose(recalibrate(SOME, invert(SOME, levels)), levels, rtol=1e-12)
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    slopes = (recalibrate(SOME, middles + 1e-6) - recalibrate(SOME, middles - 1e-6)) / 2e-6
    np.testing.assert_allclose(np.exp(log_slope(SOME, middles)), slopes, rtol=1e-6)

    def density(y: float) -> float:
        return float(np.exp(log_slope(SOME, stats.norm.cdf([y])))[0] * stats.norm.pdf(y))

    at = stats.norm.ppf(EDGES[1:-1])
    total, _ = integrate.quad(density, -12, 12, points=at, limit=300)
    assert total == pytest.approx(1, abs=1e-8)
    assert np.abs(SOME / WIDTHS - 1).max() > 0.5


@pytest.mark.parametrize("shares", [None, SOME])
def test_the_score_of_a_whole_distribution_against_quadrature(shares: np.ndarray | None) -> None:
    y = np.array([-0.4, 2.5, 0.3])
    prediction = Prediction(np.array([0.3, 0.7]), np.array([[-1.0] * 3, [1.0] * 3]),
                            np.array([[0.5] * 3, [1.5] * 3]))  # fmt: skip

    def cdf(at: np.ndarray) -> np.ndarray:
        below = 0.3 * stats.norm.cdf(at, -1, 0.5) + 0.7 * stats.norm.cdf(at, 1, 1.5)
        return below if shares is None else recalibrate(shares, below)

    def score(target: float) -> float:
        places = np.linspace(-15, 15, 300_001)
        return float(np.sum((cdf(places) - (places >= target)) ** 2) * (places[1] - places[0]))

    row, *_, quantiles = measure(prediction, y, shares)
    assert row["crps"] == pytest.approx(np.mean([score(target) for target in y]), rel=2e-3)
    reached = cdf(quantiles)
    np.testing.assert_allclose(
        np.mean(reached, 1), [0.025, 0.05, 0.25, 0.75, 0.95, 0.975], atol=1e-5
    )


@pytest.fixture
def mapped(model: ClientModel) -> ClientModel:
    return replace(model, shared=replace(model.shared, recalibration=1e6 * SOME))


def test_a_client_answers_as_its_map_says_and_keeps_it_on_disk(
    model: ClientModel, mapped: ClientModel, tmp_path: Path
) -> None:
    at, _ = rows(30, 1)
    plain = model.predict(at, invert(SOME, np.array(LEVELS))).quantiles
    found = mapped.predict(at, LEVELS)
    np.testing.assert_allclose(found.quantiles, plain)
    np.testing.assert_allclose(mapped.cdf(at, found.quantiles[0]), LEVELS[0], atol=1e-9)
    y = found.mean + found.std
    row, own = mapped.measure(at, y), model.measure(at, y)
    gain = log_slope(SOME, model.cdf(at, y)).mean()
    assert row["nll"] == pytest.approx(own["nll"] - gain, abs=1e-6)
    mapped.save(tmp_path / "m.safetensors")
    back = load_model(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.predict(at, LEVELS).quantiles, found.quantiles)


def test_held_out_rows_are_those_of_refits_and_decide_for_everybody(shared: Shared) -> None:
    (x, y), drop = rows(11, 0), np.arange(11) != 4
    whole = ClientModel.condition(shared, "bern", x, y)
    rest = ClientModel.condition(shared, "bern", x[drop], y[drop])
    found = whole.held_out()
    assert found is not None and found.shape == (11,)
    np.testing.assert_allclose(found[4], rest.cdf(x[4:5], y[4:5])[0], atol=1e-7)
    few = recalibrated(shared, [whole])
    assert few.recalibration is not None and not len(few.recalibration)  # eleven rows tell nothing
    always = replace(shared, config=override(shared.config, ["run.recalibration=always"]))
    told = recalibrated(always, [replace(whole, shared=always)]).recalibration
    np.testing.assert_allclose(told, learn([found], always=True))
    assert replace(whole, shared=replace(shared, recalibration=OFF)).shares is None


def test_later_rows_mend_the_intervals_and_are_remembered(
    model: ClientModel, tmp_path: Path
) -> None:
    """A client whose prices have risen: nothing is trained, and yet the quantiles follow."""
    (x, y), (at, later) = rows(150, 5), rows(300, 6)
    online = model
    for part in np.array_split(np.arange(150), 15):
        online = online.observe(x[part], y[part] + 25)
    assert len(online.window) == calibration.WINDOW
    error = {name: m.measure(at, later + 25)["ce"] for name, m in [("was", model), ("is", online)]}
    assert error["is"] < 0.5 * error["was"]
    np.testing.assert_array_equal(online.predict(at).mean, model.predict(at).mean)
    online.save(tmp_path / "m.safetensors")
    back = load_model(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(back.window, online.window)
    assert back.measure(at, later) == online.measure(at, later)


def test_an_estimator_draws_predicts_and_plots_with_the_same_map() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (960, 1))
    y, groups = x[:, 0] + 0.3 * random.standard_t(2, 960), np.repeat(np.arange(12), 80)
    options = {"mean": "linear", "kernel": "ard", "noise_model": "constant", "noise": 0.4}
    model = PACPFLRegressor(**options, rounds=60, particles=2, random_state=0).fit(x, y, groups)
    shares = model._shared.recalibration
    assert shares is not None and len(shares)
    at = np.zeros((1, 1))
    draws = model.sample_y(at, 20_000, groups=[3])[0]
    levels = [0.02, 0.2, 0.5, 0.8, 0.98]
    found = model.predict_quantiles(at, levels, [3])[0]
    np.testing.assert_allclose([np.mean(draws <= q) for q in found], levels, atol=0.012)
    fresh = x[:, 0] + 0.3 * random.standard_t(2, 960)
    plain = PACPFLRegressor(
        **options, rounds=60, particles=2, random_state=0, recalibration="never"
    )
    assert plain.fit(x, y, groups)._shared.recalibration is None
    errors = [m._calibration(x, fresh, groups)[2] for m in (model, plain)]
    assert errors[0] < 0.6 * errors[1]
