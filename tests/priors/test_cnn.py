"""The convolutional network against the library's own convolution, pooling and matrix product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from jax import lax

from pacpfl.errors import InputError
from pacpfl.priors.networks import (
    CNN,
    MLP,
    affine,
    body_size,
    by_rows,
    features,
    has_features,
    layer_sizes,
)

pytestmark = pytest.mark.usefixtures("x64")


NETWORKS = {
    "valid": CNN(18, 17, 3, filters=(2, 3), hidden=4),
    "same": CNN(5, 7, 2, channels=2, filters=(3, 2), hidden=5, side=3, padding="same"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def by_library(network: CNN, parameters: jax.Array, x: jax.Array) -> jax.Array:
    """The network once more: the convolution primitive, reduce_window, and weights read off in turn."""
    rest = parameters

    def take(*shape: int) -> jax.Array:
        nonlocal rest
        count = int(np.prod(shape))
        piece, rest = rest[:count].reshape(shape), rest[count:]
        return piece

    values = x.reshape(-1, network.height, network.width, network.channels)
    for inputs, outputs in ((network.channels, network.filters[0]), network.filters):
        kernel = take(network.side, network.side, inputs, outputs)
        values = lax.conv_general_dilated(
            values,
            kernel,
            (1, 1),
            network.padding.upper(),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        values = jax.nn.relu(values + take(outputs))
        square = (1, 2, 2, 1)
        values = lax.reduce_window(values, -jnp.inf, lax.max, square, square, "VALID")
    values = values.reshape(values.shape[0], -1)
    values = jax.nn.relu(values @ take(values.shape[1], network.hidden) + take(network.hidden))
    values = values @ take(network.hidden, network.outputs) + take(network.outputs)
    assert rest.size == 0
    return values


def sample(network: CNN, rows: int = 4) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=network.size) * 0.5
    pixels = network.height * network.width * network.channels
    return jnp.asarray(parameters), jnp.asarray(rng.normal(size=(rows, pixels)))


@every_network
def test_output_and_gradient_are_those_of_the_library(name: str) -> None:
    network = NETWORKS[name]
    parameters, x = sample(network)

    def both(parameters: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        results = []
        for function in (network, lambda p, x: by_library(network, p, x)):
            outputs, pullback = jax.vjp(function, parameters, x)
            results += [
                outputs,
                *pullback(jnp.cos(1 + jnp.arange(outputs.size * 1.0)).reshape(outputs.shape)),
            ]
        return tuple(results)

    found = compiled(both)(parameters, x)
    assert found[0].shape == (4, network.outputs)
    for ours, theirs in zip(found[:3], found[3:], strict=True):
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_usual_network_has_582026_parameters() -> None:
    network = CNN(28, 28, 10)
    assert network.layer_sizes == (26 * 32, 801 * 64, 1025 * 512, 513 * 10)
    assert network.size == 582_026
    assert CNN(28, 28, 62).size == 582_026 + 52 * 513
    assert CNN(28, 28, 10, padding="same").layer_sizes[2] == (7 * 7 * 64 + 1) * 512


def test_weights_of_many_networks_are_multiplied_not_convolved() -> None:
    """Distinct weights would turn a convolution into a slow grouped one."""
    network = NETWORKS["valid"]
    parameters, x = sample(network)
    many = jax.jit(jax.vmap(jax.grad(lambda p: network(p, x).sum())))
    text = many.lower(jnp.stack([parameters, -parameters])).as_text()
    assert "dot_general" in text
    assert "convolution" not in text


def test_initial_values() -> None:
    network = CNN(16, 16, 10, filters=(16, 32), hidden=64)
    start = compiled(network.initial)(jax.random.key(0))
    assert start.shape == (network.size,)
    fans = ((25, 16), (400, 32), (32, 64), (64, 10))
    for index, (inputs, outputs) in enumerate(fans):
        weights, biases, start = np.split(start, [inputs * outputs, (inputs + 1) * outputs])
        expected = np.sqrt((2 if index < 3 else 1) / inputs)
        assert np.std(weights) == pytest.approx(expected, rel=5 / np.sqrt(2 * weights.size))
        assert not biases.any()


@every_network
def test_head_on_features_is_the_network(name: str) -> None:
    network = NETWORKS[name]
    parameters, x = sample(network)
    assert has_features(network)
    assert (
        layer_sizes(network)[-1]
        == network.size - body_size(network)
        == ((network.hidden + 1) * network.outputs)
    )
    body, head = jnp.split(parameters, [body_size(network)])
    found, whole = compiled(lambda b, h, p: (affine(h, features(network, b, x)), network(p, x)))(
        body, head, parameters
    )
    np.testing.assert_allclose(found, whole, rtol=1e-12)


@pytest.mark.parametrize("sizes", [(3, 2), (3, 5, 4, 2)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_an_mlp_is_cut_before_its_last_layer(sizes: tuple[int, ...], activation: str) -> None:
    network, rng = MLP(sizes, activation), np.random.default_rng(1)
    parameters, x = jnp.asarray(rng.normal(size=network.size)), jnp.asarray(rng.normal(size=(5, 3)))
    counts = layer_sizes(network)
    assert sum(counts) == network.size and len(counts) == len(sizes) - 1
    body, head = jnp.split(parameters, [body_size(network)])
    assert head.size == (sizes[-2] + 1) * 2
    np.testing.assert_allclose(
        affine(head, features(network, body, x)), network(parameters, x), rtol=1e-12
    )


@pytest.mark.parametrize("rows", [3, 513, 1100])
def test_many_rows_in_parts(rows: int) -> None:
    network, rng = MLP((2, 3)), np.random.default_rng(2)
    parameters, x = jnp.asarray(rng.normal(size=9)), jnp.asarray(rng.normal(size=(rows, 2)))
    found = compiled(lambda x: by_rows(lambda part: network(parameters, part), x))(x)
    np.testing.assert_allclose(found, network(parameters, x), rtol=1e-12)


def test_no_rows_no_outputs() -> None:
    network = NETWORKS["valid"]
    shapes = jax.ShapeDtypeStruct((network.size,), float), jax.ShapeDtypeStruct((0, 18 * 17), float)
    assert jax.eval_shape(network, *shapes).shape == (0, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"height": 8, "width": 8}, 'choose padding "same"'),
        ({"height": 28, "width": 12}, "28 x 12"),
        ({"height": 28, "width": 28, "padding": "reflect"}, "valid, same"),
        ({"height": 28, "width": 28, "padding": "same", "side": 4}, "odd"),
    ],
)
def test_what_cannot_be_built(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CNN(outputs=10, **settings)  # type: ignore[arg-type]


def test_a_network_without_layers_says_so() -> None:
    class Bare:
        size = 3

        def initial(self, key: jax.Array) -> jax.Array:
            return jnp.zeros(3)

        def __call__(self, parameters: jax.Array, x: jax.Array) -> jax.Array:
            return x @ parameters[:, None]

    assert not has_features(Bare())
    with pytest.raises(InputError, match="layer_sizes"):
        layer_sizes(Bare())
