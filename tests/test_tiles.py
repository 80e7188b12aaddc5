"""Triangles in pieces against the same products of whole arrays."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl import tiles

pytestmark = pytest.mark.usefixtures("x64")

SIZE = 11


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 rows in four tiles of two or three."""
    monkeypatch.setattr(tiles, "TILE", 2)
    monkeypatch.setattr(tiles, "ROWS", 1)


@pytest.fixture
def triangle() -> np.ndarray:
    return np.tril(np.random.default_rng(0).normal(size=(2, SIZE, SIZE)))


def leaves(a: tiles.Tiles) -> int:
    return leaves(a[0]) + leaves(a[2]) if isinstance(a, tuple) else 1


def lower(a: tiles.Tiles) -> np.ndarray:
    """What a symmetric matrix in tiles holds, its diagonal's tiles cut to their lower half, too."""
    return np.tril(np.asarray(tiles.join(a)))


def test_halves_of_halves_up_to_a_number_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leaves(tiles.split(jnp.eye(SIZE))) == tiles.MOST_TILES
    monkeypatch.setattr(tiles, "TILE", 6)
    assert leaves(tiles.split(jnp.eye(SIZE))) == 2
    monkeypatch.setattr(tiles, "TILE", SIZE)
    assert leaves(tiles.split(jnp.eye(SIZE))) == 1


def test_the_first_half_has_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ROWS", 4)
    upper, lower, corner = tiles.split(jnp.eye(SIZE))
    assert (tiles.rows(upper), lower.shape, tiles.rows(corner)) == (8, (3, 8), 3)


def test_only_blocks_on_and_below_the_diagonal_are_asked_for() -> None:
    seen = np.zeros((SIZE, SIZE), int)

    def block(rows: slice, columns: slice) -> jnp.ndarray:
        seen[rows, columns] += 1
        return jnp.zeros((rows.stop - rows.start, columns.stop - columns.start))

    built = tiles.build(SIZE, block)
    assert tiles.rows(built) == SIZE
    assert seen.max() == 1
    np.testing.assert_array_equal(np.tril(seen), np.tril(np.ones_like(seen)))
    assert seen.sum() < 0.7 * SIZE**2


def test_cut_and_joined_again(triangle: np.ndarray) -> None:
    cut = tiles.split(jnp.asarray(triangle))
    np.testing.assert_array_equal(tiles.join(cut), triangle)
    diagonal = np.diagonal(triangle, axis1=-2, axis2=-1)
    np.testing.assert_array_equal(tiles.diagonal(cut), diagonal)
    more = tiles.add_to_diagonal(cut, jnp.array([1.0, 3.0]))
    expected = triangle + np.array([1.0, 3.0])[:, None, None] * np.eye(SIZE)
    np.testing.assert_array_equal(tiles.join(more), expected)


@pytest.mark.parametrize("columns", [1, 5])
def test_products_with_a_triangle(triangle: np.ndarray, columns: int) -> None:
    cut = tiles.split(jnp.asarray(triangle))
    x = np.random.default_rng(1).normal(size=(2, SIZE, columns))
    flipped, across = np.swapaxes(x, -1, -2), np.swapaxes(triangle, -1, -2)
    for found, expected in [
        (tiles.apply(cut, x), triangle @ x),
        (tiles.apply_transposed(cut, x), across @ x),
        (tiles.times(flipped, cut), flipped @ triangle),
        (tiles.times_transposed(flipped, cut), flipped @ across),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_symmetric_products(triangle: np.ndarray) -> None:
    cut = tiles.split(jnp.asarray(triangle))
    x = np.random.default_rng(2).normal(size=(2, SIZE, 4))
    outer = tiles.own_product(jnp.asarray(x), cut)
    np.testing.assert_allclose(
        lower(outer), np.tril(x @ np.swapaxes(x, -1, -2)), rtol=1e-12, atol=1e-12
    )
    gram = np.swapaxes(triangle, -1, -2) @ triangle
    np.testing.assert_allclose(lower(tiles.gram(cut)), np.tril(gram), rtol=1e-12, atol=1e-12)
