"""A small set for demonstrations and tests: scikit-learn's 1,797 digits of 8 x 8 pixels.

It comes with scikit-learn, so nothing is downloaded. It does not say who wrote what; in its place every
simulated writer has a HAND: an angle by which all of its digits are turned and a slant by which
they lean, both drawn once per writer. So clients differ in how their digits look and share what the digits
are, as real writers do. (For clients that differ in their labels: `dirichlet(digit_images(), ...)`.)
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import affine_transform

from pacpfl.data.images import Images, by_writer
from pacpfl.errors import InputError, imported
from pacpfl.types import Federation

_HANDS = 4004


def digits(
    clients: int = 20,
    new_clients: int = 10,
    samples: int | None = 20,
    test_fraction: float = 0.5,
    degrees: float = 20.0,
    slant: float = 0.3,
    seed: int = 0,
) -> Federation:
    """Deal out the digits, each used once, to clients with different hands: 59 or 60 each of 30 clients."""
    images = hands(digit_images(), clients + new_clients, degrees, slant, seed)
    return by_writer(images, clients, new_clients, samples, test_fraction, samples or 2, seed)


def digit_images() -> Images:
    """Return scikit-learn's digits; its 17 grey levels 0..16 become 0..255."""
    bunch = imported("sklearn.datasets", "The set of digits", "scikit-learn").load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Images("digits", pixels, bunch.target.astype(np.int64), 10)


def hands(
    images: Images, writers: int, degrees: float = 20.0, slant: float = 0.3, seed: int = 0
) -> Images:
    """Deal the images out evenly to simulated writers and redraw each in its writer's hand.

    Writer i turns its digits by a_i ~ N(0, degrees^2) and leans them by s_i ~ N(0, slant^2) pixels per
    row, about the image's centre: the pixel at offset u shows what was at R(a_i) [[1, 0], [s_i, 1]] u,
    u = (row, column), between pixels by linear interpolation.
    """
    if not 1 <= writers <= len(images):
        raise InputError(
            f"{writers} writers cannot share the {len(images)} images of {images.name}; ask for "
            f"1 to {len(images)}."
        )
    random = np.random.default_rng([_HANDS, seed])
    writer = random.permutation(np.arange(len(images)) % writers)
    angles, slants = random.normal(size=(2, writers))
    redrawn = np.empty_like(images.images)
    for number in range(writers):
        mine = writer == number
        redrawn[mine] = _redraw(
            images.images[mine], np.deg2rad(degrees * angles[number]), slant * slants[number]
        )
    return Images(images.name, redrawn, images.labels, images.classes, writer)


def _redraw(stack: np.ndarray, angle: float, lean: float) -> np.ndarray:
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.eye(3)  # the first axis counts images and stays as it is
    matrix[1:, 1:] = turn @ np.array([[1.0, 0.0], [lean, 1.0]])
    centre = (np.array(stack.shape) - 1) / 2
    moved = affine_transform(stack.astype(float), matrix, centre - matrix @ centre, order=1)
    return np.rint(moved).astype(np.uint8)
