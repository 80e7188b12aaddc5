"""The round as pacpfl runs it: the engine's own compiled call, on the problem of the references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.problem import Problem
from pacpfl.data.store import from_samples
from pacpfl.engine.compiled import Rounds, make_call
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import divide, round_inputs
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Samples


def make_method(problem: Problem) -> PACPFL:
    """Hyper-prior N(0, std^2) on every entry, the noise's too: softplus(0) = ln 2 centres it at 0."""
    sizes = problem.sizes
    prior = GPPrior(
        sizes.features,
        GPSettings(
            mean_widths=sizes.hidden,
            kernel_widths=sizes.hidden,
            noise=math.log(2),
            noise_spread=problem.hyper_prior_std,
        ),
    )
    return PACPFL(
        prior,
        clients=sizes.clients,
        optimizer=optax.sgd(problem.learning_rate),
        settings=TrainSettings(
            particles=sizes.particles,
            tau=problem.tau,
            hyper_std=problem.hyper_prior_std,
            aggregation="mean",
        ),
    )


def make_round(problem: Problem, dtype: str, rounds: int = 1) -> Callable[[Any], Any]:
    """`step(particles)` gives the particles after `rounds` rounds in one call, as training does it."""
    sizes, kind = problem.sizes, np.dtype(dtype).type
    method = make_method(problem)
    store = from_samples([Samples(x, y) for x, y in zip(problem.x, problem.y, strict=True)])
    layout = divide(sizes.clients, sizes.samples, sizes.particles, np.dtype(kind).itemsize)
    inputs = round_inputs(store, [np.arange(sizes.clients)], layout.slots, kind)
    example = jax.tree.map(lambda a: a[0, 0], inputs.data)
    state = method.init(jax.random.key(0), example)
    call = make_call(Rounds(method, layout, rounds, True, sizes.clients), Keys.of(0))

    def step(particles: Any) -> Any:
        start = state._replace(particles=jax.numpy.asarray(particles, kind))
        after, _, curves = call(start, (), inputs, 0, rounds)
        jax.block_until_ready(curves)
        return after.particles

    step.compiled = call  # type: ignore[attr-defined]
    return step
