"""Cross-validation sees training samples only, holds out each once, and scores in the target's units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from pacpfl import metrics
from pacpfl.build import raw_federation
from pacpfl.config import Config, override
from pacpfl.data.settings import DataSettings
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.folder import MethodResult
from pacpfl.tune import crossval
from pacpfl.types import Client, Federation, Samples


def samples(rng: np.random.Generator, count: int, level: float) -> Samples:
    x = rng.normal(3.0, 2.0, (count, 2))
    return Samples(x, level + 5 * x[:, 0] - x[:, 1] + rng.normal(size=count))


def federation(poison: float | None = None) -> Federation:
    """Two clients with 10 and 13 samples, one of whom has gathered more; and a new one."""
    rng = np.random.default_rng(5)

    def client(name: str, count: int, level: float) -> Client:
        train, later, test = (samples(rng, n, level) for n in (count, 4, 6))
        if poison is not None:
            later, test = (Samples(part.x * poison, part.y * poison) for part in (later, test))
        return Client(name, train, later, test)

    new = client("c", 10, 0.0)
    if poison is not None:
        new = replace(new, train=Samples(new.train.x * poison, new.train.y * poison))
    return Federation("f", (client("a", 10, 20.0), client("b", 13, -40.0)), (new,), ("u", "v"))


def config(standardize: str = "client") -> Config:
    return Config(data=DataSettings(standardize=standardize))


def of_size(count: int, times: np.ndarray | None = None) -> Client:
    return Client("a", Samples(np.zeros((count, 1)), np.zeros(count)), times=times)


@pytest.mark.parametrize(("count", "folds"), [(10, 5), (13, 5), (150, 5), (7, 2)])
def test_parts_hold_every_sample_once_and_are_equal_as_far_as_possible(count, folds):
    timed = of_size(count, np.arange(count) * 3 + 100)
    for client in (of_size(count), timed):
        found = crossval.parts(client, folds, crossval.moments([client], folds), 3)
        assert sorted(np.concatenate(found)) == list(range(count))
        sizes = [len(part) for part in found]
        assert len(sizes) == folds and max(sizes) - min(sizes) <= 1
        in_blocks = all((np.diff(part) == 1).all() for part in found)
        assert in_blocks is (client is timed)


def test_shuffled_parts_are_each_clients_own_and_always_the_same():
    one, again, other = (np.concatenate(crossval.parts(of_size(30), 5, None, s)) for s in (1, 1, 2))
    assert (one == again).all() and (one != other).any()


def test_no_client_trains_on_a_moment_that_another_is_asked_about():
    rng = np.random.default_rng(5)
    clients = [of_size(40, np.sort(rng.permutation(200)[:40])) for _ in range(6)]
    whole = federation()
    folds = crossval.folds(replace(whole, existing=tuple(clients), features=("u",)), 5)
    share = 6 * 40 / 5
    last = -1
    for fold in folds:
        trained = np.concatenate([client.times for client in fold.existing])
        pairs = zip(clients, fold.existing, strict=True)
        asked = np.concatenate([np.setdiff1d(c.times, part.times) for c, part in pairs])
        assert len(asked) == sum(len(client.test) for client in fold.existing)
        assert not set(trained) & set(asked)
        # One stretch of time, later than that of the fold before, with its share of the samples.
        assert last < asked.min() and not ((trained > asked.min()) & (trained < asked.max())).any()
        assert abs(len(asked) - share) <= 6
        last = asked.max()


def test_a_client_that_is_silent_for_a_stretch_of_time_is_named():
    silent = of_size(20, np.arange(20))
    others = [of_size(20, np.arange(20) * 10) for _ in range(4)]
    whole = replace(federation(), existing=(silent, *others), features=("u",))
    with pytest.raises(InputError, match="'a' has no samples in one of the 5 stretches of time"):
        crossval.folds(whole, 5)


@pytest.mark.parametrize("timed", [False, True])
def test_folds_test_on_what_they_do_not_train_on(timed):
    whole = federation()
    if timed:
        existing = [replace(c, times=np.linspace(0, 9, len(c.train))) for c in whole.existing]
        whole = replace(whole, existing=tuple(existing))
    folds = crossval.folds(whole, 5)
    assert len(folds) == 5
    for number, client in enumerate(whole.existing):
        held_out = []
        for fold in folds:
            part = fold.existing[number]
            assert part.name == client.name and part.later is None and fold.new == ()
            together = np.concatenate([part.train.y, part.test.y])
            assert sorted(together) == sorted(client.train.y)
            rows = {tuple(row): y for row, y in zip(client.train.x, client.train.y, strict=True)}
            for row, y in zip(part.test.x, part.test.y, strict=True):
                assert rows[tuple(row)] == y
            held_out += list(part.test.y)
        assert sorted(held_out) == sorted(client.train.y)


@pytest.mark.parametrize(
    ("used", "expected"), [(5, [0, 1, 2, 3, 4]), (1, [2]), (2, [1, 3]), (3, [0, 2, 4])]
)
def test_the_folds_used_are_spread_evenly(used, expected):
    assert crossval.chosen_folds(5, used) == expected


def test_numbers_of_folds_that_cannot_be():
    for used in (0, 6):
        with pytest.raises(InputError, match="1 to 5"):
            crossval.chosen_folds(5, used)
    for count in (1, 6):
        with pytest.raises(InputError, match="'a'; take 2 to 5"):
            crossval.folds(federation(), count)


@pytest.mark.parametrize("poison", [np.nan, 1e30])
def test_test_data_later_data_and_new_clients_change_nothing(poison):
    clean = crossval.cross_validate("ridge", config(), federation(), 5, 2)
    assert np.isfinite(clean).all()
    assert crossval.cross_validate("ridge", config(), federation(poison), 5, 2) == clean


def test_folds_of_equal_shape_compile_once(programs):
    whole = federation()
    equal = replace(whole, existing=whole.existing[:1])
    jax.clear_caches()
    crossval.cross_validate("ridge", config(), equal, 5, 1)
    assert programs.total() > 0
    programs.clear()
    crossval.cross_validate("ridge", config(), equal, 5)
    assert programs.total() == 0, "nothing is compiled, nor looked for on disk"


class Teller:
    """In place of a method: predicts the mean of what it trains on, and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[Federation] = []

    def __call__(self, name: str, config: Any, fold: Federation, *more: Any) -> MethodResult:
        self.seen.append(fold)
        means = [np.full(len(c.test), c.train.y.mean()) for c in fold.existing]
        rows = [{"rsmse": -1.0, "ce": -1.0, "nll": 0.25 * len(c.test)} for c in fold.existing]
        curve = metrics.calibration_levels() ** len(self.seen)
        curves = np.array([curve] * len(fold.existing))
        return MethodResult({}, {}, {"existing": Evaluation(rows, curves, means)})


