"""The counted operations against a round in plain Python whose numbers count what is done to them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, partialmethod, reduce

import numpy as np
import pytest

from benchmarks.floor import (
    Ceiling,
    evidence_operations,
    floor_seconds,
    matrix_bytes,
    network_operations,
    operations,
    svgd_operations,
    traffic,
)
from benchmarks.problem import TABLE, Sizes


@dataclass
class Counter:
    count: int = 0


@dataclass
class Number:
    """A float that tells its counter about every operation."""

    value: float
    counter: Counter

    def apply(self, function: Callable[..., float], *others: Number) -> Number:
        self.counter.count += 1
        return Number(function(self.value, *(other.value for other in others)), self.counter)

    __add__ = partialmethod(apply, operator.add)
    __sub__ = partialmethod(apply, operator.sub)
    __mul__ = partialmethod(apply, operator.mul)
    __truediv__ = partialmethod(apply, operator.truediv)


def numbers(counter: Counter, *shape: int) -> np.ndarray:
    """Positive numbers, no two alike; NumPy's sums and products of them are counted as well."""
    values = [Number(1.0 / (2.0 + index), counter) for index in range(math.prod(shape))]
    return np.array(values, object).reshape(shape)


def apply(function: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    return np.frompyfunc(lambda value: value.apply(function), 1, 1)(values)


add = partial(reduce, operator.add)  # n - 1 additions


def run_network(counter: Counter, layers: tuple[tuple[int, int], ...], m: int) -> None:
    values, weights = numbers(counter, m, layers[0][0]), [numbers(counter, *s) for s in layers]
    inputs: list[np.ndarray] = []
    for weight in weights:
        inputs.append(values)
        values = values.dot(weight) + numbers(counter, weight.shape[1])
        if len(inputs) < len(layers):
            values = apply(math.tanh, values)
    by_output = numbers(counter, m, layers[-1][1])
    for index in reversed(range(len(layers))):
        inputs[index].T.dot(by_output)
        for outputs in by_output.T:
            add(outputs)
        if index > 0:
            one = np.full(inputs[index].shape, Number(1.0, counter))
            by_output = by_output.dot(weights[index].T) * (one - inputs[index] * inputs[index])


def factorise(covariance: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor, column by column."""
    factor = np.full_like(covariance, None)
    for j in range(len(factor)):
        column = covariance[j:, j]
        if j:
            column = column - factor[j:, :j].dot(factor[j, :j])
        factor[j, j] = column[0].apply(math.sqrt)
        factor[j + 1 :, j] = column[1:] / factor[j, j]
    return factor


def invert(factor: np.ndarray, counter: Counter) -> np.ndarray:
    """The inverse of what was factorised: that of the factor, times its own transpose."""
    zero, one = Number(0.0, counter), Number(1.0, counter)
    inverse_factor, inverse = np.full_like(factor, None), np.full_like(factor, None)
    for i in range(len(factor)):
        inverse_factor[i, i] = one / factor[i, i]
        for j in range(i):
            products = factor[i, j:i].dot(inverse_factor[j:i, j])
            inverse_factor[i, j] = (zero - products) / factor[i, i]
    for i in range(len(factor)):
        for j in range(i + 1):
            inverse[i, j] = inverse[j, i] = inverse_factor[i:, i].dot(inverse_factor[i:, j])
    return inverse


def run_evidence(counter: Counter, m: int) -> tuple[np.ndarray, np.ndarray]:
    """The covariance and its inverse, so that the algorithm itself can be checked."""
    minus, two = Number(-0.5, counter), Number(2.0, counter)
    z, y, mean = numbers(counter, m, 2), numbers(counter, m), numbers(counter, m)
    noise, slope, constant = numbers(counter, 3)
    difference = {(a, b): z[a] - z[b] for a in range(m) for b in range(a)}
    kernel = np.full((m, m), Number(1.0, counter))
    for (a, b), away in difference.items():
        kernel[a, b] = kernel[b, a] = (away.dot(away) * minus).apply(math.exp)
    covariance = kernel.copy()
    for a in range(m):
        covariance[a, a] = kernel[a, a] + noise

    factor = factorise(covariance)
    inverse = invert(factor, counter)
    residual = y - mean
    alpha = inverse.dot(residual)
    logarithms = add(apply(math.log, np.diagonal(factor)))
    (residual.dot(alpha) + two * logarithms + constant) * minus

    add(alpha * alpha - np.diagonal(inverse)) * slope
    by_features = np.full((m, 2), Number(0.0, counter))
    for (a, b), away in difference.items():
        change = away * ((alpha[a] * alpha[b] - inverse[a, b]) * kernel[a, b])
        by_features[a] = by_features[a] - change
        by_features[b] = by_features[b] + change
    return covariance, inverse


def run_svgd(counter: Counter, k: int, d: int) -> None:
    tau, precision, rate, double, step = numbers(counter, 5)
    particles, gradients = numbers(counter, k, d), numbers(counter, k, d)
    scores = gradients * tau - particles * precision
    kernel = np.full((k, k), Number(1.0, counter))
    for a in range(k):
        for b in range(a):
            away = particles[a] - particles[b]
            kernel[a, b] = kernel[b, a] = (away.dot(away) * rate).apply(math.exp)
    pushed = scores - particles * double
    for j in range(k):
        direction = kernel[j].dot(pushed) + particles[j] * (add(kernel[j]) * double)
        particles[j] + direction * step


@pytest.mark.parametrize(
    ("counted", "run", "sizes"),
    [
        *((network_operations, run_network, (((3, 4), (4, 5), (5, 2)), m)) for m in (1, 7)),
        *((network_operations, run_network, (((1, 2),), m)) for m in (1, 7)),
        *((evidence_operations, run_evidence, (m,)) for m in (1, 2, 9)),
        *((svgd_operations, run_svgd, sizes) for sizes in ((1, 5), (3, 4), (6, 2))),
    ],
)
def test_operations_are_those_that_happen(counted, run, sizes):
    counter = Counter()
    made = run(counter, *sizes)
    assert counted(*sizes) == counter.count
    if made is not None:
        covariance, inverse = made
        values = [[entry.value for entry in row] for row in covariance.dot(inverse)]
        np.testing.assert_allclose(values, np.eye(*sizes), atol=1e-5)


def test_large_matrices_cost_their_cube() -> None:
    assert evidence_operations(10_000) == pytest.approx(10_000**3, rel=5e-3)


def test_a_round_is_the_sum_of_its_parts() -> None:
    sizes = Sizes(particles=2, clients=3, samples=4, features=1, hidden=(5,))
    one = replace(sizes, clients=1)
    # one more client: its evidence, its networks, and adding its gradient to the others'
    client = (operations(sizes) - operations(one)) // 2
    networks = network_operations(((1, 5), (5, 1)), 4) + network_operations(((1, 5), (5, 2)), 4)
    assert sizes.dimension == (10 + 6) + (10 + 12) + 1
    assert client == 2 * (networks + evidence_operations(4)) + 2 * sizes.dimension
    assert operations(one) == 2 * (networks + evidence_operations(4)) + (
        svgd_operations(2, sizes.dimension)
    )
    assert traffic(sizes) == 4 * (3 * 4 * 2 + 2 * 2 * sizes.dimension)
    assert matrix_bytes(sizes) == 4 * 3 * 2 * 16


def test_the_floor_is_the_longer_of_arithmetic_and_traffic() -> None:
    assert floor_seconds(TABLE[0], Ceiling(1e3, 1e12)) == operations(TABLE[0]) / 1e3
    assert floor_seconds(TABLE[0], Ceiling(1e18, 1e3)) == traffic(TABLE[0]) / 1e3
