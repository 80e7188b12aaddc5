"""Networks whose parameters are one flat vector, so that a particle can hold them.

Here are the MLP, the CNN of the classification study, any equinox network (`WrappedNetwork`), and how
a network is taken apart: how its parameters divide into layers, and what its last layer sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from pacpfl import arrays
from pacpfl.errors import InputError
from pacpfl.settings import Settings, key

if TYPE_CHECKING:
    import equinox as eqx
    from jaxtyping import Array, Float, PyTree

    Parameters = Float[Array, " size"]
    Inputs = Float[Array, "m inputs"]  # row by row
    Outputs = Float[Array, "m outputs"]

SIDE = 5  # of a convolution's patch
ROWS = 512  # inputs at once where all there are may not fit into memory


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """The network of fedavg, mtl and maml, and of Bayesian networks."""

    kind: str = key("mlp", "mlp, or cnn (images)", choices=("mlp", "cnn"))
    widths: tuple[int, ...] = key((32, 32), "neurons of its hidden layers (mlp)", least=1)
    activation: str = key("tanh", "of its hidden layers (mlp)", choices=("tanh", "relu"))
    filters: tuple[int, ...] = key((32, 64), "channels of its two convolutions (cnn)", least=1)
    hidden: int = key(512, "neurons of its dense layer (cnn)", least=1)

    def problems(self) -> Iterator[str]:
        if len(self.filters) != 2:
            yield (
                f"filters = {list(self.filters)} must name the channels of two convolutions, such as "
                "[32, 64]."
            )


class Network(Protocol):
    """A function with `size` parameters; frozen and hashable, it holds shapes, never numbers."""

    @property
    def size(self) -> int: ...

    def initial(self, key: Array) -> Parameters:
        """Parameters to start training from."""
        ...

    def __call__(self, parameters: Parameters, x: Inputs) -> Outputs: ...


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda x: arrays.of(x).quick_tanh(x),
    "relu": lambda x: arrays.of(x).relu(x),
}
GAINS = {"tanh": 1.0, "relu": 2.0}  # variance of the weights times inputs: Glorot (LeCun), He


class Dense:
    """A network made of matrices; its parameters lie layer by layer, weights before biases."""

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer's matrix."""
        raise NotImplementedError

    @property
    def gains(self) -> tuple[float, ...]:
        """Variance of each layer's first weights, times its inputs."""
        raise NotImplementedError

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return tuple((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def size(self) -> int:
        return sum(self.layer_sizes)

    def initial(self, key: Array) -> Parameters:
        """Weights N(0, gain / inputs), biases 0."""
        import jax
        import jax.numpy as jnp

        parts = []
        for index, (inputs, outputs) in enumerate(self.layers):
            draw = jax.random.normal(jax.random.fold_in(key, index), (inputs * outputs,))
            parts += [math.sqrt(self.gains[index] / inputs) * draw, jnp.zeros(outputs)]
        return jnp.concatenate(parts)


@dataclass(frozen=True)
class MLP(Dense):
    """Linear output; `sizes` = (inputs, hidden..., outputs)."""

    sizes: tuple[int, ...]
    activation: str = "tanh"

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.sizes[:-1], self.sizes[1:], strict=True))

    @property
    def gains(self) -> tuple[float, ...]:
        return (1.0, *[GAINS[self.activation]] * (len(self.sizes) - 2))

    @property
    def activations(self) -> int:
        """How many numbers one row leaves behind on its way through the network."""
        return sum(self.sizes)

    def __call__(self, parameters: Parameters, x: Inputs) -> Outputs:
        first, *rest = arrays.of(parameters, x).split(parameters, np.cumsum(self.layer_sizes[:-1]))
        x = affine(first, x)
        for layer in rest:
            x = affine(layer, ACTIVATIONS[self.activation](x))
        return x

    def features(self, body: Float[Array, " body"], x: Inputs) -> Float[Array, "m features"]:
        if len(self.sizes) == 2:
            return x
        return ACTIVATIONS[self.activation](MLP(self.sizes[:-1], self.activation)(body, x))


