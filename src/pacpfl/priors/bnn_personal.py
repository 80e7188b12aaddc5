"""What a client keeps of a Bayesian neural network: networks that have seen its data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from pacpfl.priors.base import Scalar
from pacpfl.priors.bnn_inference import INFERENCES
from pacpfl.priors.bnn_posterior import Problem, make_target, masked_log_likelihood
from pacpfl.priors.layers import affine, by_rows, features, has_features
from pacpfl.types import Data


class BNNPosterior(NamedTuple):
    """What one client keeps of one particle: n networks, and where inference stands."""

    body: Float[Array, "n fixed"]  # weights that did not adapt
    head: Float[Array, "n adapted"]
    reached: Any  # z for `svgd` and `laplace`, (m, ln s) for `variational`
    log_likelihoods: Float[Array, " n"]  # t ln p(S | w) of the draws of the prior
    data: Data
    temperature: Float[Array, ""]
    seed: UInt32[Array, " 2"]


def posterior(problem: Problem, data: Data, temperature: Scalar, key: Array) -> BNNPosterior:
    temperature = jnp.asarray(problem.inference.temperature * temperature, problem.means.dtype)
    return infer(problem, data, temperature, key)


def extend(problem: Problem, before: BNNPosterior, more: Data) -> BNNPosterior:
    data = Data(*(jnp.concatenate(pair) for pair in zip(before.data, more, strict=True)))
    key = jax.random.wrap_key_data(before.seed)
    return infer(problem, data, before.temperature, key, before.reached)


def draws(problem: Problem, key: Array) -> Float[Array, "n w"]:
    """Networks drawn from the prior, in units of its sigma."""
    shape = (problem.inference.networks, problem.means.size)
    return jax.random.normal(jax.random.fold_in(key, 0), shape, problem.means.dtype)


def infer(
    problem: Problem, data: Data, temperature: Array, key: Array, reached: Any = None
) -> BNNPosterior:
    """From the prior, or from where inference stood before."""
    fixed, drawn = problem.fixed, draws(problem, key)
    body, head = jnp.split(problem.means + problem.std * drawn, [fixed], axis=1)
    target = make_target(problem, body, data, temperature)
    noise = drawn[:, fixed:]
    begin, go_on = INFERENCES[problem.inference.kind]
    start = begin(noise) if reached is None else reached
    reached, z = go_on(target, start, noise, jax.random.fold_in(key, 1))
    if target.by_features:
        log_likelihoods = target.log_likelihoods(noise)
    else:
        said = outputs(problem, body, head, data.x)
        log_likelihoods = temperature * jax.vmap(
            lambda each: masked_log_likelihood(problem.likelihood, each, data)
        )(said)
    adapted = problem.means[fixed:] + problem.std[fixed:] * z
    seed = jax.random.key_data(key)
    return BNNPosterior(body, adapted, reached, log_likelihoods, data, temperature, seed)


def outputs(
    problem: Problem,
    bodies: Float[Array, "n fixed"],
    heads: Float[Array, "n adapted"],
    x: Float[Array, "t d"],
) -> Float[Array, "n t outputs"]:
    """What the networks say, one after the other: side by side they need n times the memory.

    Through body and head one after the other, so that a body all clients share is not copied.
    """
    network = problem.network

    def one(pair: tuple[Array, Array]) -> Array:
        body, head = pair
        if problem.fixed and has_features(network):
            return by_rows(lambda rows: affine(head, features(network, body, rows)), x)
        whole = jnp.concatenate(pair)
        return by_rows(lambda rows: network(whole, rows), x)

    return jax.lax.map(one, (bodies, heads))
