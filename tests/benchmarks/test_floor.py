"""The counted operations against a round in plain Python whose numbers count what is done to them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

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


class Counter:
    def __init__(self) -> None:
        self.count = 0


class Number:
    """A float that tells its counter about every operation."""

    def __init__(self, value: float, counter: Counter) -> None:
        self.value, self.counter = value, counter

    def _new(self, value: float) -> Number:
        self.counter.count += 1
        return Number(value, self.counter)

    def __add__(self, other: Number) -> Number:
        return self._new(self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return self._new(self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return self._new(self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        return self._new(self.value / other.value)

    def apply(self, function: object) -> Number:
        assert callable(function)
        return self._new(function(self.value))


def add(values: list[Number]) -> Number:
    """n - 1 additions"""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def dot(a: list[Number], b: list[Number]) -> Number:
    return add([left * right for left, right in zip(a, b, strict=True)])


def numbers(counter: Counter, *shape: int) -> list:
    """Nested lists of positive numbers, no two alike."""
    steps = itertools.count(1)

    def make(sizes: tuple[int, ...]) -> object:
        if not sizes:
            return Number(1.0 / (1.0 + next(steps)), counter)
        return [make(sizes[1:]) for _ in range(sizes[0])]

    made = make(shape)
    assert isinstance(made, list)
    return made


def column(matrix: list, index: int) -> list[Number]:
    return [row[index] for row in matrix]


def run_network(counter: Counter, layers: tuple[tuple[int, int], ...], m: int) -> None:
    one = Number(1.0, counter)
    values = numbers(counter, m, layers[0][0])
    weights = [numbers(counter, *layer) for layer in layers]
    inputs = []
    for index, (weight, (_, outputs)) in enumerate(zip(weights, layers, strict=True)):
        inputs.append(values)
        bias = numbers(counter, outputs)
        values = [[dot(row, column(weight, j)) + bias[j] for j in range(outputs)] for row in values]
        if index < len(layers) - 1:
            values = [[value.apply(math.tanh) for value in row] for row in values]
    by_output = numbers(counter, m, layers[-1][1])
    for index in reversed(range(len(layers))):
        count_in, count_out = layers[index]
        for i, j in itertools.product(range(count_in), range(count_out)):
            dot(column(inputs[index], i), column(by_output, j))
        for j in range(count_out):
            add(column(by_output, j))
        if index > 0:
            by_output = [
                [
                    dot(by_output[row], weights[index][i])
                    * (one - inputs[index][row][i] * inputs[index][row][i])
                    for i in range(count_in)
                ]
                for row in range(m)
            ]


def run_evidence(counter: Counter, m: int) -> tuple[list, list]:
    """Returns the covariance and its inverse, so that the algorithm itself can be checked."""
    minus, two = Number(-0.5, counter), Number(2.0, counter)
    z, y, mean = numbers(counter, m, 2), numbers(counter, m), numbers(counter, m)
    noise, slope, constant = numbers(counter, 3)
    covariance: list = [[Number(1.0, counter) for _ in range(m)] for _ in range(m)]
    difference: dict = {}
    for a in range(m):
        for b in range(a):
            difference[a, b] = [z[a][o] - z[b][o] for o in range(2)]
            squared = dot(difference[a, b], difference[a, b])
            covariance[a][b] = covariance[b][a] = (squared * minus).apply(math.exp)
    kernel = [list(row) for row in covariance]
    for a in range(m):
        covariance[a][a] = covariance[a][a] + noise

    factor: list = [[None] * m for _ in range(m)]
    for j in range(m):
        for i in range(j, m):
            rest = covariance[i][j]
            for p in range(j):
                rest = rest - factor[i][p] * factor[j][p]
            factor[i][j] = rest.apply(math.sqrt) if i == j else rest / factor[j][j]
    zero, unit = Number(0.0, counter), Number(1.0, counter)
    inverse_factor: list = [[None] * m for _ in range(m)]
    for j in range(m):
        for i in range(j, m):
            if i == j:
                inverse_factor[i][i] = unit / factor[i][i]
                continue
            products = [factor[i][p] * inverse_factor[p][j] for p in range(j, i)]
            inverse_factor[i][j] = (zero - add(products)) / factor[i][i]
    inverse: list = [[None] * m for _ in range(m)]
    for i in range(m):
        for j in range(i + 1):
            below = range(i, m)
            inverse[i][j] = inverse[j][i] = dot(
                [inverse_factor[p][i] for p in below], [inverse_factor[p][j] for p in below]
            )
    residual = [y[a] - mean[a] for a in range(m)]
    alpha = [dot(row, residual) for row in inverse]
    logarithms = add([factor[a][a].apply(math.log) for a in range(m)])
    (dot(residual, alpha) + two * logarithms + constant) * minus

    by_features = [[Number(0.0, counter) for _ in range(2)] for _ in range(m)]
    diagonal = [alpha[a] * alpha[a] - inverse[a][a] for a in range(m)]
    add(diagonal) * slope
    for a, b in difference:
        weight = (alpha[a] * alpha[b] - inverse[a][b]) * kernel[a][b]
        for o in range(2):
            change = weight * difference[a, b][o]
            by_features[a][o] = by_features[a][o] - change
            by_features[b][o] = by_features[b][o] + change
    return covariance, inverse


def run_svgd(counter: Counter, k: int, d: int) -> None:
    tau, precision, rate, double, step = numbers(counter, 5)
    particles, gradients = numbers(counter, k, d), numbers(counter, k, d)
    scores = [
        [tau * gradients[j][e] - particles[j][e] * precision for e in range(d)] for j in range(k)
    ]
    kernel: list = [[Number(1.0, counter)] * k for _ in range(k)]
    for a in range(k):
        for b in range(a):
            away = [particles[a][e] - particles[b][e] for e in range(d)]
            kernel[a][b] = kernel[b][a] = (dot(away, away) * rate).apply(math.exp)
    pushed = [[scores[j][e] - double * particles[j][e] for e in range(d)] for j in range(k)]
    for j in range(k):
        pull = add(kernel[j]) * double
        for e in range(d):
            direction = dot(kernel[j], column(pushed, e)) + pull * particles[j][e]
            particles[j][e] + step * direction


@pytest.mark.parametrize("layers", [((3, 4), (4, 5), (5, 2)), ((1, 2),), ((2, 6), (6, 1))])
@pytest.mark.parametrize("m", [1, 7])
def test_network_operations_are_those_that_happen(
    layers: tuple[tuple[int, int], ...], m: int
) -> None:
    counter = Counter()
    run_network(counter, layers, m)
    assert network_operations(layers, m) == counter.count


@pytest.mark.parametrize("m", [1, 2, 9])
def test_evidence_operations_are_those_that_happen(m: int) -> None:
    counter = Counter()
    covariance, inverse = run_evidence(counter, m)
    assert evidence_operations(m) == counter.count
    for i, j in itertools.product(range(m), repeat=2):
        entry = dot(covariance[i], column(inverse, j)).value
        assert entry == pytest.approx(float(i == j), abs=1e-5)


@pytest.mark.parametrize(("k", "d"), [(1, 5), (3, 4), (6, 2)])
def test_svgd_operations_are_those_that_happen(k: int, d: int) -> None:
    counter = Counter()
    run_svgd(counter, k, d)
    assert svgd_operations(k, d) == counter.count


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
    sizes = TABLE[0]
    slow_arithmetic = floor_seconds(sizes, Ceiling(1e3, 1e12))
    slow_memory = floor_seconds(sizes, Ceiling(1e18, 1e3))
    assert slow_arithmetic == operations(sizes) / 1e3
    assert slow_memory == traffic(sizes) / 1e3