@runtime_checkable
class Headed(Network, Protocol):
    """A network that ends in `affine`: its last layer can be adapted without running the others."""

    def features(self, body: Float[Array, " body"], x: Inputs) -> Float[Array, "m features"]:
        """What the last layer sees; `body` are the parameters of all layers before it."""
        ...


def layer_sizes(network: Network) -> tuple[int, ...]:
    """Return the number of parameters of each layer, in the order in which they lie.

    Raises
    ------
    InputError
        If the network does not tell.
    """
    sizes: tuple[int, ...] | None = getattr(network, "layer_sizes", None)
    if sizes is None:
        raise InputError(
            f"{type(network).__name__} does not tell its layers; give it a layer_sizes property, or "
            'choose std_per = "weight" and adapt = "all".'
        )
    return sizes


def body_size(network: Network) -> int:
    """Number of parameters before the last layer."""
    return network.size - layer_sizes(network)[-1]


def affine(
    parameters: Float[Array, " p"], x: Float[Array, "*m inputs"]
) -> Float[Array, "*m outputs"]:
    """x W + b with the parameters as all networks here keep them: W row by row, then b.

    (Taken apart by `split`, not by slices: its gradient is one concatenation instead of a sum of
    arrays padded with zeros.)
    """
    inputs = x.shape[-1]
    outputs = parameters.size // (inputs + 1)
    weight, bias = arrays.of(parameters).split(parameters, [inputs * outputs])
    return x @ weight.reshape(inputs, outputs) + bias


def by_rows(function: Callable[[Inputs], Outputs], x: Inputs) -> Outputs:
    """function(x), many inputs in parts: for results that need no gradient."""
    if x.shape[0] <= ROWS:
        return function(x)
    import jax

    return jax.lax.map(lambda row: function(row[None])[0], x, batch_size=ROWS)


