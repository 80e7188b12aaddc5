"""The few functions every method has; engine and studies use only these.

All are pure functions of a frozen configuration (the method object) and are written for ONE client:
the engine `vmap`s them over clients.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from jaxtyping import Array, Float

from pacpfl.personal import EXACT
from pacpfl.priors.base import random_rows
from pacpfl.types import Data, Mixture, Probabilities

Weights = Float[Array, " c"]  # of the clients of a round; 0: absent
Curves = dict[str, Float[Array, ""]]  # numbers worth a curve, one value each per round
Nothing = tuple[()]  # what most clients keep between rounds


class Predictor(Protocol):
    """A client's own model: a pytree of arrays that predicts."""

    def __call__(self, x: Float[Array, "t d"]) -> Mixture | Probabilities: ...


State = TypeVar("State")  # of the server: a NamedTuple of arrays
ClientState = TypeVar("ClientState")  # what a client keeps between rounds
Update = TypeVar("Update")  # what it sends: arrays only


class Method(Protocol[State, ClientState, Update]):
    """What a method is; where it says nothing else, clients train in rounds and keep nothing."""

    # True: the method knows no clients; it is given one, who holds everybody's data, and its
    # predictor serves everyone.
    central: ClassVar[bool] = False
    # True: the server reads no more of its updates than their weighted mean and the sum of weights.
    averages: ClassVar[bool] = False

    @property
    def exact(self) -> int:
        """Rows of a client beyond which it is personalised by the method of `serving`."""
        return EXACT

    @property
    def plain(self) -> bool:
        """Whether `personalize`, which then needs no key, and its model do with NumPy's arrays."""
        return False

    def init(self, key: Array, example: Data) -> State:
        """State of the server before the first round."""
        ...

    def init_client(self, state: State, data: Data, key: Array) -> ClientState:
        """What a client keeps between rounds."""
        return ()  # type: ignore[return-value]

    def client_update(
        self, state: State, client_state: ClientState, data: Data, key: Array
    ) -> tuple[Update, ClientState]:
        """What a client computes: the update it sends and its own new state."""
        ...

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """What the server does with the updates (leading axis c)."""
        ...

    @property
    def together(self) -> bool:
        """Whether `mean_update` takes less than all of the clients' updates one by one."""
        return False

    def mean_update(self, state: State, data: Data, keys: Array, weights: Weights) -> Update:
        """The weighted mean of what `client_update` sends; clients along the leading axis of `data`."""
        raise TypeError("Updates of this method are asked for one by one.")

    def personalize(
        self, state: State, client_state: ClientState, data: Data, key: Array
    ) -> Predictor:
        """At the client, existing or new: its own model from the server's state and its data."""
        ...

    def serving(self, state: State, data: Data) -> Method:
        """What personalises a client of very many rows, whose number is known: not within a program."""
        return self

    def diagnostics(self, state: State, updates: Update, weights: Weights) -> Curves:
        """What a round is watched by."""
        ...


def mini_batch(key: Array, data: Data, size: int | None) -> Data:
    """`size` samples without replacement; all of them (and padding) where there are fewer, or None."""
    if size is None:
        return data
    chosen = random_rows(key, data.mask, size)
    return Data(data.x[chosen], data.y[chosen], data.mask[chosen])
