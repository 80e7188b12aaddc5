"""How a client infers its own networks from a Bayesian one: the tempered posterior of the weights.

All inference happens in the prior's own units, z = (w - mu) / sigma, where the prior is N(0, I) and one
step size suits every layer:

    ln p(z | S) = -|z|^2 / 2 + t ln p(S | mu + sigma z) + const.

Three ways lead from N(0, I) to this posterior:

- `svgd` (the paper's framework): the networks start as draws of the prior and move by SVGD.
- `variational`: the Gaussian N(m, diag(s^2)) in z that maximises t E[ln p(S | w)] - KL; the networks
  are draws of it.
- `laplace`: the Gaussian around the most probable z with the curvature (generalised Gauss-Newton) as
  its precision; exact for a linear network with Gaussian noise. Costs the cube of what is fewer, weights
  that adapt (up to SMALL) or samples x outputs.

With `steps=0` all of them leave draws of the prior: no personalisation.

`adapt="last"`: only the last layer moves, on top of the body (all layers before it) of a network
drawn from the prior. Its features are computed once: hundreds of steps cost less than one pass
through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from pacpfl import svgd, tiles
from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian, Likelihood, log_likelihood
from pacpfl.linalg import factorise, gaussian_log_density
from pacpfl.priors.base import Place, ascend, random_rows
from pacpfl.priors.networks import Headed, Network, affine, by_rows
from pacpfl.priors.settings import Inference
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data

if TYPE_CHECKING:
    from pacpfl.priors.base import Inputs, Scalar

OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}
SMALL = 256  # weights whose precision is a matrix of weights, whatever the number of samples
NEWTON = 6  # steps to the most probable weights of an evidence
EVERY = slice(None)
Rows = slice | Int[Array, " b"]  # the samples of one step
Bodies = Float[Array, "n fixed"]  # weights of n networks that do not adapt,
Heads = Float[Array, "n adapted"]  # and that do
Reached: TypeAlias = PyTree[Array]  # z for `svgd` and `laplace`, (m, ln s) for `variational`


class Problem(NamedTuple):
    """One particle and how to infer from it."""

    network: Network
    likelihood: Likelihood
    inference: Inference
    means: Float[Array, " w"]
    std: Float[Array, " w"]

    @property
    def fixed(self) -> int:
        return self.inference.fixed(self.network)

    @property
    def headed(self) -> Headed | None:
        """The network, if what its last layer sees is to be computed once."""
        last = self.inference.adapt == "last" and isinstance(self.network, Headed)
        return self.network if last else None  # type: ignore[return-value]


class Target(NamedTuple):
    """ln p(S | w)^t of n networks as a function of what adapts, in units of the prior's sigma."""

    problem: Problem
    seen: Array  # of each network, features of the samples, or else its body
    data: Data
    temperature: Float[Array, ""]

    def outputs(self, seen: Array, z: Float[Array, " p"], rows: Rows = EVERY) -> Array:
        fixed = self.problem.fixed
        head = self.problem.means[fixed:] + self.problem.std[fixed:] * z
        if self.problem.headed:
            return affine(head, seen[rows])
        return self.problem.network(jnp.concatenate([seen, head]), self.data.x[rows])

    def log_likelihoods(self, z: Float[Array, "n p"], rows: Rows = EVERY) -> Float[Array, " n"]:
        """With some rows only: the batch's mean stands for the mean of all."""
        batch = Data(*(part[rows] for part in self.data))
        share = self.data.mask.sum() / jnp.maximum(batch.mask.sum(), 1)

        def one(seen: Array, z: Array) -> Array:
            values = self.outputs(seen, z, rows)
            return log_likelihood(self.problem.likelihood, values, batch)

        scale = self.temperature * share.astype(self.temperature.dtype)
        return scale * jax.vmap(one)(self.seen, z)

    def rows(self, key: Array) -> Rows:
        batch = self.problem.inference.batch
        if batch is None or batch >= self.data.mask.size:
            return EVERY
        return random_rows(key, self.data.mask, batch)


def make_target(problem: Problem, body: Array, data: Data, temperature: Array) -> Target:
    headed = problem.headed
    if headed:
        body = jax.lax.map(lambda one: by_rows(lambda x: headed.features(one, x), data.x), body)
    return Target(problem, body, data, temperature)


def _ascend(
    gradient: Callable[[Place, Array], Place], start: Place, inference: Inference, key: Array
) -> Place:
    """Steps as the inference has them, each with its own key."""
    if inference.steps == 0:
        return start
    schedule = optax.cosine_decay_schedule(inference.learning_rate, inference.steps)
    optimizer = OPTIMIZERS[inference.optimizer](schedule)
    keyed = lambda place, number: gradient(place, jax.random.fold_in(key, number))  # noqa: E731
    return ascend(keyed, start, optimizer, inference.steps)


def _svgd(target: Target, start: Array, noise: Array, key: Array) -> tuple[Array, Array]:
    inference = target.problem.inference

    def direction(z: Array, key: Array) -> Array:
        rows = target.rows(key)
        likelihood = jax.grad(lambda z: target.log_likelihoods(z, rows).sum())(z)
        return svgd.direction(z, likelihood - z, inference.svgd_kernel)

    z = _ascend(direction, start, inference, key)
    return z, z


