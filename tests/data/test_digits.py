"""The built-in digits: scikit-learn's own, dealt out once, each writer with its own hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from refusals import refused

from pacpfl.data.digits import _redraw, digit_images, digits, hands
from pacpfl.data.images import Images, samples

datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
BUNCH = datasets.load_digits()


@pytest.fixture(scope="module")
def images() -> Images:
    return digit_images()


def test_pixels_and_labels_are_scikit_learns(images: Images) -> None:
    found = samples(images, np.arange(len(images)))
    np.testing.assert_allclose(found.x, BUNCH.data / 16, atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(found.y, BUNCH.target)
    assert images.classes == 10
    assert images.shape == (8, 8)
    assert len(np.unique(images.images)) == 17


def test_a_quarter_turn() -> None:
    stack = np.arange(32, dtype=np.uint8).reshape(2, 4, 4) * 8
    turned = _redraw(stack, np.pi / 2, 0.0)
    # About the centre (1.5, 1.5), what stands at (row, column) was at (3 - column, row).
    expected = [[[image[3 - c][r] for c in range(4)] for r in range(4)] for image in stack.tolist()]
    assert turned.tolist() == expected


def test_a_lean_of_one_pixel_per_row() -> None:
    stack = np.arange(1, 28, dtype=np.uint8).reshape(3, 3, 3)
    # Row r is read at columns c + (r - 1): shifted by -1, 0 and 1, and empty outside.
    expected = [
        [[image[r][c + r - 1] if 0 <= c + r - 1 < 3 else 0 for c in range(3)] for r in range(3)]
        for image in stack.tolist()
    ]
    assert _redraw(stack, 0.0, 1.0).tolist() == expected


def test_without_turn_and_slant_nothing_changes(images: Images) -> None:
    same = hands(images, 30, degrees=0, slant=0)
    np.testing.assert_array_equal(same.images, images.images)
    np.testing.assert_array_equal(same.labels, images.labels)
    assert set(np.bincount(same.writer).tolist()) == {59, 60}


def test_each_writer_has_one_hand_and_it_differs(images: Images) -> None:
    """The angle of a bar, measured by its moments, is the writer's own."""
    bar = np.zeros((90, 15, 15), np.uint8)
    bar[:, 2:13, 7] = 200
    found = hands(Images("bars", bar, np.zeros(90, int), 2), 9, degrees=15, slant=0, seed=1)
    row, column = np.mgrid[:15, :15] - 7
    weight = found.images.astype(float)
    angles = np.rad2deg((weight * row * column).sum((1, 2)) / (weight * row**2).sum((1, 2)))
    own = [angles[found.writer == number] for number in range(9)]
    assert max(np.ptp(values) for values in own) == 0
    assert len({round(float(values[0]), 3) for values in own}) == 9
    assert 5 < np.std([values[0] for values in own]) < 30


def test_the_federation(images: Images) -> None:
    found = digits(seed=5)
    assert (len(found.existing), len(found.new)) == (20, 10)
    assert {(len(c.train), len(c.test)) for c in (*found.existing, *found.new)} == {(20, 30)}
    assert (found.classes, found.shape, len(found.features)) == (10, (8, 8), 64)
    assert found.existing[0].train.x.dtype == np.float32


def test_all_samples_are_dealt_out_once() -> None:
    found = digits(12, 4, samples=None, degrees=0, slant=0)
    clients = (*found.existing, *found.new)
    x = np.concatenate([part.x for c in clients for part in (c.train, c.test)])
    expected = np.rint(BUNCH.data * (255 / 16)).astype(int)
    assert sorted(map(tuple, np.rint(x * 255).astype(int))) == sorted(map(tuple, expected))


@pytest.mark.parametrize("writers", [0, 1798])
def test_too_many_writers(images: Images, writers: int) -> None:
    refused(lambda: hands(images, writers), f"{writers} writers cannot share the 1797 images")


def test_scikit_learn_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    refused(digit_images, "pip install scikit-learn")
