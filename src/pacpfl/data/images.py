"""Labelled images, and how one set of them becomes the data of many clients.

By writer (the paper's FEMNIST): a client is a person, and people write differently. By label (the
paper's EMNIST): the samples of each class are divided among the clients in proportions drawn from a
symmetric Dirichlet distribution; the smaller alpha, the fewer classes a client knows.

A client's test part follows its own label distribution: of m_l samples of a class, floor or ceil of
m_l t / m are among the t of m that test (systematic sampling along the samples sorted by class, in
random order within a class, from a random start; every sample has probability t / m).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

# Different uses of one seed draw different numbers.
_CHOICE, _SPLIT, _DIRICHLET = 4001, 4002, 4003


@dataclass(frozen=True)
class Images:
    """Images of one size with their class and, where it is known, who wrote them."""

    name: str
    images: np.ndarray  # [N, H, W] uint8, ink high
    labels: np.ndarray  # [N] 0 .. classes - 1
    classes: int
    writer: np.ndarray | None = None  # [N] numbers or names

    def __post_init__(self) -> None:
        origin, images, labels = self.name, self.images, self.labels
        if images.ndim != 3 or images.dtype != np.uint8 or not images.size:
            raise InputError(
                f"{origin}: images are {images.dtype} of shape {images.shape}; give bytes of shape "
                "(number, height, width)."
            )
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise InputError(
                f"{origin}: labels are {labels.dtype} of shape {labels.shape}; give one whole number "
                "per image."
            )
        if len(labels) != len(images):
            raise InputError(
                f"{origin}: there are {len(images)} images and {len(labels)} labels; each needs its own."
            )
        bad = (labels < 0) | (labels >= self.classes)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{origin}: the label in row {row} is {labels[row]}, and classes are numbered from 0 to "
                f"{self.classes - 1}; mend or drop such rows."
            )
        if self.writer is not None and self.writer.shape != labels.shape:
            raise InputError(
                f"{origin}: writers have shape {self.writer.shape} and labels {labels.shape}; each image "
                "needs its writer."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]


def samples(images: Images, rows: np.ndarray) -> Samples:
    """Return x [m, H W] in 0..1 with ink high, and y, the class numbers; float32 both."""
    x = images.images[rows].reshape(len(rows), -1).astype(np.float32)
    x /= np.float32(255)
    return Samples(x, images.labels[rows].astype(np.float32))


def federation(
    images: Images,
    rows: Mapping[str, np.ndarray],
    existing: int,
    test_fraction: float,
    randoms: Iterable[np.random.Generator],
    most: int | None = None,
) -> Federation:
    """Make a client of each of the named rows, which trains on at most `most` of those not tested.

    The first `existing` clients train together; the others join afterwards.
    """
    everyone = []
    for (name, own), random in zip(rows.items(), randoms, strict=False):
        count = int(_tested(np.array(len(own)), test_fraction))
        train, test = (own[part] for part in split(images.labels[own], count, random))
        everyone.append(Client(name, samples(images, train[:most]), None, samples(images, test)))
    old, new = tuple(everyone[:existing]), tuple(everyone[existing:])
    pixels = tuple(f"pixel {number}" for number in range(images.images[0].size))
    return Federation(images.name, old, new, pixels, "label", images.classes, images.shape)


def by_writer(
    images: Images,
    clients: int = 40,
    new_clients: int = 0,
    samples: int | None = None,
    test_fraction: float = 0.2,
    least: int = 20,
    seed: int = 0,
) -> Federation:
    """Make one client per writer, chosen by `seed` among those with enough samples.

    Each writer's samples are put in an order by `seed`; the test part is `test_fraction` of them, and the
    training part is the first `samples` of the rest (None: all of it): FEMNIST (20) and FEMNIST (all) have
    the same test images, and the 20 are among all. A writer with fewer than `least` (or `samples`, if that
    is more) for training is left out. More new clients change none of the others.
    """
    _check_arguments(clients, new_clients, test_fraction)
    for name, value in (("samples", samples), ("least", least)):
        if value is not None and value < 2:
            raise InputError(f"{name} = {value} is too few for a client; give more.")
    if images.writer is None:
        raise InputError(f"{images.name} does not say who wrote what; divide it by label instead.")
    names, position, counts = np.unique(images.writer, return_inverse=True, return_counts=True)
    tests = _tested(counts, test_fraction)
    least, wanted = max(least, samples or 0), clients + new_clients
    enough = counts - tests >= least
    usable = int(enough.sum())
    if usable < wanted:
        raise InputError(
            f"{images.name} has {usable} writers with at least {least} samples beside the test part "
            f"({len(names) - usable} have fewer) and {wanted} are asked for; ask for fewer clients or "
            "samples."
        )
    ranking = np.random.default_rng([_CHOICE, seed]).permutation(len(names))
    chosen = ranking[enough[ranking]][:wanted]
    rows = np.split(np.argsort(position, kind="stable"), np.cumsum(counts)[:-1])  # of each writer

    named = {f"writer {names[writer]}": rows[writer] for writer in chosen}
    randoms = [np.random.default_rng([_SPLIT, seed, writer]) for writer in chosen.tolist()]
    return federation(images, named, clients, test_fraction, randoms, samples)


def dirichlet(
    images: Images,
    clients: int = 80,
    new_clients: int = 0,
    alpha: float = 0.4,
    test_fraction: float = 0.2,
    least: int = 10,
    seed: int = 0,
    draws: int = 100,
) -> Federation:
    """Give every sample to exactly one of `clients` + `new_clients`, by `divide`.

    Where some client gets fewer than `least` samples the whole division is drawn again, up to `draws`
    times: the clients then follow the Dirichlet distribution GIVEN that none is smaller. The last
    `new_clients` of the division, which are like all others, are held out of training.
    """
    _check_arguments(clients, new_clients, test_fraction)
    if not 0 < alpha < np.inf:
        raise InputError(f"alpha = {alpha} is no Dirichlet parameter; give a number above 0.")
    if least - _tested(np.array(least), test_fraction) < 2:
        raise InputError(
            f"A client of {least} samples keeps fewer than 2 for training at test_fraction = "
            f"{test_fraction}; raise least or test fewer."
        )
    parts = clients + new_clients
    random = np.random.default_rng([_DIRICHLET, seed])
    for _ in range(draws):
        rows = divide(images.labels, parts, alpha, random)
        if min(map(len, rows)) >= least:
            break
    else:
        raise InputError(
            f"In {draws} draws some of the {parts} clients always had fewer than {least} of the "
            f"{len(images)} samples of {images.name}; ask for fewer clients, a larger alpha or a smaller "
            "least."
        )

    names = [f"existing-{place:02d}" for place in range(clients)]
    names += [f"new-{place:02d}" for place in range(new_clients)]
    named = dict(zip(names, rows, strict=True))
    return federation(images, named, clients, test_fraction, repeat(random))


def divide(
    labels: np.ndarray, parts: int, alpha: float, random: np.random.Generator
) -> list[np.ndarray]:
    """Draw the rows of each part: class l is cut at the rounded sums of p_l ~ Dirichlet(alpha, ...)."""
    pieces: list[list[np.ndarray]] = [[] for _ in range(parts)]
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(parts, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for piece, own in zip(pieces, np.split(rows, cuts), strict=True):
            piece.append(own)
    return [np.concatenate(piece) for piece in pieces]


def split(
    labels: np.ndarray, test: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Choose positions that train and positions that test, each in random order (see the module's head)."""
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    start = random.integers(2**20) / 2**20  # few digits, so that the sums below are not rounded up
    steps = np.floor(start + np.arange(len(labels) + 1) * test / max(len(labels), 1))
    tested = np.diff(steps) > 0
    return random.permutation(order[~tested]), random.permutation(order[tested])


def _tested(counts: np.ndarray, fraction: float) -> np.ndarray:
    return np.maximum(np.rint(fraction * counts), 1).astype(int)


def _check_arguments(clients: int, new_clients: int, test_fraction: float) -> None:
    if clients < 1 or new_clients < 0:
        raise InputError(
            f"{clients} existing and {new_clients} new clients make no federation; at least one trains."
        )
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction = {test_fraction} must lie between 0 and 1.")
