"""The grid: exact sums, the inflated norm, room for noise, and refusals instead of clipping."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isqrt, log2, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg.grid import Grid, finest_step

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
GRID = Grid(2.0**-10, 1.0, 4, 3)


def clipped(seed: int, clients: int, dimension: int, clip: float) -> list[np.ndarray]:
    """Updates whose norm is the clip norm, as close as floats allow."""
    updates = np.random.default_rng(seed).normal(size=(clients, dimension))
    return list(clip * updates / np.linalg.norm(updates, axis=1, keepdims=True))


@quick
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 9),
    dimension=st.integers(1, 40),
    exponent=st.integers(-30, 0),
    clip=st.floats(0.01, 100),
)
def test_a_sum_is_exact_to_half_a_step_per_client(
    seed: int, clients: int, dimension: int, exponent: int, clip: float
) -> None:
    grid = Grid(2.0**exponent, clip, dimension, clients)
    updates = clipped(seed, clients, dimension, clip)
    integers = [grid.encode(update) for update in updates]
    ring = sum(k.astype(f"u{grid.bits // 8}") for k in integers)
    total = grid.decode(np.asarray(ring), clients)
    bound = Fraction(clients) * Fraction(grid.step) / 2
    for j in range(dimension):
        exact = sum(Fraction(float(update[j])) for update in updates)
        assert abs(Fraction(float(total[j])) - exact) <= bound
        # And beyond rounding nothing is lost at all.
        assert Fraction(float(total[j])) == sum(int(k[j]) for k in integers) * Fraction(grid.step)


def test_rounding_is_to_the_nearest_integer_and_ties_go_to_even() -> None:
    grid = Grid(0.25, 10.0, 7, 1)
    update = np.array([0.1, 0.125, 0.13, 0.375, -0.125, -0.2, 1.0])
    assert grid.encode(update).tolist() == [0, 0, 1, 2, 0, -1, 4]


@quick
@given(seed=st.integers(0, 2**32), dimension=st.integers(1, 60), clip=st.floats(0.01, 50))
def test_no_rounded_update_exceeds_the_inflated_norm(
    seed: int, dimension: int, clip: float
) -> None:
    grid = Grid(0.5, clip, dimension, 2)
    for update in clipped(seed, 5, dimension, clip):
        rounded = np.rint(update / 0.5)
        assert rounded @ rounded <= grid.squared_norm
        assert np.array_equal(grid.encode(update), rounded)
    bound = (clip / 0.5 + sqrt(dimension) / 2) ** 2
    assert bound - 1 - 1e-9 <= grid.squared_norm < bound + 2


def test_the_inflated_norm_is_reached() -> None:
    """All entries a little above half a step: the rounded vector is twice as long."""
    dimension = 10_000
    update = np.full(dimension, 0.500001)
    norm = float(np.linalg.norm(update))
    rounded = Grid(1.0, norm, dimension, 2).encode(update)
    assert np.sqrt(rounded @ rounded) == pytest.approx(norm + sqrt(dimension) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (np.array([0.0, 0.1, np.nan, 0.2]), "Entry 2 of the update"),
        (np.array([0.0, 0.1, -np.inf, np.inf]), "Entry 2 of the update"),
        (np.zeros(3), "has 4 entries"),
        (np.zeros((4, 1)), "has 4 entries"),
        *(
            (np.zeros(4, dtype), "has 4 entries")
            for dtype in (np.int64, np.float16, object, complex)
        ),
        *((size * np.eye(4)[1], "above the clip norm") for size in (1.01, 2.0, 1e10, 1.7e308)),
        *((np.full(4, size / 2), "above the clip norm") for size in (1.01, -1e300, 1.7e308)),
    ],
)
def test_an_update_that_does_not_fit_is_refused_and_not_clipped(
    update: np.ndarray, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        GRID.encode(update)


def test_an_update_clipped_in_single_precision_is_accepted() -> None:
    generator = np.random.default_rng(0)
    grid = Grid(2.0**-20, 1.0, 1000, 3)
    for _ in range(20):
        update = generator.normal(size=1000).astype(np.float32)
        update /= np.linalg.norm(update)
        grid.encode(update)
    GRID.encode(np.full(4, -0.5))


def test_the_modulus_is_the_smaller_one_that_tells_all_sums_apart() -> None:
    # One dimension: the limit of an entry is clip / step + 1/2, and a little for its irrational part.
    clip = 2.0**31 - 10
    assert Grid(1.0, clip, 1, 1).bits == 32
    assert Grid(1.0, clip, 1, 2).bits == 64
    assert Grid(1.0, clip / 2, 1, 2).bits == 32
    assert Grid(1.0, clip + 10, 1, 1).bits == 64
    assert Grid(1.0, clip - 10, 1, 1, noise=1000).bits == 64
    at_most = Grid(1.0, clip, 1, 1).sum_limit(1)
    assert 2 * at_most + 1 <= 2**32
    # Extremes come back from the ring.
    for value in (clip, -clip):
        grid = Grid(1.0, clip, 1, 1)
        ring = grid.encode(np.array([value])).astype(np.uint32)
        assert grid.decode(ring, 1).tolist() == [value]


def test_the_room_for_noise_keeps_the_overflow_below_its_bound() -> None:
    grid = Grid(1.0, 10.0, 1000, 50, noise=20)
    room = grid.sum_limit(50) - 50 * grid.entry_limit
    # The sum's noise is within 1e-6 of a normal one of variance 50 * 20^2: its true tail is smaller.
    tail = 2 * 1000 * stats.norm.sf(room / (20 * sqrt(50)))
    assert tail < 2.0**-40
    assert log2(tail) > -46, "the room is not wasted"
    assert grid.sum_limit(10) < grid.sum_limit(50)


def test_a_sum_out_of_range_is_refused() -> None:
    limit = GRID.sum_limit(2)
    for value in (limit, -limit):
        ring = np.array([0, value, 0, 0]).astype(np.uint32)
        assert GRID.decode(ring, 2)[1] == value * GRID.step
    for value in (limit + 1, -limit - 1, 2**31 - 1, -(2**31)):
        with pytest.raises(SecureAggregationError, match="Entry 1 of the sum is out of the range"):
            GRID.decode(np.array([0, value, 0, 0]).astype(np.uint32), 2)
    for total in (np.zeros(4, np.uint64), np.zeros(5, np.uint32)):
        with pytest.raises(SecureAggregationError, match="A sum has 4 entries of 32 bits"):
            GRID.decode(total, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 0.3}, "power of two"),
        ({"step": 0.0}, "power of two"),
        ({"step": -0.5}, "power of two"),
        ({"step": np.inf}, "power of two"),
        ({"clip": 0.0}, "clip norm"),
        ({"clip": np.nan}, "clip norm"),
        ({"dimension": 0}, "at least one"),
        ({"clients": 0}, "at least one"),
        ({"noise": -1}, "larger step"),
        ({"noise": 2**24 + 1}, "larger step"),
        ({"step": 2.0**-60}, "larger step"),
    ],
)
def test_impossible_grids_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(GRID, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("deviation", "bits"), [(0.0, 32), (0.01, 32), (0.5, 32), (0.0, 64)])
def test_the_finest_step_fits_and_half_of_it_does_not(deviation: float, bits: int) -> None:
    step = finest_step(1.0, 100, 30, deviation, bits)

    def grid(step: float) -> Grid:
        return Grid(step, 1.0, 100, 30, round(deviation / step))

    assert grid(step).bits == bits
    if deviation == 0.5 or bits == 64:  # here the noise or the sum itself would be too large
        with pytest.raises(InputError, match="larger step"):
            grid(step / 2)
    else:
        assert grid(step / 2).bits > bits


def test_clients_agree_on_every_part_of_the_grid_that_changes_numbers() -> None:
    others = [{}, {"step": 0.5}, {"clip": 2.0}, {"noise": 1}]
    cohort = {name: name.encode() * 32 for name in "abc"}
    grids = [replace(GRID, **other) for other in others]  # type: ignore[arg-type]
    terms = {grid.settings(bytes(16), 0, cohort, 3).terms for grid in grids}
    assert len(terms) == 4


def test_the_exact_norm_does_not_overflow() -> None:
    grid = Grid(2.0**-50, 1.0, 3, 1)
    assert grid.encode(np.array([1.0, 0.0, 0.0])).tolist() == [2**50, 0, 0]
    assert grid.entry_limit == isqrt(grid.squared_norm) >= 2**50
    with pytest.raises(InputError, match="above the clip norm"):
        grid.encode(np.array([1.0, 1e-7, 0.0]))
