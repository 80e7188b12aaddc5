"""Personalise every client and measure it on its own test data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

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
    kernel matrices allow.
    """
    groups = {name: clients for name, clients in federation.groups().items() if clients}
    for client in chain(*groups.values()):
        if client.test is None or len(client.test) < 2:
            raise InputError(
                f"Client {client.name!r} has fewer than two test samples; it cannot be measured."
            )
    keys, roomy = Keys.of(seed).evaluation(), federation.classes is not None
    shared = shared_model(method, state, federation.existing, keys.seed, dtype)
    numbers = federation.classes is None
    answer = answering(method, numbers and recalibration != "never")
    common, results, prior = (state, shared, Keys.of(seed)), {}, None
    for name, clients in groups.items():
        samples = [client.test for client in clients if client.test is not None]
        tests = from_samples(samples, roomy)
        owners = from_samples([client.personal for client in clients], roomy)
        longest = max(owners.longest, tests.longest)
        layout = divide(len(clients), longest, matrices_per_client, np.dtype(dtype).itemsize)
        own_states = client_states if name == "existing" else ()
        if jax.tree.leaves(client_states) and name == "new":
            own_states = initial_client_states(method, state, owners, keys, dtype)
        block = min(clients_at_once or layout.block, len(clients))
        predictions, details = predict_all(answer, common, own_states, owners, tests, dtype, block)
        if isinstance(predictions, Probabilities):
            measured = measure_classes(predictions, samples)
        else:
            pits = _pits(details, owners)
            if pooled and prior is None and pits:
                known = pits[calibration.chosen(len(pits))]
                prior = calibration.learn(known, recalibration == "always")
            maps = [calibration.shares_of(own, prior, recalibration) for own in pits]
            measured = measure_numbers(predictions, samples, maps)
        if details is not None:
            weights, kinds, _ = details
            several = kinds.shape[-1] > 1
            measured = measured._replace(
                weights=weights, responsibilities=agree(kinds).mean(1) if several else None
            )
        results[name] = measured
    return results


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
) -> Answer:
    """Return predictions at all test inputs, leading axis clients."""
    n = tests.clients
    parts = []
    for start in range(0, n, block):
        chosen = np.minimum(np.arange(start, start + block), n - 1)  # the last block may repeat
        own = jax.tree.map(lambda a, rows=chosen: a[rows], client_states)
        data = jax.device_put(owners.gather(chosen, dtype))
        x = jax.device_put(tests.gather(chosen, dtype).x)
        parts.append(answer(common, own, data, x, chosen))
    return jax.tree.map(lambda *a: np.concatenate([np.asarray(b) for b in a])[:n], *parts)


def _pits(details: tuple[PyTree, PyTree, PyTree] | None, owners: ClientStore) -> list[np.ndarray]:
    """Return every client's PITs without padding; none where models have none."""
    if details is None or details[2] is None:
        return []
    sizes = np.diff(owners.offsets)
    return [np.asarray(own[:size], float) for own, size in zip(details[2], sizes, strict=True)]


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
