"""NumPy, and SciPy's factorisations: what `arrays.of` returns for NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg
from scipy.special import log_softmax as log_softmax
from scipy.special import logsumexp as logsumexp
from scipy.special import ndtr as ndtr
from scipy.special import ndtri as ndtri
from scipy.special import softmax as softmax

Block = Callable[[slice, slice], np.ndarray]


def __getattr__(name: str) -> Any:
    return getattr(np, name)


quick_tanh = np.tanh


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def transpose(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Map a function over the leading axes of its arguments, as `jax.vmap` does."""

    def mapped(*trees: Any) -> Any:
        return _stacked([function(*(_at(t, i) for t in trees)) for i in range(_count(trees))])

    return mapped


one_by_one = each


def _count(tree: Any) -> int:
    return _count(tree[0]) if isinstance(tree, tuple) else len(tree)


def _at(tree: Any, place: int) -> Any:
    if isinstance(tree, tuple):
        return _like(tree, [_at(part, place) for part in tree])
    return None if tree is None else tree[place]


def _stacked(trees: list[Any]) -> Any:
    if isinstance(trees[0], tuple):
        return _like(trees[0], [_stacked(list(parts)) for parts in zip(*trees, strict=True)])
    return None if trees[0] is None else np.stack(trees)


def _like(example: tuple[Any, ...], parts: list[Any]) -> Any:
    return type(example)(*parts) if hasattr(example, "_fields") else tuple(parts)


def repeat(steps: int, body: Callable[[int, Any], Any], start: Any) -> Any:
    """Return what `steps` calls body(number, before) make of the start."""
    for number in range(steps):
        start = body(number, start)
    return start


def with_derivative(value: Callable[..., Any], forward: Any, backward: Any) -> Callable[..., Any]:
    """Return the function; NumPy derives nothing."""
    return value


def inverse_factor(size: int, block: Block) -> np.ndarray:
    """Return W = L^-1 with W A W^T = I of the matrix of `size` rows that block(rows, columns) makes."""
    return factorise(block(slice(size), slice(size)))


def factorise(a: np.ndarray) -> np.ndarray:
    """Return W = L^-1 with W (A + jitter I) W^T = I: with jitter only where it fails without, and NaN
    where no jitter of `linalg.factorise_tiles` helps either."""
    single = a.dtype == np.float32
    first, tries = (1e-6, 6) if single else (1e-12, 12)
    eye, scale = np.eye(len(a), dtype=a.dtype), np.trace(a) / max(1, len(a))
    for jitter in (0.0, *(first * scale * 10.0**n for n in range(tries - 1))):
        try:
            low = linalg.cholesky(a + jitter * eye if jitter else a, lower=True)
            return linalg.solve_triangular(low, eye, lower=True)
        except (linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            pass
    return np.full_like(a, np.nan)


def log_density(size: int, block: Block, residual: np.ndarray) -> np.ndarray:
    """Return ln N(residual | 0, A), without its (m/2) ln 2 pi."""
    inverse = inverse_factor(size, block)
    return -0.5 * np.sum((inverse @ residual) ** 2) + np.log(np.diagonal(inverse)).sum()
