"""What every data set promises, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pacpfl.build import build_federation
from pacpfl.config import Config, override
from pacpfl.data.prepare import check_federation, fit_scalers, standardize
from pacpfl.types import Client, Federation, Samples

Make = Callable[[Path], list[str]]


def tables(folder: Path) -> list[str]:
    """Three sites with numbers, gaps and categories, and a later one."""
    random = np.random.default_rng(0)
    (folder / "own").mkdir()
    for name in "abcd":
        frame = pd.DataFrame(
            {
                "u": random.normal(3, 2, 24),
                "kind": random.choice(["x", "y"], 24),
                "y": random.normal(-5, 7, 24),
            }
        )
        frame.to_csv(folder / "own" / f"{name}.csv", index=False)
    return [
        "data.name=tables",
        f"tables.source={folder / 'own'}",
        "tables.target=y",
        'tables.new=["d"]',
    ]


def images(folder: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(
        folder / "images.npz",
        images=random.integers(0, 256, (600, 6, 6), dtype=np.uint8),
        labels=np.arange(600) % 10,
        writer=np.arange(600) // 40,
    )


def writers(folder: Path) -> list[str]:
    images(folder)
    return ["data.name=femnist", f"images.path={folder / 'images.npz'}", "data.samples=20"]


def labels(folder: Path) -> list[str]:
    images(folder)
    return ["data.name=emnist", f"images.path={folder / 'images.npz'}", "images.alpha=5.0"]


DATA_SETS: dict[str, Make] = {
    "polynomial": lambda folder: ["data.name=polynomial", "data.samples=10"],
    "houses": lambda folder: ["data.name=pv", "data.samples=50"],
    "digits": lambda folder: ["data.name=digits", "data.samples=20"],
    "writers": writers,
    "labels": labels,
    "tables": tables,
}


@pytest.fixture(scope="module", params=DATA_SETS)
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Config:
    settings = DATA_SETS[request.param](tmp_path_factory.mktemp(request.param))
    return override(Config(), ["data.clients=3", "data.new_clients=1", *settings])


@pytest.fixture(scope="module")
def federation(config: Config) -> Federation:
    return build_federation(config)


def clients(federation: Federation) -> tuple[Client, ...]:
    return (*federation.existing, *federation.new)


def rows(samples: Samples | None) -> np.ndarray:
    assert samples is not None
    return np.column_stack([samples.x, samples.y])


def test_it_has_the_clients_that_were_asked_for(federation: Federation) -> None:
    check_federation(federation)
    assert (len(federation.existing), len(federation.new)) == (3, 1)
    assert federation.form.sizes == tuple(len(client.train) for client in federation.existing)
    for client in clients(federation):
        for samples in (client.train, client.test):
            assert samples is not None and len(samples) >= 2
            assert samples.x.shape == (len(samples), len(federation.features))
            assert np.isfinite(rows(samples)).all()
        if client.times is not None:
            assert len(client.times) == len(client.train)


def test_classes_are_numbered_from_0_and_images_have_their_shape(federation: Federation) -> None:
    if federation.classes is not None:
        y = np.concatenate([client.train.y for client in clients(federation)])
        assert set(y.tolist()) <= set(range(federation.classes)) and len(set(y.tolist())) > 1
    if federation.shape is not None:
        assert np.prod(federation.shape) == len(federation.features)


def test_a_seed_gives_the_same_samples_and_another_one_others(
    config: Config, federation: Federation
) -> None:
    again = build_federation(config)
    assert again.form == federation.form
    for one, two in zip(clients(federation), clients(again), strict=True):
        np.testing.assert_array_equal(rows(one.train), rows(two.train))
        np.testing.assert_array_equal(rows(one.test), rows(two.test))
    other = build_federation(replace(config, seed=config.seed + 1))
    firsts = [fed.existing[0].train for fed in (federation, other)]
    assert firsts[0].x.shape != firsts[1].x.shape or (firsts[0].x != firsts[1].x).any()


def test_no_row_both_trains_and_measures(federation: Federation) -> None:
    for client in clients(federation):
        train = {row.tobytes() for row in rows(client.train)}
        assert not train & {row.tobytes() for row in rows(client.test)}


def poisoned(samples: Samples | None) -> Samples | None:
    return None if samples is None else Samples(samples.x * 1e6 + 7, samples.y * 1e6 + 7)


@pytest.mark.parametrize("how", ["client", "global"])
def test_scaling_looks_at_training_rows_only(federation: Federation, how: str) -> None:
    """Of existing clients, or the client's own: what is measured, comes later or is new never counts."""
    spoilt = [
        replace(client, test=poisoned(client.test), later=poisoned(client.later))
        for client in federation.existing
    ]
    new = [
        replace(client, train=Samples(client.train.x + 99, client.train.y))
        for client in federation.new
    ]
    other = replace(federation, existing=tuple(spoilt), new=tuple(new))
    for one, two in zip(
        standardize(federation, how).existing, standardize(other, how).existing, strict=True
    ):
        np.testing.assert_array_equal(rows(one.train), rows(two.train))


@pytest.mark.parametrize("how", ["client", "global"])
def test_scaled_features_have_mean_0_and_std_1_unless_they_are_told_apart(
    federation: Federation, how: str
) -> None:
    scaled = standardize(federation, how)
    parts = [client.train for client in scaled.existing]
    if how == "global":
        parts = [sum(parts[1:], parts[0])]
    unscaled = np.isin(federation.features, federation.unscaled)
    for samples in parts:
        std = samples.x.std(0)
        varies = ~unscaled & (std > 1e-6)  # a constant keeps its unit
        np.testing.assert_allclose(std[varies], 1, rtol=1e-4)
        np.testing.assert_allclose(samples.x.mean(0)[varies], 0, atol=1e-4)
        if federation.classes is None:
            assert samples.y.std() == pytest.approx(1) and samples.y.mean() == pytest.approx(
                0, abs=1e-9
            )


@pytest.mark.parametrize("how", ["none", "client", "global"])
def test_targets_come_back_in_their_own_units(federation: Federation, how: str) -> None:
    scalers = fit_scalers(federation, how)
    for before, after in zip(
        clients(federation), clients(standardize(federation, how)), strict=True
    ):
        back = scalers[before.name].target(rows(after.test)[:, -1])
        np.testing.assert_allclose(back, rows(before.test)[:, -1], rtol=1e-9, atol=1e-9)
