"""The real handwriting that lies beside the repository, where it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pacpfl.data.image_files import load_images
from pacpfl.data.images import Images, by_writer, dirichlet
from pacpfl.errors import InputError

FOLDER = Path(__file__).parents[3] / "shared" / "data"


def load(name: str, classes: int | None = None) -> Images:
    file = FOLDER / name
    if not file.exists():
        pytest.skip(f"the real data set {name} is not beside the repository (shared/data)")
    return load_images(file, classes)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits_by_writer.npz")


def test_forty_writers_with_twenty_digits_each(digits: Images) -> None:
    few, full = (by_writer(digits, 40, 40, samples, seed=1) for samples in (20, None))
    assert {*few.form.sizes} == {20}
    for some, every in zip((*few.existing, *few.new), (*full.existing, *full.new), strict=True):
        assert some.name == every.name
        assert some.test is not None
        assert every.test is not None
        np.testing.assert_array_equal(some.test.x, every.test.x)
        np.testing.assert_array_equal(some.train.x, every.train.x[:20])
    assert 85 < np.mean(full.form.sizes) < 95
    assert few.classes == 10
    assert few.shape == (28, 28)
    x = few.existing[0].train.x
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert x.mean() < 0.3, "ink is high and rare"


def test_a_writer_keeps_its_own_digits(digits: Images) -> None:
    assert digits.writer is not None
    client = by_writer(digits, 1, samples=None, seed=7).existing[0]
    assert client.test is not None
    own = digits.images[digits.writer == int(client.name.split()[1])].reshape(-1, 784)
    found = np.rint(np.concatenate([client.train.x, client.test.x]) * 255).astype(np.uint8)
    assert sorted(map(bytes, found)) == sorted(map(bytes, own))


def test_leafs_writers() -> None:
    every = load("femnist_leaf_28_writers.npz")
    assert (len(every), every.classes) == (1761, 62)
    assert every.writer is not None
    assert len(set(every.writer.tolist())) == 28
    assert every.writer[0].startswith("f")
    assert len(by_writer(every, 20, 6, 20).new) == 6
    with pytest.raises(InputError, match=r"2 have fewer"):  # those with 8 and 14 samples
        by_writer(every, 20, 7, 20)
    only = load("femnist_leaf_28_writers.npz", classes=10)
    assert only.classes == 10
    np.testing.assert_array_equal(only.images, every.images[every.labels < 10])


def test_eighty_clients_share_emnist() -> None:
    """Every one of the 81,425 samples is used once: images that spell their number stand for the real."""
    real = load("emnist_byclass_81425.npz")
    assert (len(real), real.classes, real.shape) == (81425, 62, (28, 28))
    number = np.arange(81425)
    pixels = np.stack([number >> 16, number >> 8 & 255, number & 255], -1).astype(np.uint8)
    found = dirichlet(Images("emnist", pixels[:, None, :], real.labels, 62))
    assert len(found.existing) == 80
    seen = np.zeros(81425, int)
    for client in found.existing:
        for part in (client.train, client.test):
            assert part is not None
            rows = np.rint(part.x * 255).astype(int) @ np.array([1 << 16, 1 << 8, 1])
            np.add.at(seen, rows, 1)
            np.testing.assert_array_equal(part.y, real.labels[rows])
    assert np.all(seen == 1)
    # Label skew: a client's classes are far from evenly spread.
    counts = np.bincount(found.existing[0].train.y.astype(int), minlength=62)
    assert counts.max() > 5 * np.median(counts)
