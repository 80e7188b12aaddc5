"""How triangles are cut into pieces; what is done with these is in test_linalg.py."""

from __future__ import annotations

import jax
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


@pytest.mark.parametrize(
    ("tile", "multiple", "expected"),
    [(2, 1, [3, 3, 3, 2]), (6, 1, [6, 5]), (11, 1, [11]), (2, 4, [4, 4, 3]), (6, 16, [11])],
)
def test_tiles_have_whole_lines_and_are_few(
    tile: int, multiple: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(tiles, "ROWS", multiple)
    assert [row[-1].shape[-1] for row in tiles.split(jnp.eye(SIZE))] == expected


def test_accelerators_get_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert tiles.edges(SIZE) == [slice(0, SIZE)]


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
