"""Everything that can be wrong with clients' samples, found before any training starts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples


def check_federation(federation: Federation) -> None:
    """Raise InputError, naming client and column, at the first thing that cannot be used."""
    if not federation.existing:
        raise InputError(f"{federation.name} has no existing clients; at least one must train.")
    names = Counter(client.name for group in federation.groups().values() for client in group)
    for name, times in names.items():
        if times > 1:
            raise InputError(f"Two clients are called {name!r}; give each its own name.")
    for group in federation.groups().values():
        for client in group:
            _check_client(federation, client)


def _check_client(federation: Federation, client: Client) -> None:
    if len(client.train) == 0:
        raise InputError(f"Client {client.name!r} has no training samples; leave it out.")
    if len(client.train) == 1:
        raise InputError(
            f"Client {client.name!r} has one training sample, and one cannot be standardised or "
            "checked; give it a second or leave it out."
        )
    for part, samples in (
        ("training", client.train),
        ("later", client.later),
        ("test", client.test),
    ):
        if samples is not None:
            _check_samples(federation, client.name, part, samples)
    if federation.shape is not None or federation.constants:
        return  # the corners of images are all alike, and so is the altitude of a house
    for column, name in enumerate(federation.features):
        if np.ptp(client.train.x[:, column]) == 0:
            raise InputError(
                f"Feature {name!r} has the same value in all training samples of client "
                f"{client.name!r}, so nothing can be learned from it; drop the feature or the client."
            )


def _check_samples(federation: Federation, client: str, part: str, samples: Samples) -> None:
    expected = len(federation.features)
    if samples.x.ndim != 2 or samples.y.ndim != 1:
        raise InputError(
            f"The {part} samples of client {client!r} have features of shape {samples.x.shape} and "
            f"targets of shape {samples.y.shape}; give a table of rows and one target for each."
        )
    found = samples.x.shape[1]
    if found != expected:
        raise InputError(
            f"The {part} samples of client {client!r} have {found} features and the federation has "
            f"{expected} ({', '.join(federation.features)}); give every client the same ones."
        )
    if len(samples.x) != len(samples.y):
        raise InputError(
            f"The {part} samples of client {client!r} have {len(samples.x)} rows of features and "
            f"{len(samples.y)} targets; each row needs its target."
        )
    for column, name in enumerate((*federation.features, federation.target)):
        values = samples.y if column == expected else samples.x[:, column]
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise InputError(
                f"Column {name!r} of the {part} samples of client {client!r} holds {values[bad[0]]} in "
                f"row {bad[0]}; fill or drop such rows."
            )