def _variational(
    target: Target, start: tuple[Array, Array], noise: Array, key: Array
) -> tuple[tuple[Array, Array], Array]:
    """KL(N(m, s^2) || N(0, 1)) = (s^2 + m^2 - 1) / 2 - ln s, summed over the weights."""

    def bound(q: tuple[Array, Array], epsilon: Array, rows: Rows) -> Array:
        mean, log_std = q
        likelihood = target.log_likelihoods(mean + jnp.exp(log_std) * epsilon, rows).mean()
        divergence = 0.5 * (jnp.exp(2 * log_std) + mean**2 - 1) - log_std
        return likelihood - divergence.sum()

    def gradient(q: tuple[Array, Array], key: Array) -> tuple[Array, Array]:
        row_key, noise_key = jax.random.split(key)
        epsilon = jax.random.normal(noise_key, noise.shape, noise.dtype)
        return jax.grad(bound)(q, epsilon, target.rows(row_key))

    mean, log_std = _ascend(gradient, start, target.problem.inference, key)
    return (mean, log_std), mean + jnp.exp(log_std) * noise


def _laplace(target: Target, start: Array, noise: Array, key: Array) -> tuple[Array, Array]:
    """Newton's method with the Gauss-Newton precision A = I + B^T B, then one draw for each network."""
    steps = target.problem.inference.steps
    if steps == 0:
        return start, noise

    def one(seen: Array, z: Array, epsilon: Array, more: Array) -> tuple[Array, Array]:
        alone = target._replace(seen=seen[None])
        z = jax.lax.fori_loop(0, steps, lambda _, z: _newton(alone, z), z)
        return z, z + _gaussian(alone, z).draw(epsilon, more)

    def draw(rank: Array) -> Array:
        """By a sample's rank among those that count, so that padding changes no draw."""
        shape = (len(noise), target.problem.likelihood.outputs)
        return jax.random.normal(jax.random.fold_in(key, rank), shape, noise.dtype)

    more = jax.vmap(draw, out_axes=1)(jnp.cumsum(target.data.mask) - 1)
    return jax.vmap(one)(target.seen, start, noise, more.reshape(len(noise), -1))


def log_joint(target: Target, z: Float[Array, " p"]) -> Float[Array, ""]:
    """ln p(S | w)^t + ln p(z) of one network, but for the constant."""
    return target.log_likelihoods(z[None])[0] - 0.5 * jnp.sum(z**2)


def _newton(target: Target, z: Array) -> Array:
    """The best of several lengths of Newton's step, none included: it never leads downhill."""
    sizes = jnp.append(0.5 ** jnp.arange(6.0), 0.0).astype(z.dtype)
    change = _gaussian(target, z).solve(jax.grad(partial(log_joint, target))(z))
    tried = jax.vmap(lambda size: log_joint(target, z + size * change))(sizes)
    best = sizes[jnp.argmax(jnp.where(jnp.isfinite(tried), tried, -jnp.inf))]
    return z + jnp.where(best > 0, best * change, 0)


class Local(NamedTuple):
    """The Gaussian with the precision A = I + B^T B: u -> A^-1 u, and a draw of N(0, A^-1) from standard
    normal numbers."""

    solve: Callable[[Array], Array]
    draw: Callable[[Array, Array], Array]


def _rows(target: Target, z: Float[Array, " p"]) -> Float[Array, "rows p"]:
    """B = sqrt(t) R^T J, with J the outputs' Jacobian and R R^T the likelihood's curvature: a row for
    each sample and output."""
    outputs = partial(target.outputs, target.seen[0])
    jacobian = (jax.jacfwd if z.size <= SMALL else jax.jacrev)(outputs)(z)
    root = curvature_root(target.problem.likelihood, outputs(z))
    rows = jnp.einsum("moq,mop->mqp", root, jacobian)
    rows = jnp.where(target.data.mask[:, None, None], rows, 0)
    return jnp.sqrt(target.temperature) * rows.reshape(-1, z.size)


def _precision(target: Target, z: Float[Array, " p"]) -> Float[Array, "p p"]:
    """A = I + B^T B, without B where the outputs are `affine`: class by class from products of features."""
    problem, eye = target.problem, jnp.eye(z.size, dtype=z.dtype)
    if problem.headed is None:
        rows = _rows(target, z)
        return matmul(transpose(rows), rows) + eye
    seen, mask = target.seen[0], target.data.mask[:, None]
    root = curvature_root(problem.likelihood, target.outputs(seen, z))
    root = jnp.where(mask[:, None], jnp.sqrt(target.temperature) * root, 0)
    curvature = matmul(root, transpose(root))  # [m, outputs, outputs]
    seen = jnp.where(mask, jnp.concatenate([seen, jnp.ones_like(seen[:, :1])], 1), 0)
    square = jnp.einsum("mce,mij->icje", curvature, seen[:, :, None] * seen[:, None])
    std = problem.std[problem.fixed :]
    return std[:, None] * square.reshape(z.size, z.size) * std + eye


