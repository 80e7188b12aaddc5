"""Personalise every client and measure it on its own test data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl import calibration
from pacpfl.data.store import ClientStore, from_samples
from pacpfl.engine.keys import Keys
from pacpfl.engine.measure import Evaluation, measure_classes, measure_numbers
from pacpfl.engine.rounds import divide, first_client, initial_client_states
from pacpfl.engine.runtime import compiled_once
from pacpfl.errors import InputError
from pacpfl.methods.base import Method, Predictor
from pacpfl.personal import PersonalModel
from pacpfl.types import Client, Data, Federation, Mixture, Probabilities, Samples

FEW, PLAIN = 128, 1 << 22  # clients, and entries of their matrices, without a compiler


def evaluate(
    method: Method,
    state: PyTree,
    federation: Federation,
    *,
    client_states: PyTree = (),
    seed: int = 0,
    dtype: type = np.float32,
    matrices_per_client: int = 1,
    clients_at_once: int | None = None,
    recalibration: str = "never",
    pooled: bool = True,
) -> dict[str, Evaluation]:
    """Measure every client's own model on its test samples: by group, "existing" and "new".

    Where `recalibration` is not "never", models are recalibrated by their training rows, with what
    the existing clients have in common, if it may be `pooled`.

    A group without clients is left out; new clients start like a client in the first round
    (`init_client`). Clients are personalised block by block: `clients_at_once`, or as many as their
    kernel matrices allow; who has more rows than the method is exact for, alone.
    """
    groups = {name: clients for name, clients in federation.groups().items() if clients}
    item = np.dtype(dtype).itemsize
    for client in chain(*groups.values()):
        if client.test is None or len(client.test) < 2:
            raise InputError(
                f"Client {client.name!r} has fewer than two test samples; it cannot be measured."
            )
    keys, roomy = Keys.of(seed).evaluation(), federation.classes is not None
    shared = shared_model(method, state, federation.existing, keys.seed, dtype)
    held_out = federation.classes is None and recalibration != "never"
    common, results, prior = (state, shared, Keys.of(seed)), {}, None
    for name, clients in groups.items():
        samples = [client.test for client in clients if client.test is not None]
        own_states = client_states if name == "existing" else ()
        if jax.tree.leaves(client_states) and name == "new":
            all_ = from_samples([client.personal for client in clients], roomy)
            own_states = initial_client_states(method, state, all_, keys, dtype)
        apart, found = _by_size(clients, method), dict[int, Answer]()
        tests = from_samples(samples, roomy or len(apart) > 1)
        for which in apart:
            large = len(clients[which[0]].personal) > method.exact
            owners = from_samples([clients[i].personal for i in which], roomy or large)
            serving = method.serving(state, first_client(owners, dtype)) if large else method
            longest = max(owners.longest, tests.longest)
            layout = divide(len(which), longest, matrices_per_client, item)
            block = min(clients_at_once or layout.block, len(which))
            entries = len(which) * matrices_per_client * longest**2
            if method.plain and not large and len(which) <= FEW and entries <= PLAIN:
                answers = predict_plainly(method, state, owners, tests, which, held_out)
            else:
                answers = predict_all(
                    answering(serving, held_out),
                    *(common, own_states, owners, tests, dtype, block, which),
                )
            found |= dict(zip(which.tolist(), answers, strict=True))
        said = [found[number] for number in range(len(clients))]
        pits = _pits([own for _, own in said], clients)
        predictions, details = jax.tree.map(
            lambda *each: np.stack(each), *((answer, own and own[:2]) for answer, own in said)
        )
        if isinstance(predictions, Probabilities):
            measured = measure_classes(predictions, samples)
        else:
            if pooled and prior is None and pits:
                known = pits[calibration.chosen(len(pits))]
                prior = calibration.learn(known, recalibration == "always")
            maps = [calibration.shares_of(own, prior, recalibration) for own in pits]
            measured = measure_numbers(predictions, samples, maps)
        if details is not None:
            weights, kinds = details
            several = kinds.shape[-1] > 1
            measured = measured._replace(
                weights=weights, responsibilities=agree(kinds).mean(1) if several else None
            )
        results[name] = measured
    return results


def _by_size(clients: Sequence[Client], method: Method) -> list[np.ndarray]:
    """Return who goes together, by number: all but large ones, who have a program for each size."""
    large = np.array([len(client.personal) > method.exact for client in clients])
    if method.central or not large.any():
        return [np.arange(len(clients))]
    return [part for part in (np.flatnonzero(~large), *np.flatnonzero(large)[:, None]) if len(part)]


def shared_model(
    method: Method, state: PyTree, clients: Sequence[Client], key: jax.Array, dtype: type
) -> Predictor | None:
    """Return the one model of a central method, from everybody's data; None for the others."""
    if not method.central:
        return None
    x = np.concatenate([client.personal.x for client in clients])
    y = np.concatenate([client.personal.y for client in clients])
    pooled = first_client(from_samples([Samples(x, y)]), dtype)
    return _personalize(method)(state, (), pooled, key)


