"""How one set of images becomes the data of many clients.

By writer (the paper's FEMNIST): a client is a person, and people write differently. By label (the
paper's EMNIST): the samples of each class are divided among the clients in proportions drawn from a
symmetric Dirichlet distribution; the smaller alpha, the fewer classes a client knows.

A client's test part follows its own label distribution: of m_l samples of a class, floor or ceil of
m_l t / m are among the t of m that test (systematic sampling along the samples sorted by class, in
random order within a class, from a random start; every sample has probability t / m).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pacpfl.data.images import Images, Part, federation
from pacpfl.errors import InputError
from pacpfl.types import Federation

# Different uses of one seed draw different numbers.
_CHOICE, _SPLIT, _DIRICHLET = 4001, 4002, 4003


class Writers(NamedTuple):
    """Who can be a client, and how many cannot."""

    usable: tuple[str, ...]
    left_out: int


def by_writer(
    images: Images,
    clients: int = 40,
    new_clients: int = 0,
    samples: int | None = None,
    test_fraction: float = 0.2,
    test_samples: int | None = None,
    least: int = 20,
    seed: int = 0,
) -> Federation:
    """One client per writer, chosen by `seed` among those with enough samples.

    Each writer's samples are put in an order by `seed`; the test part is `test_samples` of them, or
    `test_fraction`, and the training part is the first `samples` of the rest (None: all of it). The
    order does not depend on `samples`: FEMNIST (20) and FEMNIST (all) have the same test images, and the
    20 are among all. A writer with fewer than `least` (or `samples`, if that is more) for training is
    left out (`usable_writers` counts them); up to `least` the choice of writers is the same too. More
    new clients change neither the existing ones nor those that were new before.
    """
    _check_counts(clients, new_clients)
    enough, tests = _enough(images, samples, test_fraction, test_samples, least)
    wanted = clients + new_clients
    if int(enough.sum()) < wanted:
        raise InputError(
            f"{images.name} has {int(enough.sum())} writers with at least {max(least, samples or 0)} "
            f"samples beside the test part ({int((~enough).sum())} have fewer) and {wanted} are asked for; "
            "ask for fewer clients or samples."
        )
    names, position = np.unique(_writer(images), return_inverse=True)
    ranking = np.random.default_rng([_CHOICE, seed]).permutation(len(names))
    chosen = ranking[enough[ranking]][:wanted]
    starts = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=len(names)))])
    rows = np.argsort(position, kind="stable")

    def part(writer: int) -> Part:
        own = rows[starts[writer] : starts[writer + 1]]
        random = np.random.default_rng([_SPLIT, seed, writer])
        train, test = split(images.labels[own], int(tests[writer]), random)
        return Part(f"writer {names[writer]}", own[train[:samples]], own[test])

    parts = [part(int(writer)) for writer in chosen]
    return federation(images, parts[:clients], parts[clients:])


def usable_writers(
    images: Images,
    samples: int | None = None,
    test_fraction: float = 0.2,
    test_samples: int | None = None,
    least: int = 20,
) -> Writers:
    """The writers that `by_writer` chooses from, and the number of those it leaves out."""
    enough, _ = _enough(images, samples, test_fraction, test_samples, least)
    names = np.unique(_writer(images))
    return Writers(tuple(str(name) for name in names[enough]), int((~enough).sum()))


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
    """Every sample goes to exactly one of `clients` + `new_clients`, by `divide`.

    Where some client gets fewer than `least` samples the whole division is drawn again, up to `draws`
    times: the clients then follow the Dirichlet distribution GIVEN that none is smaller. The last
    `new_clients` of the division, which are like all others, are held out of training.
    """
    _check_counts(clients, new_clients)
    _check_fraction(test_fraction)
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

    def part(number: int) -> Part:
        own = rows[number]
        test = int(_tested(np.array(len(own)), test_fraction))
        train, test_rows = split(images.labels[own], test, random)
        group, place = ("existing", number) if number < clients else ("new", number - clients)
        return Part(f"{group}-{place:02d}", own[train], own[test_rows])

    every = [part(number) for number in range(parts)]
    return federation(images, every[:clients], every[clients:])


def divide(
    labels: np.ndarray, parts: int, alpha: float, random: np.random.Generator
) -> list[np.ndarray]:
    """Rows of each part: class l is cut at the rounded sums of p_l ~ Dirichlet(alpha, ..., alpha)."""
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
    """Positions that train and positions that test, each in random order (see the module's head)."""
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    start = random.integers(2**20) / 2**20  # few digits, so that the sums below are not rounded up
    steps = np.floor(start + np.arange(len(labels) + 1) * test / max(len(labels), 1))
    tested = np.diff(steps) > 0
    return random.permutation(order[~tested]), random.permutation(order[tested])


def sizes(federation: Federation) -> dict[str, tuple[int, int]]:
    """Training and test samples of every client, by name."""
    return {
        client.name: (len(client.train), 0 if client.test is None else len(client.test))
        for group in federation.groups().values()
        for client in group
    }


def _enough(
    images: Images,
    samples: int | None,
    test_fraction: float,
    test_samples: int | None,
    least: int,
) -> tuple[np.ndarray, np.ndarray]:
    """For each writer, in sorted order: whether it has enough, and how many samples it tests on."""
    _check_fraction(test_fraction)
    for name, value in (("samples", samples), ("test_samples", test_samples), ("least", least)):
        if value is not None and value < (1 if name == "test_samples" else 2):
            raise InputError(f"{name} = {value} is too few for a client; give more.")
    _, counts = np.unique(_writer(images), return_counts=True)
    tests = (
        _tested(counts, test_fraction)
        if test_samples is None
        else np.full_like(counts, test_samples)
    )
    return counts - tests >= max(least, samples or 0), tests


def _writer(images: Images) -> np.ndarray:
    if images.writer is None:
        raise InputError(f"{images.name} does not say who wrote what; divide it by label instead.")
    return images.writer


def _tested(counts: np.ndarray, fraction: float) -> np.ndarray:
    return np.maximum(np.rint(fraction * counts), 1).astype(int)


def _check_counts(clients: int, new_clients: int) -> None:
    if clients < 1 or new_clients < 0:
        raise InputError(
            f"{clients} existing and {new_clients} new clients make no federation; at least one trains."
        )


def _check_fraction(test_fraction: float) -> None:
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction = {test_fraction} must lie between 0 and 1.")
