"""The convolutional network of the classification study (McMahan et al. 2017, as in the paper).

5x5 convolution to 32 channels, 2x2 maximum, 5x5 convolution to 64, 2x2 maximum, dense layer of 512,
output; rectified after each but the last.

A convolution is written as ONE matrix product of all patches with the kernel (im2col). Under vmap
over weights this becomes a batched product, which processors of every kind are built for; a
convolution primitive would become a grouped convolution, several times slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.priors.layers import affine

PADDINGS = ("valid", "same")


@dataclass(frozen=True)
class CNN:
    """Rows of features are images, pixel after pixel, the channels of a pixel side by side.

    `padding` "valid" (the usual one: 582,026 parameters for digits of 28 x 28) takes patches from
    inside the image only; "same" surrounds it with zeros, which small images need. Parameters lie
    layer by layer: kernel [side, side, in, out] row by row (dense: [in, out]), then biases [out].
    """

    height: int
    width: int
    outputs: int
    channels: int = 1
    filters: tuple[int, int] = (32, 64)
    hidden: int = 512
    side: int = 5
    padding: str = "valid"

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise InputError(
                f"padding = {self.padding!r} is not one of {', '.join(PADDINGS)}; choose one of them."
            )
        if self.padding == "same" and self.side % 2 == 0:
            raise InputError(
                f'side = {self.side} has no middle, which padding "same" needs; choose an odd one.'
            )
        if min(self._grid) < 1:
            raise InputError(
                f"Images of {self.height} x {self.width} are too small for two convolutions of "
                f"{self.side} x {self.side} with padding {self.padding!r}; "
                'choose padding "same", smaller kernels, or an MLP.'
            )

    @property
    def _grid(self) -> tuple[int, int]:
        """Height and width after both convolutions and maxima."""
        lost = self.side - 1 if self.padding == "valid" else 0
        height, width = (((n - lost) // 2 - lost) // 2 for n in (self.height, self.width))
        return height, width

    @property
    def _fans(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer's matrix."""
        first, second = self.filters
        height, width = self._grid
        area = self.side**2
        return (
            (area * self.channels, first),
            (area * first, second),
            (height * width * second, self.hidden),
            (self.hidden, self.outputs),
        )

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return tuple((inputs + 1) * outputs for inputs, outputs in self._fans)

    @property
    def size(self) -> int:
        return sum(self.layer_sizes)

    def initial(self, key: Array) -> Float[Array, " size"]:
        """Weights N(0, 2 / inputs) (He), of the last layer, which nothing rectifies, N(0, 1 / inputs);
        biases 0."""
        parts = []
        for index, (inputs, outputs) in enumerate(self._fans):
            last = index == len(self._fans) - 1
            std = math.sqrt((1.0 if last else 2.0) / inputs)
            draw = jax.random.normal(jax.random.fold_in(key, index), (inputs * outputs,))
            parts += [std * draw, jnp.zeros(outputs)]
        return jnp.concatenate(parts)

    def __call__(
        self, parameters: Float[Array, " size"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m outputs"]:
        body, head = jnp.split(parameters, [self.size - self.layer_sizes[-1]])
        return affine(head, self.features(body, x))

    def features(
        self, body: Float[Array, " body"], x: Float[Array, "m inputs"]
    ) -> Float[Array, "m hidden"]:
        first, second, dense = jnp.split(body, np.cumsum(self.layer_sizes[:2]))
        values = x.reshape(x.shape[0], self.height, self.width, self.channels)
        values = self._stage(second, self._stage(first, values))
        return jax.nn.relu(affine(dense, values.reshape(x.shape[0], self._fans[2][0])))

    def _stage(
        self, parameters: Float[Array, " p"], images: Float[Array, "m h w c"]
    ) -> Float[Array, "m h2 w2 o"]:
        """Convolution, maximum, rectifier: the last two may change places, and so fewer are rectified."""
        if self.padding == "same":
            edge = (self.side // 2, self.side // 2)
            images = jnp.pad(images, ((0, 0), edge, edge, (0, 0)))
        return jax.nn.relu(maximum_of_squares(affine(parameters, patches(images, self.side))))


def patches(images: Float[Array, "m h w c"], side: int) -> Float[Array, "m h1 w1 patch"]:
    """Every side x side patch as one row, ordered like the kernel: by row, column, channel."""
    height, width = images.shape[1] - side + 1, images.shape[2] - side + 1
    shifted = [
        images[:, down : down + height, right : right + width]
        for down in range(side)
        for right in range(side)
    ]
    return jnp.concatenate(shifted, -1)


def maximum_of_squares(images: Float[Array, "m h w c"]) -> Float[Array, "m h2 w2 c"]:
    """Maximum over 2 x 2 squares; a last odd row or column is left out."""
    m, height, width, channels = images.shape
    height, width = height // 2, width // 2
    images = images[:, : 2 * height, : 2 * width]
    return images.reshape(m, height, 2, width, 2, channels).max((2, 4))
