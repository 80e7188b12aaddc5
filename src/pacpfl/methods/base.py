"""The few functions every method has; engine and studies use only these.

All are pure functions of a frozen configuration (the method object) and are written for ONE client:
the engine `vmap`s them over clients.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from jaxtyping import Array, Float, PyTree

from pacpfl.priors.base import random_rows
from pacpfl.types import Data, Mixture, Probabilities

Weights = Float[Array, " c"]  # of the clients of a round; 0: absent
Curves = dict[str, Float[Array, ""]]  # numbers worth a curve, one value each per round


class Predictor(Protocol):
    """A client's own model: a pytree of arrays that predicts."""

    def __call__(self, x: Float[Array, "t d"]) -> Mixture | Probabilities: ...


State = TypeVar("State")  # of the server: a NamedTuple of arrays
ClientState = TypeVar("ClientState")  # what a client keeps between rounds
Update = TypeVar("Update")  # what it sends


class Method(Protocol[State, ClientState, Update]):
    # True: the method knows no clients; it is given one, who holds everybody's data, and its
    # predictor serves everyone.
    central: ClassVar[bool]
    # True: the server reads no more of its updates than their weighted mean and the sum of weights.
    averages: ClassVar[bool]

    def init(self, key: Array, example: Data) -> State:
        """State of the server before the first round: a NamedTuple of arrays."""
        ...

    def init_client(self, state: State, data: Data, key: Array) -> ClientState:
        """What a client keeps between rounds; () for methods whose clients keep nothing."""
        ...

    def client_update(
        self, state: State, client_state: ClientState, data: Data, key: Array
    ) -> tuple[Update, ClientState]:
        """What a client computes: the update it sends (arrays only) and its own new state."""
        ...

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """What the server does with the updates (leading axis c)."""
        ...

    @property
    def together(self) -> bool:
        """Whether `mean_update` takes less than all of the clients' updates one by one."""
        ...

    def mean_update(self, state: State, data: Data, keys: Array, weights: Weights) -> Update:
        """The weighted mean of what `client_update` sends; clients along the leading axis of `data`."""
        ...

    def personalize(
        self, state: State, client_state: ClientState, data: Data, key: Array
    ) -> Predictor:
        """At the client, existing or new: its own model from the server's state and its data."""
        ...

    def diagnostics(self, state: State, updates: Update, weights: Weights) -> Curves:
        """What a round is watched by."""
        ...


class Federated:
    """What most methods have in common: they train clients in rounds, who each have their own model."""

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    @property
    def together(self) -> bool:
        return False

    def mean_update(
        self, state: PyTree, data: Data, keys: Array, weights: Weights
    ) -> PyTree[Array]:
        raise NotImplementedError


class Stateless(Federated):
    """A method whose clients keep nothing between rounds."""

    def init_client(self, state: object, data: Data, key: Array) -> tuple[()]:
        return ()


def mini_batch(key: Array, data: Data, size: int | None) -> Data:
    """`size` samples without replacement; all of them (and padding) where there are fewer, or None."""
    if size is None:
        return data
    chosen = random_rows(key, data.mask, size)
    return Data(data.x[chosen], data.y[chosen], data.mask[chosen])
