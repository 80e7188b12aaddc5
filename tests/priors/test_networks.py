"""Networks against NumPy, the library's convolution and pooling, and equinox's own call."""

from __future__ import annotations

import math
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from jax import lax

from pacpfl.arrays.traced import quick_tanh as tanh
from pacpfl.errors import InputError
from pacpfl.priors.networks import (
    CNN,
    MLP,
    Headed,
    WrappedNetwork,
    affine,
    body_size,
    by_rows,
    layer_sizes,
)

pytestmark = pytest.mark.usefixtures("x64")

CONVOLUTIONS = {
    "valid": CNN(18, 17, 3, filters=(2, 3), hidden=4),
    "same": CNN(5, 7, 2, filters=(3, 2), hidden=5, padding="same"),
}


@pytest.mark.parametrize("sizes", [(3, 2), (1, 4, 1), (2, 5, 3, 2), (4, 1, 6, 2, 3)])
def test_an_mlp_is_its_layers(sizes: tuple[int, ...], oracle: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    network = MLP(sizes)
    parameters, x = rng.normal(size=network.size), rng.normal(size=(4, sizes[0]))
    expected = oracle.network(parameters, sizes, x)
    np.testing.assert_allclose(network(parameters, x), expected, rtol=1e-12, atol=1e-14)


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


def by_library(network: CNN, parameters: jax.Array, x: jax.Array) -> jax.Array:
    """The network once more: the convolution primitive, reduce_window, and weights read off in turn."""
    rest = parameters

    def take(*shape: int) -> jax.Array:
        nonlocal rest
        piece, rest = jnp.split(rest, [math.prod(shape)])
        return piece.reshape(shape)

    values = x.reshape(-1, network.height, network.width, 1)
    layout, square = ("NHWC", "HWIO", "NHWC"), (1, 2, 2, 1)
    for inputs, outputs in ((1, network.filters[0]), network.filters):
        kernel, edge = take(5, 5, inputs, outputs), network.padding.upper()
        values = lax.conv_general_dilated(values, kernel, (1, 1), edge, dimension_numbers=layout)
        values = jax.nn.relu(values + take(outputs))
        values = lax.reduce_window(values, -jnp.inf, lax.max, square, square, "VALID")
    values = values.reshape(values.shape[0], -1)
    values = jax.nn.relu(values @ take(values.shape[1], network.hidden) + take(network.hidden))
    values = values @ take(network.hidden, network.outputs) + take(network.outputs)
    assert rest.size == 0
    return values


def sample(network: CNN) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=network.size) * 0.5
    x = rng.normal(size=(4, network.height * network.width))
    return jnp.asarray(parameters), jnp.asarray(x)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients_are_those_of_the_library(name: str) -> None:
    network = CONVOLUTIONS[name]
    parameters, x = sample(network)

    def both(parameters: jax.Array, x: jax.Array) -> list[tuple[jax.Array, ...]]:
        results = []
        for function in (network, lambda p, x: by_library(network, p, x)):
            outputs, pullback = jax.vjp(function, parameters, x)
            cotangent = jnp.cos(1 + jnp.arange(outputs.size * 1.0)).reshape(outputs.shape)
            results.append((outputs, *pullback(cotangent)))
        return results

    found = compiled(both)(parameters, x)
    assert found[0][0].shape == (4, network.outputs)
    for ours, theirs in zip(*found, strict=True):
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_usual_network_has_582026_parameters() -> None:
    network = CNN(28, 28, 10)
    assert network.layer_sizes == (26 * 32, 801 * 64, 1025 * 512, 513 * 10)
    assert network.size == 582_026
    assert CNN(28, 28, 10, padding="same").layer_sizes[2] == (7 * 7 * 64 + 1) * 512
    nothing = jax.ShapeDtypeStruct((network.size,), float), jax.ShapeDtypeStruct((0, 784), float)
    assert jax.eval_shape(network, *nothing).shape == (0, 10)


def test_weights_of_many_networks_are_multiplied_not_convolved() -> None:
    """Distinct weights would turn a convolution into a slow grouped one."""
    network = CONVOLUTIONS["valid"]
    parameters, x = sample(network)
    many = jax.jit(jax.vmap(jax.grad(lambda p: network(p, x).sum())))
    text = many.lower(jnp.stack([parameters, -parameters])).as_text()
    assert "dot_general" in text
    assert "convolution" not in text


@pytest.mark.parametrize(
    ("network", "fans", "gains"),
    [
        (
            CNN(16, 16, 10, filters=(16, 32), hidden=64),
            ((25, 16), (400, 32), (32, 64), (64, 10)),
            (2, 2, 2, 1),
        ),
        (MLP((40, 30, 20), "relu"), ((40, 30), (30, 20)), (1, 2)),
    ],
)
def test_initial_values(network: CNN | MLP, fans: tuple[tuple[int, int]], gains: list[int]) -> None:
    rest = np.asarray(compiled(network.initial)(jax.random.key(0)))
    for (inputs, outputs), gain in zip(fans, gains, strict=True):
        weights, biases, rest = np.split(rest, [inputs * outputs, (inputs + 1) * outputs])
        error = 5 / np.sqrt(2 * weights.size)
        assert np.std(weights) == pytest.approx(np.sqrt(gain / inputs), rel=error)
        assert not biases.any()
    assert not rest.size