@compiled_once
def _personalize(method: Method) -> Callable[..., Predictor]:
    return jax.jit(method.personalize)


Common = tuple[PyTree, Predictor | None, Keys]  # the state, and the model that serves everyone
# With what only models with particles have: their weights [k], responsibilities [k, K], and the PITs [m]
# of the client's own samples.
Answer = tuple[Mixture | Probabilities, tuple[PyTree, PyTree, PyTree] | None]


@compiled_once
def answering(method: Method, held_out: bool = False) -> Callable[..., Answer]:
    """Return the program from a block's samples to models to answers; groups of one shape share it."""

    # What differs from seed to seed is an argument, or every seed would compile anew.
    def one(
        common: Common, client_state: PyTree, data: Data, x: jax.Array, client: jax.Array
    ) -> Answer:
        state, model, keys = common
        if model is None:
            model = method.personalize(state, client_state, data, keys.personal(client))
        if isinstance(model, PersonalModel):
            pits = model.held_out() if held_out else None
            return model(x), (model.weights, model.responsibilities(), pits)
        return model(x), None

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0, 0)))


def predict_all(
    answer: Callable[..., Answer],
    common: Common,
    client_states: PyTree,
    owners: ClientStore,
    tests: ClientStore,
    dtype: type,
    block: int,
    numbers: np.ndarray,
) -> list[Answer]:
    """Return what the models of the clients with these numbers, the owners, say of their test inputs."""
    answers: list[Answer] = []
    for start in range(0, len(numbers), block):
        places = np.minimum(np.arange(start, start + block), len(numbers) - 1)
        chosen = numbers[places]  # the last block may repeat
        own = jax.tree.map(lambda a, rows=chosen: a[rows], client_states)
        data = jax.device_put(owners.gather(places, dtype))
        x = jax.device_put(tests.gather(chosen, dtype).x)
        whole = jax.tree.map(np.asarray, answer(common, own, data, x, chosen))
        answers += [jax.tree.map(lambda a, row=row: a[row], whole) for row in range(block)]
    return answers[: len(numbers)]


def predict_plainly(
    method: Method,
    state: PyTree,
    owners: ClientStore,
    tests: ClientStore,
    numbers: np.ndarray,
    held_out: bool,
) -> list[Answer]:
    """Return the same by NumPy, in double precision: done before a compiler has begun."""
    state = jax.tree.map(lambda part: np.asarray(part, float), state)
    everyone, x = owners.gather(np.arange(len(numbers)), float), tests.gather(numbers, float).x

    def one(place: int) -> Answer:
        data = Data(*(part[place] for part in everyone))
        model: Any = method.personalize(state, (), data, None)  # type: ignore[arg-type]
        pits = model.held_out() if held_out else None
        return model(x[place]), (model.weights, model.responsibilities(), pits)

    with np.errstate(all="ignore"):  # of padding
        return [one(place) for place in range(len(numbers))]


def _pits(
    details: Sequence[tuple[PyTree, PyTree, PyTree] | None], clients: Sequence[Client]
) -> list[np.ndarray]:
    """Return every client's PITs without padding; none where models have none."""
    return [
        np.asarray(own[2][: len(client.personal)], float)
        for own, client in zip(details, clients, strict=True)
        if own is not None and own[2] is not None
    ]


def agree(responsibilities: np.ndarray) -> np.ndarray:
    """Renumber base priors, which each particle numbers in its own order, like the first one's.

    [clients, k, K] -> the same, with each particle's columns permuted to overlap most.
    """
    from scipy.optimize import linear_sum_assignment  # a third of a second to import

    aligned = responsibilities.copy()
    for particle in range(1, responsibilities.shape[1]):
        overlap = responsibilities[:, 0].T @ responsibilities[:, particle]
        _, order = linear_sum_assignment(-overlap)
        aligned[:, particle] = responsibilities[:, particle][:, order]
    return aligned
