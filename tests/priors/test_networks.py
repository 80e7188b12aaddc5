"""Networks against neurons computed one by one."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pacpfl.priors.networks import MLP, tanh

pytestmark = pytest.mark.usefixtures("x64")


def neuron_by_neuron(
    parameters: list[float], sizes: tuple[int, ...], x: list[float]
) -> list[float]:
    values, position = x, 0
    for depth, (inputs, outputs) in enumerate(pairwise(sizes)):
        bias = position + inputs * outputs
        sums = [
            parameters[bias + o]
            + sum(values[i] * parameters[position + i * outputs + o] for i in range(inputs))
            for o in range(outputs)
        ]
        hidden = depth < len(sizes) - 2
        values = [math.tanh(value) for value in sums] if hidden else sums
        position = bias + outputs
    return values


@pytest.mark.parametrize("sizes", [(3, 2), (1, 4, 1), (2, 5, 3, 2), (4, 1, 6, 2, 3)])
def test_output_is_that_of_single_neurons(sizes: tuple[int, ...], oracle: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    network = MLP(sizes)
    parameters, x = rng.normal(size=network.size), rng.normal(size=(4, sizes[0]))
    expected = [neuron_by_neuron(list(parameters), sizes, list(row)) for row in x]
    np.testing.assert_allclose(network(parameters, x), expected, rtol=1e-12, atol=1e-14)
    # The oracle that other tests use is checked by the same neurons.
    np.testing.assert_allclose(oracle.network(parameters, sizes, x), expected, rtol=1e-12)


def test_number_of_parameters() -> None:
    assert MLP((15, 32, 32, 1)).size == 16 * 32 + 33 * 32 + 33
    assert MLP((3, 2)).size == 8


def test_without_hidden_layers_the_map_is_affine() -> None:
    """Weights come row by row, biases after them."""
    parameters = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    output = MLP((2, 2))(parameters, np.array([[10.0, 100.0]]))
    np.testing.assert_array_equal(output, [[10.0 + 300 + 5, 20.0 + 400 + 6]])


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-7), (np.float64, 6e-16)])
def test_tanh_and_its_derivatives_everywhere(dtype: type, error: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4801), [-1e30, -300.0, 0.0, 300.0, 1e30]])
    x = x.astype(dtype)
    exact = np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(tanh(x), exact, rtol=0, atol=error)
    slope = jax.vmap(jax.grad(tanh))
    np.testing.assert_allclose(slope(x), 1 - exact**2, rtol=0, atol=4 * error)
    curvature = jax.vmap(jax.grad(jax.grad(tanh)))(x)
    np.testing.assert_allclose(curvature, -2 * exact * (1 - exact**2), rtol=0, atol=8 * error)
    assert tanh(dtype(0)) == 0