@dataclass(frozen=True)
class CNN(Dense):
    """The convolutional network of the classification study (McMahan et al. 2017, as in the paper).

    5x5 convolution to 32 channels, 2x2 maximum, 5x5 convolution to 64, 2x2 maximum, dense layer of
    512, output; rectified after each but the last. Rows of features are grey images, pixel after
    pixel.

    A convolution is ONE matrix product of all patches with the kernel (im2col), under vmap over
    weights a batched product; a convolution primitive would become a grouped one, several times
    slower.

    `padding` "valid" (the usual one: 582,026 parameters for digits of 28 x 28) takes patches from
    inside the image only; "same" surrounds it with zeros, which small images need. Parameters lie
    layer by layer: kernel [5, 5, in, out] row by row (dense: [in, out]), then biases [out].
    """

    height: int
    width: int
    outputs: int
    filters: tuple[int, int] = (32, 64)
    hidden: int = 512
    padding: Literal["valid", "same"] = "valid"

    def __post_init__(self) -> None:
        if min(self._grids[1]) < 2:
            raise InputError(
                f"Images of {self.height} x {self.width} are too small for two convolutions of "
                f'{SIDE} x {SIDE} with padding {self.padding!r}; choose padding "same", or an MLP.'
            )

    @property
    def _grids(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width after each convolution; the maximum behind it halves them."""
        lost = SIDE - 1 if self.padding == "valid" else 0
        height, width = self.height - lost, self.width - lost
        return (height, width), (height // 2 - lost, width // 2 - lost)

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        first, second = self.filters
        height, width = self._grids[1]
        return (
            (SIDE**2, first),
            (SIDE**2 * first, second),
            ((height // 2) * (width // 2) * second, self.hidden),
            (self.hidden, self.outputs),
        )

    @property
    def gains(self) -> tuple[float, ...]:
        """2 (He), and 1 for the last layer, which nothing rectifies."""
        return (2.0, 2.0, 2.0, 1.0)

    @property
    def activations(self) -> int:
        """How many numbers one image leaves behind on its way through the network."""
        first, second, dense, last = self.layers
        convolved = zip(self._grids, (first, second), strict=True)
        return sum(h * w * sum(layer) for (h, w), layer in convolved) + sum(dense) + last[1]

    def __call__(self, parameters: Parameters, x: Inputs) -> Outputs:
        body, head = arrays.of(parameters).split(parameters, [self.size - self.layer_sizes[-1]])
        return affine(head, self.features(body, x))

    def features(self, body: Float[Array, " body"], x: Inputs) -> Float[Array, "m hidden"]:
        first, second, dense = arrays.of(body).split(body, np.cumsum(self.layer_sizes[:2]))
        values = x.reshape(x.shape[0], self.height, self.width, 1)
        values = self._stage(second, self._stage(first, values))
        return ACTIVATIONS["relu"](affine(dense, values.reshape(x.shape[0], self.layers[2][0])))

    def _stage(
        self, parameters: Float[Array, " p"], images: Float[Array, "m h w c"]
    ) -> Float[Array, "m h2 w2 o"]:
        """Convolution, maximum, rectifier: the last two may change places, and so fewer are rectified."""
        if self.padding == "same":
            edge = (SIDE // 2, SIDE // 2)
            images = arrays.of(images).pad(images, ((0, 0), edge, edge, (0, 0)))
        return ACTIVATIONS["relu"](maximum_of_squares(affine(parameters, patches(images))))


def patches(images: Float[Array, "m h w c"]) -> Float[Array, "m h1 w1 patch"]:
    """Every patch as one row, ordered like the kernel: by row, column, channel."""
    height, width = images.shape[1] - SIDE + 1, images.shape[2] - SIDE + 1
    shifted = [
        images[:, down : down + height, right : right + width]
        for down in range(SIDE)
        for right in range(SIDE)
    ]
    return arrays.of(images).concatenate(shifted, -1)


def maximum_of_squares(images: Float[Array, "m h w c"]) -> Float[Array, "m h2 w2 c"]:
    """Maximum over 2 x 2 squares; a last odd row or column is left out."""
    m, height, width, channels = images.shape
    height, width = height // 2, width // 2
    images = images[:, : 2 * height, : 2 * width]
    return images.reshape(m, height, 2, width, 2, channels).max((2, 4))


@dataclass(frozen=True)
class WrappedNetwork:
    """`make(key)` builds the network; it is written for ONE input, and vmapped over rows here.

    `shape` is what a row of features is reshaped to before the network sees it, for instance
    (1, 28, 28) for `eqx.nn.Conv2d`. Parameters are all floating-point arrays of the network, in the
    order of its tree; `initial` are those that `make` gave them. A layer is a module that holds such
    arrays itself, so the LAST layer is the last in the order of fields, not of use.

    Networks that draw random numbers or keep a state (dropout, batch normalisation) do not fit.
    """

    make: Callable[[Array], eqx.Module]
    shape: tuple[int, ...] | None = None

    def _divided(self, key: Array) -> tuple[PyTree[Array], PyTree]:
        """The network's parameters, and all the rest of it."""
        import equinox as eqx

        return eqx.partition(self.make(key), eqx.is_inexact_array)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        import equinox as eqx
        import jax

        # Shapes only: no parameters are computed.
        shapes = eqx.filter_eval_shape(lambda key: self._divided(key)[0], jax.random.key(0))
        leaves = jax.tree_util.tree_leaves_with_path(shapes)
        return tuple(
            sum(leaf.size for _, leaf in layer)
            for _, layer in groupby(leaves, lambda pair: pair[0][:-1])
        )

    @property
    def size(self) -> int:
        return sum(self.layer_sizes)

    def initial(self, key: Array) -> Parameters:
        from jax.flatten_util import ravel_pytree

        return ravel_pytree(self._divided(key)[0])[0]

    def __call__(self, parameters: Parameters, x: Inputs) -> Outputs:
        import equinox as eqx
        import jax
        from jax.flatten_util import ravel_pytree

        # Only the network's structure is used, so the compiler drops the values `make` computes.
        arrays, rest = self._divided(jax.random.key(0))
        network = eqx.combine(ravel_pytree(arrays)[1](parameters), rest)
        shape = x.shape[1:] if self.shape is None else self.shape
        return jax.vmap(network)(x.reshape(x.shape[0], *shape))
