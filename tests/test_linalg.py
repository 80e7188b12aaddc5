"""How triangles are cut into tiles; batched factorisations against LAPACK and scipy, and what happens when
they fail."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pacpfl import linalg, tiles
from pacpfl.linalg import factorise, factorise_tiles, gaussian_log_density

pytestmark = pytest.mark.usefixtures("x64")


def whole(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """L^-1, ln|A| and the jitter."""
    return factorise(a), *factorise_tiles(tiles.split(a))[1:]


compiled_factorise = jax.jit(whole)


def positive_definite(*shape: int, seed: int = 0) -> np.ndarray:
    """Random matrices with eigenvalues of about 1 to 4."""
    rows = np.random.default_rng(seed).normal(size=(*shape, shape[-1]))
    return rows @ np.swapaxes(rows, -1, -2) / shape[-1] + np.eye(shape[-1])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """From five rows on there are tiles, five at most, of whatever size."""
    monkeypatch.setattr(tiles, "TILE", 4)
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
    assert [row[-1].shape[-1] for row in tiles.split(jnp.eye(11))] == expected


@pytest.mark.usefixtures("small_tiles")
def test_accelerators_get_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert tiles.edges(11) == [slice(0, 11)]


@pytest.mark.usefixtures("small_tiles")
def test_only_blocks_on_and_below_the_diagonal_are_asked_for() -> None:
    seen = np.zeros((11, 11), int)

    def block(rows: slice, columns: slice) -> jnp.ndarray:
        seen[rows, columns] += 1
        return jnp.zeros((rows.stop - rows.start, columns.stop - columns.start))

    built = tiles.build(11, block)
    assert tiles.rows(built) == 11
    assert seen.max() == 1
    np.testing.assert_array_equal(np.tril(seen), np.tril(np.ones_like(seen)))
    assert seen.sum() < 0.7 * 11**2


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("size", [4, 7, 11, 23])
def test_inverses_in_tiles_against_lapack(size: int) -> None:
    """One to five tiles; L^-1 x and L^-T x are in the densities below."""
    matrices = positive_definite(2, size)
    low = linalg.factorise_tiles(tiles.split(jnp.asarray(matrices))).low
    assert len(low) == min(5, -(-size // 4))
    factor = np.linalg.inv(np.linalg.cholesky(matrices))
    inverse = np.tril(np.linalg.inv(matrices))
    for found, expected in ((linalg.inverse_factor(low), factor), (linalg.inverse(low), inverse)):
        np.testing.assert_allclose(np.tril(tiles.join(found)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "panel", "panels"),
    [(1, 16, 5), (10, 16, 5), (23, 16, 5), (171, 16, 5), (23, 3, 2), (23, 4, 7), (23, 5, 5)],
)
def test_factor_against_lapack(
    size: int, panel: int, panels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eliminated at once, in halves, in tiles of panels; in four leaves of two panels each, in six panels
    of four, one row too many, and in five of five. Nested vmap is a loop."""
    if panel < linalg.PANEL:
        monkeypatch.setattr(linalg, "AT_ONCE", 2)
    monkeypatch.setattr(linalg, "PANEL", panel)
    monkeypatch.setattr(linalg, "PANELS", panels)
    matrices = positive_definite(2, 3, size)
    inverse, log_det, jitter = jax.jit(jax.vmap(jax.vmap(whole)))(matrices)
    expected = np.linalg.inv(np.linalg.cholesky(matrices))
    np.testing.assert_allclose(inverse, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(jitter, 0)


@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_single_precision_loses_only_what_the_condition_costs(
    whole: bool, panels: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Neighbouring inputs and a noise of 0.05: the relative error is at most a few eps |A| |A^-1|."""
    if not whole:
        request.getfixturevalue("small_tiles")
    if panels:
        monkeypatch.setattr(linalg, "AT_ONCE", 2)
        monkeypatch.setattr(linalg, "PANEL", 3)
    x = np.linspace(0, 1, 23)
    single = (np.exp(-2 * (x[:, None] - x) ** 2) + 0.05**2 * np.eye(23)).astype(np.float32)
    exact = np.linalg.inv(single.astype(np.float64))
    with jax.enable_x64(False):
        low = linalg.cholesky(tiles.split(jnp.asarray(single)))
        assert (len(low) == 1) == whole
        lower = np.tril(np.asarray(tiles.join(linalg.inverse(low)), np.float64))
        w = np.asarray(tiles.join(linalg.inverse_factor(low)), np.float64)
    condition = np.linalg.cond(single.astype(np.float64))
    assert 1e3 < condition < 1e5
    for found in (lower + np.tril(lower, -1).T, w.T @ w):
        error = np.linalg.norm(found - exact, 2) / np.linalg.norm(exact, 2)
        assert error < 3 * np.finfo(np.float32).eps * condition


@pytest.mark.parametrize("single", [False, True])
def test_only_singular_matrices_get_jitter(single: bool) -> None:
    """All-ones is singular: it is mended; those beside it keep every bit of their factors."""
    dtype = np.float32 if single else np.float64
    good = positive_definite(3, 13, seed=2).astype(dtype)
    batch = good.copy()
    batch[1] = 7.0
    with jax.enable_x64(not single):
        clean, mended = compiled_factorise(good), compiled_factorise(batch)
    for before, after in zip(clean, mended, strict=True):
        np.testing.assert_array_equal(after[::2], before[::2])
    assert mended[2].dtype == dtype and not mended[2][::2].any()
    jitter = float(mended[2][1])
    assert 0 < jitter <= (1e-3 if single else 1e-9) * 7
    w = np.asarray(mended[0][1], np.float64)
    whitened = w @ (np.full((13, 13), 7.0) + jitter * np.eye(13)) @ w.T
    np.testing.assert_allclose(whitened, np.eye(13), atol=0.5 if single else 1e-2)


def test_jitter_grows_only_as_far_as_needed() -> None:
    """Smallest eigenvalue -1e-6: jitter must exceed it, and by less than the factor of ten."""
    q = np.linalg.qr(np.random.default_rng(3).normal(size=(13, 13)))[0]
    matrix = q @ np.diag([-1e-6, *np.linspace(0.5, 1.5, 12)]) @ q.T
    _, log_det, jitter = compiled_factorise(np.stack([matrix, np.eye(13), matrix]))
    assert 1e-6 < jitter[0] < 1e-5
    assert np.isfinite(log_det[0])


@pytest.mark.parametrize("hopeless", [-1.0, np.nan, np.inf])
def test_what_no_jitter_mends_ends_and_harms_nobody(hopeless: float) -> None:
    good = positive_definite(3, 13, seed=4)
    batch = good.copy()
    batch[2] = hopeless * np.eye(13) if hopeless < 0 else hopeless
    clean, found = compiled_factorise(good), compiled_factorise(batch)
    assert not np.isfinite(found[1][2])
    for before, after in zip(clean, found, strict=True):
        np.testing.assert_array_equal(after[:2], before[:2])


@pytest.mark.parametrize("tile", [4, 80])
@pytest.mark.parametrize("size", [10, 23])
def test_log_density_and_gradient_against_scipy(
    size: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Derivatives along symmetric changes of the matrix, by central differences."""
    monkeypatch.setattr(tiles, "TILE", tile)
    monkeypatch.setattr(tiles, "ROWS", 1)
    rng = np.random.default_rng(5)
    matrix, residual = positive_definite(size, seed=6), rng.normal(size=size)

    def peer(a: np.ndarray, r: np.ndarray) -> float:
        density = stats.multivariate_normal(np.zeros(size), a).logpdf(r)
        return float(density + 0.5 * size * np.log(2 * np.pi))

    in_tiles = tiles.split(jnp.asarray(matrix))
    assert (len(in_tiles) > 1) == (tile < size)
    value_and_gradient = jax.jit(jax.value_and_grad(gaussian_log_density, (0, 1)))
    value, (by_matrix, by_residual) = value_and_gradient(in_tiles, residual)
    np.testing.assert_allclose(value, peer(matrix, residual), rtol=1e-10)
    np.testing.assert_allclose(by_residual, -np.linalg.solve(matrix, residual), rtol=1e-10)
    for _ in range(3):
        change = rng.normal(size=(size, size))
        change, step = change + change.T, 1e-5
        ends = (peer(matrix + sign * step * change, residual) for sign in (1, -1))
        slope = np.subtract(*ends) / (2 * step)
        parts = zip(jax.tree.leaves(by_matrix), jax.tree.leaves(tiles.split(change)), strict=True)
        found = sum(float(np.sum(np.asarray(by) * along)) for by, along in parts)
        np.testing.assert_allclose(found, slope, rtol=1e-6)


@pytest.mark.usefixtures("small_tiles")
def test_a_part_that_is_the_same_for_all_is_repeated() -> None:
    """vmap over a corner's diagonal alone: the lower left tile has no such axis."""
    matrix, more = positive_definite(7, seed=8), np.array([0.0, 0.5, 2.0])

    def log_density(noise: jax.Array) -> jax.Array:
        first, (lower, corner) = tiles.split(jnp.asarray(matrix))
        more = corner + noise * jnp.eye(3)
        return gaussian_log_density((first, (lower, more)), jnp.arange(7.0))

    found = jax.jit(jax.vmap(log_density))(more)
    for value, noise in zip(found, more, strict=True):
        whole = matrix + np.diag([0.0] * 4 + [noise] * 3)
        expected = stats.multivariate_normal(np.zeros(7), whole).logpdf(np.arange(7.0))
        np.testing.assert_allclose(value, expected + 3.5 * np.log(2 * np.pi), rtol=1e-10)
