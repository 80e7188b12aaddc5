"""Equinox networks as flat ones: the same numbers as the network itself."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled

from pacpfl.priors.networks import CNN, WrappedNetwork, has_features, layer_sizes

pytestmark = pytest.mark.usefixtures("x64")


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
    """The study's network in equinox: channels first, convolutions and pooling of its own."""
    a, b, c, d = jax.random.split(key, 4)
    pool, relu = eqx.nn.MaxPool2d(2, 2), eqx.nn.Lambda(jax.nn.relu)
    return eqx.nn.Sequential(
        [
            *(eqx.nn.Conv2d(1, 2, 5, key=a), relu, pool),
            *(eqx.nn.Conv2d(2, 3, 5, key=b), relu, pool),
            *(eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(6, 4, key=c), relu),
            eqx.nn.Linear(4, 3, key=d),
        ]
    )


def test_initial_values_give_the_network_itself() -> None:
    key = jax.random.key(1)
    network, wrapped = Odd(key), WrappedNetwork(Odd)
    parameters = wrapped.initial(key)
    expected = [network.scale, network.inner.weight.ravel(), network.inner.bias, network.shift]
    np.testing.assert_array_equal(parameters, np.concatenate(expected))
    assert wrapped.size == parameters.size
    x = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(wrapped(parameters, x), jax.vmap(network)(x), rtol=1e-12)


def test_other_parameters_take_their_places() -> None:
    """Parameters given as a vector against the module with its arrays replaced one by one."""
    wrapped, rng = WrappedNetwork(Odd), np.random.default_rng(2)
    assert wrapped.size == 2 + 6 + 3 + 1
    scale, weight, bias, shift = (rng.normal(size=s) for s in ((2,), (3, 2), (3,), (1,)))
    parameters = np.concatenate([scale, weight.ravel(), bias, shift])
    x = rng.normal(size=(4, 2))
    expected = 10 * ((x * scale) @ weight.T + bias)[:, [2, 0, 1]] + shift
    np.testing.assert_allclose(
        wrapped(jnp.asarray(parameters), jnp.asarray(x)), expected, rtol=1e-12
    )


def test_layers_are_modules() -> None:
    assert WrappedNetwork(make_mlp).layer_sizes == (16, 20, 10)
    assert WrappedNetwork(make_cnn).layer_sizes == (52, 153, 28, 15)
    assert WrappedNetwork(Odd).layer_sizes == (2, 9, 1)
    assert layer_sizes(WrappedNetwork(make_mlp)) == (16, 20, 10)
    assert not has_features(WrappedNetwork(make_mlp))


def test_the_convolutional_network_in_equinox() -> None:
    """Two independent ways to the same function: equinox's layers, and patches times kernels."""
    wrapped, ours = WrappedNetwork(make_cnn, (1, 17, 20)), CNN(17, 20, 3, filters=(2, 3), hidden=4)
    rng = np.random.default_rng(3)
    shapes = eqx.filter_eval_shape(make_cnn, jax.random.key(0))
    network = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape) * 0.3 if hasattr(leaf, "shape") else leaf, shapes
    )
    convolutions = [network.layers[0], network.layers[3]]
    dense, last = network.layers[7], network.layers[9]
    pieces = []
    for layer in convolutions:  # [out, in, row, column] -> [row, column, in, out]
        pieces += [layer.weight.transpose(2, 3, 1, 0).ravel(), layer.bias.ravel()]
    # dense inputs: [channel, row, column] -> [row, column, channel]
    weight = dense.weight.reshape(4, 3, 1, 2).transpose(2, 3, 1, 0)
    pieces += [weight.ravel(), dense.bias, last.weight.T.ravel(), last.bias]
    flat = np.concatenate(pieces)
    assert flat.size == ours.size == wrapped.size
    x = rng.normal(size=(3, 17 * 20))
    own = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(network) if np.ndim(leaf)])
    found, expected = compiled(lambda own, flat, x: (wrapped(own, x), ours(flat, x)))(own, flat, x)
    assert np.std(found) > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_precision_is_that_of_the_parameters() -> None:
    wrapped = WrappedNetwork(make_mlp)
    for dtype in (jnp.float32, jnp.float64):
        parameters = jax.ShapeDtypeStruct((wrapped.size,), dtype)
        outputs = jax.eval_shape(wrapped, parameters, jax.ShapeDtypeStruct((2, 3), dtype))
        assert outputs.shape == (2, 2) and outputs.dtype == dtype


def test_equal_wrappers_are_equal() -> None:
    """They are static arguments of compiled functions: equal ones must not compile again."""
    assert WrappedNetwork(make_mlp) == WrappedNetwork(make_mlp)
    assert hash(WrappedNetwork(make_mlp)) == hash(WrappedNetwork(make_mlp))
    assert WrappedNetwork(make_mlp, (3,)) != WrappedNetwork(make_mlp)