def _gaussian(target: Target, z: Float[Array, " p"]) -> Local:
    """What is Gaussian around z. Of many weights the factor is that of I + B B^T, which is smaller:

    A^-1 u = u - B^T (I + B B^T)^-1 B u, and e - B^T (I + B B^T)^-1 (B e + v) is a draw.
    """
    few = z.size <= SMALL
    rows = jnp.zeros((0, z.size), z.dtype) if few else _rows(target, z)
    square = _precision(target, z) if few else matmul(rows, transpose(rows)) + jnp.eye(len(rows))
    inverse = factorise(square.astype(z.dtype))

    def whole(vector: Array) -> Array:
        return matmul(transpose(inverse), matmul(inverse, vector))

    if few:
        return Local(whole, lambda epsilon, more: matmul(transpose(inverse), epsilon))

    def shrink(vector: Array, more: Scalar = 0.0) -> Array:
        return vector - matmul(transpose(rows), whole(matmul(rows, vector) + more))

    return Local(shrink, shrink)


def laplace_evidence(problem: Problem, data: Data, temperature: Array) -> Float[Array, ""]:
    r"""Return ln Z by Laplace's approximation around the most probable weights of what adapts:

    $$t \ln p(S | w^*) - \tfrac12 |z^*|^2 - \tfrac12 \ln|I + B^T B|,$$

    which is exact for a linear network with Gaussian noise. The other weights are at their means.

    z* depends on the particle. Newton's step from where the search has ended adds nothing to it, but
    its derivative is that of z*.
    """
    body, start = problem.means[None, : problem.fixed], jnp.zeros_like(problem.means)
    target = make_target(problem, body, data, temperature)
    fixed = problem._replace(
        means=jax.lax.stop_gradient(problem.means), std=jax.lax.stop_gradient(problem.std)
    )
    still = make_target(fixed, fixed.means[None, : problem.fixed], data, temperature)
    z = jax.lax.fori_loop(0, NEWTON, lambda _, z: _newton(still, z), start[problem.fixed :])
    z = z + _gaussian(still, z).solve(jax.grad(partial(log_joint, target))(z))
    precision = _precision(target, z)
    block = tiles.build(z.size, lambda some, others: precision[some, others])
    return log_joint(target, z) + gaussian_log_density(block, jnp.zeros_like(z))


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
INFERENCES: dict[str, tuple[Callable[[Array], Reached], Callable[..., tuple[Reached, Array]]]] = {
    "svgd": (lambda noise: noise, _svgd),
    "variational": (lambda noise: (jnp.zeros_like(noise[0]),) * 2, _variational),
    "laplace": (jnp.zeros_like, _laplace),
}


class BNNPosterior(NamedTuple):
    """What one client keeps of one particle: n networks, and where inference stands."""

    body: Bodies
    head: Heads
    reached: Reached
    log_likelihoods: Float[Array, " n"]  # t ln p(S | w) of the draws of the prior
    data: Data
    temperature: Float[Array, ""]
    seed: UInt32[Array, " 2"]


def infer(
    problem: Problem, data: Data, temperature: Array, key: Array, reached: Reached | None = None
) -> BNNPosterior:
    """From draws of the prior, or from where inference stood before."""
    fixed, shape = problem.fixed, (problem.inference.networks, problem.means.size)
    drawn = jax.random.normal(jax.random.fold_in(key, 0), shape, problem.means.dtype)
    body, head = jnp.split(problem.means + problem.std * drawn, [fixed], axis=1)
    target = make_target(problem, body, data, temperature)
    noise = drawn[:, fixed:]
    begin, go_on = INFERENCES[problem.inference.inference]
    start = begin(noise) if reached is None else reached
    reached, z = go_on(target, start, noise, jax.random.fold_in(key, 1))
    if problem.headed:
        log_likelihoods = target.log_likelihoods(noise)
    else:
        said = network_outputs(problem, body, head, data.x)
        log_likelihoods = temperature * jax.vmap(
            lambda outputs: log_likelihood(problem.likelihood, outputs, data)
        )(said)
    adapted = problem.means[fixed:] + problem.std[fixed:] * z
    seed = jax.random.key_data(key)
    return BNNPosterior(body, adapted, reached, log_likelihoods, data, temperature, seed)


def network_outputs(
    problem: Problem, bodies: Bodies, heads: Heads, x: Inputs
) -> Float[Array, "n t outputs"]:
    """What the networks say, one after the other: side by side they need n times the memory.

    Through body and head one after the other, so that a body all clients share is not copied.
    """
    headed = problem.headed

    def one(pair: tuple[Array, Array]) -> Array:
        body, head = pair
        if headed:
            return by_rows(lambda rows: affine(head, headed.features(body, rows)), x)
        whole = jnp.concatenate(pair)
        return by_rows(lambda rows: problem.network(whole, rows), x)

    return jax.lax.map(one, (bodies, heads))
