"""Three ways from the prior's N(0, I) to the posterior of a Bayesian neural network (`bnn_posterior`).

- `svgd` (the paper's framework): the networks start as draws of the prior and move by SVGD.
- `variational`: the Gaussian N(m, diag(s^2)) in z that maximises t E[ln p(S | w)] - KL; the networks
  are draws of it.
- `laplace`: the Gaussian around the most probable z with the curvature (generalised Gauss-Newton) as
  its precision; exact for a linear network with Gaussian noise. Costs (samples x outputs)^3, so it is
  for small clients.

With `steps=0` all of them leave draws of the prior: no personalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pacpfl import svgd
from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian, Likelihood
from pacpfl.linalg import factorise
from pacpfl.priors.base import Scalar
from pacpfl.priors.bnn_posterior import OPTIMIZERS, Inference, Target
from pacpfl.tiles import matmul, transpose


def ascend(
    gradient: Callable[[Any, Array], Any], start: Any, inference: Inference, key: Array
) -> Any:
    """`steps` steps of the optimiser. A step that is not finite is not taken."""
    if inference.steps == 0:
        return start
    schedule = optax.cosine_decay_schedule(inference.learning_rate, inference.steps)
    optimizer = OPTIMIZERS[inference.optimizer](schedule)

    def step(number: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        place, memory = carry
        uphill = gradient(place, jax.random.fold_in(key, number))
        finite = jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(uphill)]))
        change, moved = optimizer.update(jax.tree.map(jnp.negative, uphill), memory)
        after = (optax.apply_updates(place, change), moved)
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, carry)

    return jax.lax.fori_loop(0, inference.steps, step, (start, optimizer.init(start)))[0]


def _svgd(target: Target, start: Array, noise: Array, key: Array) -> tuple[Array, Array]:
    inference = target.problem.inference

    def direction(z: Array, key: Array) -> Array:
        rows = target.rows(key)
        likelihood = jax.grad(lambda z: target.log_likelihoods(z, rows).sum())(z)
        return svgd.direction(z, likelihood - z, inference.kernel)

    z = ascend(direction, start, inference, key)
    return z, z


def _variational(
    target: Target, start: tuple[Array, Array], noise: Array, key: Array
) -> tuple[tuple[Array, Array], Array]:
    """KL(N(m, s^2) || N(0, 1)) = (s^2 + m^2 - 1) / 2 - ln s, summed over the weights."""

    def bound(q: tuple[Array, Array], epsilon: Array, rows: Any) -> Array:
        mean, log_std = q
        likelihood = target.log_likelihoods(mean + jnp.exp(log_std) * epsilon, rows).mean()
        divergence = 0.5 * (jnp.exp(2 * log_std) + mean**2 - 1) - log_std
        return likelihood - divergence.sum()

    def gradient(q: tuple[Array, Array], key: Array) -> tuple[Array, Array]:
        row_key, noise_key = jax.random.split(key)
        epsilon = jax.random.normal(noise_key, noise.shape, noise.dtype)
        return jax.grad(bound)(q, epsilon, target.rows(row_key))

    mean, log_std = ascend(gradient, start, target.problem.inference, key)
    return (mean, log_std), mean + jnp.exp(log_std) * noise


def _laplace(target: Target, start: Array, noise: Array, key: Array) -> tuple[Array, Array]:
    """Newton's method with the Gauss-Newton precision A = I + B^T B, then one draw for each network.

    With e and v standard normal, e - B^T (I + B B^T)^-1 (B e + v) is a draw of N(0, A^-1).
    """
    steps = target.problem.inference.steps
    if steps == 0:
        return start, noise
    sizes = jnp.append(0.5 ** jnp.arange(6.0), 0.0).astype(noise.dtype)

    def one(seen: Array, z: Array, epsilon: Array, more: Array) -> tuple[Array, Array]:
        alone = target._replace(seen=seen[None])

        def log_density(z: Array) -> Array:
            return alone.log_likelihoods(z[None])[0] - 0.5 * jnp.sum(z**2)

        def newton(_: int, z: Array) -> Array:
            """The best of several lengths of the step, none included: it never leads downhill."""
            change = _shrink(target, seen, z)(jax.grad(log_density)(z), 0.0)
            tried = jax.vmap(lambda size: log_density(z + size * change))(sizes)
            best = sizes[jnp.argmax(jnp.where(jnp.isfinite(tried), tried, -jnp.inf))]
            return z + jnp.where(best > 0, best * change, 0)

        z = jax.lax.fori_loop(0, steps, newton, z)
        return z, z + _shrink(target, seen, z)(epsilon, more)

    rows = target.data.mask.size * target.problem.likelihood.outputs
    more = jax.random.normal(key, (noise.shape[0], rows), noise.dtype)
    return jax.vmap(one)(target.seen, start, noise, more)


def _shrink(target: Target, seen: Array, z: Array) -> Callable[[Array, Scalar], Array]:
    """(u, v) -> u - B^T (I + B B^T)^-1 (B u + v), which is A^-1 u for v = 0.

    B = sqrt(t) R^T J, with J the outputs' Jacobian and R R^T the likelihood's curvature, has a row for
    each sample and output: far fewer than weights.
    """
    jacobian = jax.jacrev(lambda z: target.outputs(seen, z))(z)
    root = curvature_root(target.problem.likelihood, target.outputs(seen, z))
    rows = jnp.einsum("moq,mop->mqp", root, jacobian)
    rows = jnp.where(target.data.mask[:, None, None], rows, 0)
    rows = jnp.sqrt(target.temperature) * rows.reshape(-1, z.size)
    eye = jnp.eye(rows.shape[0], dtype=z.dtype)
    inverse = factorise(matmul(rows, transpose(rows)) + eye).inverse

    def shrink(vector: Array, more: Scalar) -> Array:
        inner = matmul(inverse, matmul(rows, vector) + more)
        return vector - matmul(transpose(rows), matmul(transpose(inverse), inner))

    return shrink


def curvature_root(
    likelihood: Likelihood, outputs: Float[Array, "m outputs"]
) -> Float[Array, "m outputs outputs"]:
    """R with R R^T = the Hessian of -ln p(y | outputs) in the outputs (which does not depend on y).

    Classes: diag(p) - p p^T, whose root has the columns sqrt(p_c) (e_c - p).
    """
    if isinstance(likelihood, Categorical):
        p = jax.nn.softmax(outputs)
        eye = jnp.eye(likelihood.classes, dtype=outputs.dtype)
        return (eye - p[:, :, None]) * jnp.sqrt(p)[:, None, :]
    if isinstance(likelihood, Gaussian):
        return jnp.full((*outputs.shape, 1), 1 / likelihood.noise, outputs.dtype)
    raise InputError(
        f"The curvature of {type(likelihood).__name__} is not known; "
        'choose the inference "svgd" or "variational".'
    )


# For each kind: where it starts, given draws of N(0, I), and how it goes on from there. The results are
# where it has got to, and the networks.
INFERENCES: dict[str, tuple[Callable[[Array], Any], Callable[..., tuple[Any, Array]]]] = {
    "svgd": (lambda noise: noise, _svgd),
    "variational": (
        lambda noise: (jnp.zeros_like(noise[0]), jnp.zeros_like(noise[0])),
        _variational,
    ),
    "laplace": (jnp.zeros_like, _laplace),
}
