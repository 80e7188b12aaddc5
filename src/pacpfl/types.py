"""The records every layer speaks: samples, clients, federations, predictions.

`Data` is what the mathematics sees (arrays, padded, with a mask, so that clients of
different sizes fit in one array); `Client` and `Federation` are what people see
(names, unpadded NumPy arrays). `data.store` turns one into the other.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


class Data(NamedTuple):
    """Samples of one client as the mathematics sees them.

    Rows where `mask` is false are padding: they change no result. With a leading axis on
    every field it stands for many clients at once.
    """

    x: Float[Array, "*clients m d"]
    y: Float[Array, "*clients m"]  # targets, or class numbers 0, 1, ... (exact in floating point)
    mask: Bool[Array, "*clients m"]


@dataclass(frozen=True)
class Samples:
    """Feature rows and their targets, unpadded."""

    x: np.ndarray  # [m, d]
    y: np.ndarray  # [m]

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: slice | np.ndarray) -> Samples:
        return Samples(self.x[which], self.y[which])

    def __add__(self, other: Samples) -> Samples:
        return Samples(np.concatenate([self.x, other.x]), np.concatenate([self.y, other.y]))


@dataclass(frozen=True)
class Client:
    """One owner of data.

    `train` is S_i: used in federated training and in personalisation. `later` is S~_i:
    gathered after training, used in personalisation only. `test` is only ever used to
    measure. `kind` is the true mode of a simulated client, where it is known; `times` are the
    moments of the samples in `train`, on a clock that all clients share, where they matter.
    """

    name: str
    train: Samples
    later: Samples | None = None
    test: Samples | None = None
    kind: int | None = None
    times: np.ndarray | None = None  # [m]

    @property
    def personal(self) -> Samples:
        """Return S_i and S~_i together: the client conditions on both when it personalises."""
        return self.train if self.later is None else self.train + self.later


class Form(NamedTuple):
    """The outline of a federation without anybody's samples: all that a method is built from."""

    features: tuple[str, ...]
    target: str = "y"
    classes: int | None = None  # of the target; None: the target is a number
    shape: tuple[int, ...] | None = None  # of what a row of features is, for instance an image
    clients: int = 1  # existing ones
    sizes: tuple[int, ...] | None = None  # training rows of each, where they are told
    later: int = 0  # of them will gather more samples after the training

    @property
    def schema(self) -> tuple[Any, ...]:
        """Return what must be the same where samples are learned from together."""
        return self.features, self.target, self.classes, self.shape

    def agrees(self, other: Form) -> None:
        """Check that the samples of `other` can be learned from together with these.

        Everything but the numbers of clients and of rows must be the same; the first thing that
        differs is an InputError.
        """
        for name in ("features", "target", "classes", "shape"):
            mine, theirs = (textwrap.shorten(str(getattr(f, name)), 80) for f in (self, other))
            if getattr(self, name) != getattr(other, name):
                raise InputError(f"its {name} are {theirs}, and those of the others {mine}")


@dataclass(frozen=True)
class Federation:
    """Existing clients, who train together, and new clients, who join afterwards."""

    name: str
    existing: tuple[Client, ...]
    new: tuple[Client, ...] = ()
    features: tuple[str, ...] = ("x",)
    target: str = "y"
    classes: int | None = None  # of the target; None: the target is a number
    shape: tuple[int, ...] | None = None  # of what a row of features is, for instance an image
    unscaled: tuple[str, ...] = ()  # features that standardisation leaves as they are
    constants: bool = False  # whether a feature may have one value only at a client

    @property
    def form(self) -> Form:
        """Return its outline, with the number of each client's training rows."""
        return Form(
            self.features,
            self.target,
            self.classes,
            self.shape,
            len(self.existing),
            tuple(len(client.train) for client in self.existing),
            sum(client.later is not None for client in self.existing),
        )

    def groups(self) -> dict[str, tuple[Client, ...]]:
        return {"existing": self.existing, "new": self.new}


class Prediction(NamedTuple):
    """A Gaussian mixture for the target at each of t inputs.

    Component c has the same weight at every input: components are (particle, base prior)
    pairs, weighed by how well they explain the client's data. `pacpfl.predictive` computes
    its mean, quantiles, density and samples.
    """

    weights: Float[Array, "*clients components"]
    means: Float[Array, "*clients components t"]
    stds: Float[Array, "*clients components t"]


class WarpedPrediction(NamedTuple):
    """The same for a skewed target: component c is Gaussian in z = g_c(y) (`pacpfl.warp`)."""

    weights: Float[Array, "*clients components"]
    means: Float[Array, "*clients components t"]  # of z
    stds: Float[Array, "*clients components t"]  # of z
    warps: Float[Array, "*clients components 4"]


Mixture = Prediction | WarpedPrediction


def flattened(mixtures: Mixture) -> Mixture:
    """Return mixtures of mixtures (two leading axes) as one."""
    return type(mixtures)(*(part.reshape(-1, *part.shape[2:]) for part in mixtures))


class Probabilities(NamedTuple):
    """Class probabilities at each of t inputs."""

    log_probabilities: Float[Array, "*clients t classes"]
