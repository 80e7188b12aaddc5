"""What a server that sees its sites' updates does about single ones: too long, wrong, or too many.

An update's length is the norm of its arrays; single numbers beside them, which only progress bars show,
do not count. The usual length is the median over sites of each site's median, so a site has one vote
however many clients it claims.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.methods.transforms import Code, decoded

VOTES = 3  # sites without which nobody can say what is usual
SHARE = 0.25  # of the machine's memory, for one round's updates
STEPS = 50  # of the geometric median, at most


def is_finite(state: PyTree) -> bool:
    """Return whether all real numbers of a state are finite, those of its optimiser too."""
    leaves = map(np.asarray, jax.tree.leaves(state))
    return all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind == "f")


def lengths(part: PyTree, dtype: type) -> np.ndarray:
    """Return the length of each client's update [c], also where its square is beyond all floats."""
    leaves = [
        np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(decoded(part, np.dtype(dtype)))
    ]
    rows = [leaf.reshape(len(leaf), -1) for leaf in leaves if leaf.ndim > 1] or [
        leaf[:, None] for leaf in leaves
    ]
    largest = np.max([np.abs(row).max(1, initial=0) for row in rows], axis=0)
    unit = np.where(largest > 0, largest, 1)[:, None]
    return largest * np.sqrt(sum(((row / unit) ** 2).sum(1) for row in rows))


def shorten(
    found: Mapping[str, PyTree], longest: float, dtype: type
) -> tuple[dict[str, PyTree], dict[str, float]]:
    """Scale updates down to `longest` times the usual length; return all, and who was how far beyond it.

    With fewer than VOTES sites, or `longest` 0, they stay as they are.
    """
    own = {site: lengths(part, dtype) for site, part in found.items()}
    most = longest * float(np.median([np.median(each) for each in own.values()]))
    if len(found) < VOTES or most == 0:
        return dict(found), {}
    beyond = {site: float(each.max() / most) for site, each in own.items() if each.max() > most}
    factors = {site: np.minimum(1, most / np.maximum(own[site], most)) for site in beyond}
    return {
        site: scaled(part, factors[site]) if site in factors else part
        for site, part in found.items()
    }, beyond


def trimmed(rows: np.ndarray) -> np.ndarray:
    """Return each number's mean without the quarter of clients that is highest, and the lowest."""
    cut = len(rows) // 4
    return np.sort(rows, axis=0)[cut : len(rows) - cut].mean(0)


def median(rows: np.ndarray) -> np.ndarray:
    return np.median(rows, axis=0)


def geometric_median(rows: np.ndarray) -> np.ndarray:
    """Return the point with the least sum of distances to the rows (Weiszfeld 1937)."""
    point = median(rows)
    for _ in range(STEPS):
        apart = np.linalg.norm(rows - point, axis=1)
        near = 1 / np.maximum(apart, 1e-6 * max(float(np.median(apart)), 1e-300))
        before, point = point, (near / near.sum()) @ rows
        if np.linalg.norm(point - before) <= 1e-5 * np.linalg.norm(point):
            break
    return point


RULES = {  # beside "mean"
    "trimmed": trimmed,
    "median": median,
    "geometric-median": geometric_median,
}


def combined(updates: PyTree, weights: np.ndarray, rule: str, dtype: type) -> PyTree:
    """Give every client that takes part the one update that stands for all by the rule; "mean": its own.

    Whoever takes the mean of these takes that one. Single numbers, for progress bars, stay.
    """
    if rule == "mean":
        return updates
    there, plain = weights > 0, decoded(updates, np.dtype(dtype))
    leaves, structure = jax.tree.flatten(jax.tree.map(np.array, plain))
    single = all(leaf.ndim < 2 for leaf in leaves)
    used = [leaf for leaf in leaves if leaf.ndim > 1 or single]
    rows = [leaf[there].reshape(there.sum(), -1).astype(np.float64) for leaf in used]
    centre, start = RULES[rule](np.concatenate(rows, axis=1)), 0
    for leaf, row in zip(used, rows, strict=True):
        leaf[there] = centre[start : start + row.shape[1]].reshape(leaf.shape[1:])
        start += row.shape[1]
    return jax.tree.unflatten(structure, leaves)


def scaled(part: PyTree, factors: np.ndarray) -> PyTree:
    """Return the updates of a site's clients, each times its factor."""
    single = all(np.ndim(leaf) < 2 for leaf in jax.tree.leaves(part))

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Code):
            return leaf._replace(scale=one(leaf.scale))
        if (np.ndim(leaf) < 2 and not single) or np.asarray(leaf).dtype.kind != "f":
            return leaf
        by_client = factors.reshape(-1, *[1] * (np.ndim(leaf) - 1))
        return (leaf * by_client).astype(leaf.dtype)

    return jax.tree.map(one, part, is_leaf=lambda leaf: isinstance(leaf, Code))


def too_many(clients: Mapping[str, int], update: PyTree) -> dict[str, str]:
    """Return the sites whose updates do not fit in memory beside those of smaller sites, and why."""
    each = sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in jax.tree.leaves(update))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most, held, refused = int(SHARE * memory / max(8, each)), 0, {}
    for site, n in sorted(clients.items(), key=lambda pair: (pair[1], pair[0])):
        if held + n > most:
            refused[site] = (
                f"it says that it has {n} clients, and updates of {most} fit into a quarter of this "
                "server's memory; train with fewer, or on a larger machine"
            )
        else:
            held += n
    return refused