@pytest.fixture
def teller(monkeypatch: pytest.MonkeyPatch) -> Teller:
    monkeypatch.setattr(crossval, "run_method", Teller())
    return crossval.run_method


@pytest.mark.parametrize("standardize", ["client", "none"])
@pytest.mark.parametrize("used", [5, 2])
def test_scores_pool_the_held_out_samples_in_their_own_units(teller, standardize, used):
    whole = federation()
    found = crossval.cross_validate("any", config(standardize), whole, 5, used)
    numbers = crossval.chosen_folds(5, used)
    rsmse, ce, nll = [], [], []
    levels = metrics.calibration_levels()
    for index, client in enumerate(whole.existing):
        parts = crossval.parts(client, 5, None, index)
        errors, curve, density, total = [], 0, 0.0, 0
        for order, number in enumerate(numbers, 1):
            rest = np.delete(client.train.y, parts[number])
            errors.append(client.train.y[parts[number]] - rest.mean())
            size = len(parts[number])
            curve, total = curve + size * levels**order, total + size
            unit = rest.std() if standardize == "client" else 1.0
            density += size * (0.25 * size + np.log(unit))
        rsmse.append(np.sqrt(np.mean(np.concatenate(errors) ** 2)) / client.train.y.std())
        ce.append(np.abs(curve / total - levels).mean())
        nll.append(density / total)
    assert found == pytest.approx((np.mean(rsmse), np.mean(ce), np.mean(nll)), rel=1e-12)


def test_a_fold_is_standardised_by_what_it_trains_on(teller):
    crossval.cross_validate("any", config(), federation(), 5)
    for fold in teller.seen:
        for client in fold.existing:
            scaled = np.column_stack([client.train.x, client.train.y])
            assert np.allclose(scaled.mean(0), 0, atol=1e-12)
            assert np.allclose(scaled.std(0), 1)
            assert abs(client.test.y.mean()) > 1e-3  # by the training part's numbers, not its own


def test_houses_know_the_time():
    """So that their samples are cut into the same stretches of time for all."""
    settings = override(Config(), ["data.name=pv", "data.clients=3", "data.samples=50"])
    houses = raw_federation(settings).existing
    assert all((np.diff(house.times) > 0).all() and len(house.times) == 50 for house in houses)
    assert (houses[0].times != houses[1].times).any()
    assert crossval.moments(houses, 5) is not None


def test_a_feature_that_is_constant_in_a_fold_is_named():
    """Before anything is trained: its standard deviation would be 0."""
    whole = federation()
    client = whole.existing[0]
    flat = client.train.x.copy()
    flat[2:, 1] = 7.0
    timed = replace(client, train=Samples(flat, client.train.y), times=np.arange(len(flat)))
    whole = replace(whole, existing=(timed,))
    with pytest.raises(InputError, match="'v'"):
        crossval.cross_validate("ridge", replace(config(), data=DataSettings(name="pv")), whole, 5)


def test_the_raw_federation_is_in_its_own_units():
    settings = Config(data=DataSettings(clients=2, new_clients=0, standardize="client"))
    raw = raw_federation(settings)
    assert not np.isclose(raw.existing[0].train.y.std(), 1.0, atol=1e-3)