@pytest.mark.parametrize(
    "network", [*CONVOLUTIONS.values(), MLP((3, 2)), MLP((3, 5, 4, 2)), MLP((3, 5, 2), "relu")]
)
def test_the_last_layer_on_the_features_is_the_network(network: CNN | MLP) -> None:
    assert isinstance(network, Headed)
    inputs, outputs = network.layers[-1]
    assert layer_sizes(network)[-1] == network.size - body_size(network) == (inputs + 1) * outputs
    if isinstance(network, CNN):
        parameters, x = sample(network)
    else:
        rng = np.random.default_rng(1)
        parameters, x = (jnp.asarray(rng.normal(size=s)) for s in (network.size, (5, 3)))
    body, head = jnp.split(parameters, [body_size(network)])
    found, whole = compiled(lambda b, h, p: (affine(h, network.features(b, x)), network(p, x)))(
        body, head, parameters
    )
    np.testing.assert_allclose(found, whole, rtol=1e-12)


@pytest.mark.parametrize("rows", [3, 513, 1100])
def test_many_rows_in_parts(rows: int) -> None:
    network, rng = MLP((2, 3)), np.random.default_rng(2)
    parameters, x = jnp.asarray(rng.normal(size=9)), jnp.asarray(rng.normal(size=(rows, 2)))
    found = compiled(lambda x: by_rows(lambda part: network(parameters, part), x))(x)
    np.testing.assert_allclose(found, network(parameters, x), rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"height": 8, "width": 8}, 'choose padding "same"'),
        ({"height": 28, "width": 12}, "28 x 12"),
        ({"height": 3, "width": 28, "padding": "same"}, "3 x 28"),
    ],
)
def test_what_cannot_be_built(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CNN(outputs=10, **settings)  # type: ignore[arg-type]


def test_a_network_without_layers_says_so() -> None:
    with pytest.raises(InputError, match="layer_sizes"):
        layer_sizes(object())  # type: ignore[arg-type]


class Odd(eqx.Module):
    """Parameters of its own before and after those of a child, a constant, and a whole number."""

    scale: jax.Array
    inner: eqx.nn.Linear
    shift: jax.Array
    factor: float
    order: jax.Array

    def __init__(self, key: jax.Array) -> None:
        self.scale = jnp.full(2, 3.0)
        self.inner = eqx.nn.Linear(2, 3, key=key)
        self.shift = jnp.array([0.5])
        self.factor = 10.0
        self.order = jnp.array([2, 0, 1])

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.factor * self.inner(self.scale * x)[self.order] + self.shift


def make_mlp(key: jax.Array) -> eqx.nn.MLP:
    return eqx.nn.MLP(3, 2, 4, 2, key=key)


def make_cnn(key: jax.Array) -> eqx.nn.Sequential:
    a, b = jax.random.split(key)
    convolution, dense = eqx.nn.Conv2d(1, 2, 3, key=a), eqx.nn.Linear(12, 3, key=b)
    return eqx.nn.Sequential([convolution, eqx.nn.Lambda(jnp.ravel), dense])


def test_a_wrapped_network_is_the_network_itself() -> None:
    """With its own parameters, and with others in their places, by hand."""
    key, rng, wrapped = jax.random.key(1), np.random.default_rng(2), WrappedNetwork(Odd)
    network, x = Odd(key), rng.normal(size=(5, 2))
    expected = [network.scale, network.inner.weight.ravel(), network.inner.bias, network.shift]
    np.testing.assert_array_equal(wrapped.initial(key), np.concatenate(expected))
    own = wrapped(wrapped.initial(key), x)
    np.testing.assert_allclose(own, jax.vmap(network)(x), rtol=1e-12)
    scale, weight, bias, shift = (rng.normal(size=s) for s in ((2,), (3, 2), (3,), (1,)))
    other = jnp.concatenate([scale, weight.ravel(), bias, shift])
    assert other.size == wrapped.size
    by_hand = 10 * ((x * scale) @ weight.T + bias)[:, [2, 0, 1]] + shift
    np.testing.assert_allclose(wrapped(other, x), by_hand, rtol=1e-12)


def test_rows_are_reshaped_for_a_wrapped_network() -> None:
    wrapped, key = WrappedNetwork(make_cnn, (1, 4, 5)), jax.random.key(3)
    x = np.random.default_rng(3).normal(size=(3, 20))
    expected = jax.vmap(make_cnn(key))(x.reshape(3, 1, 4, 5))
    np.testing.assert_allclose(wrapped(wrapped.initial(key), x), expected, rtol=1e-12)


def test_layers_of_a_wrapped_network_are_its_modules() -> None:
    assert layer_sizes(WrappedNetwork(make_mlp)) == (16, 20, 10)
    assert layer_sizes(WrappedNetwork(make_cnn)) == (20, 39)
    assert layer_sizes(WrappedNetwork(Odd)) == (2, 9, 1)
    assert not isinstance(WrappedNetwork(make_mlp), Headed)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_precision_is_that_of_the_parameters(dtype: type) -> None:
    shapes = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((46,), (2, 3)))
    outputs = jax.eval_shape(WrappedNetwork(make_mlp), *shapes)
    assert outputs.shape == (2, 2) and outputs.dtype == dtype


def test_equal_wrappers_are_equal() -> None:
    """They are static arguments of compiled functions: equal ones must not compile again."""
    assert WrappedNetwork(make_mlp) == WrappedNetwork(make_mlp)
    assert hash(WrappedNetwork(make_mlp)) == hash(WrappedNetwork(make_mlp))
    assert WrappedNetwork(make_mlp, (3,)) != WrappedNetwork(make_mlp)
