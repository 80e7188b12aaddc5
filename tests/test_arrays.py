"""The mathematics of a client's model is the same in NumPy as in JAX, and needs no JAX."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl import arrays, predictive
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import MEANS, GPPrior, GPSettings
from pacpfl.priors.kernels import OURS
from pacpfl.priors.mixture import MixturePrior
from pacpfl.priors.warped import WarpedPrior
from pacpfl.types import Data

RULES = ("uniform", "evidence", "stacking")
PLACES = np.linspace(-1.5, 1.5, 4)[:, None] * np.array([1.0, -0.5])


def of_gp(**settings: Any) -> GPPrior:
    return GPPrior(
        2, GPSettings(mean_widths=(3,), kernel_widths=(4,), noise_widths=(3,), **settings)
    )


NOISES = ("constant", "linear", "mlp")  # each with every mean and every kernel
FAMILIES: dict[str, Prior] = {
    f"{mean}, {kernel}, {NOISES[(i + j) % 3]}": of_gp(
        mean=mean, kernel=kernel, noise_model=NOISES[(i + j) % 3]
    )
    for (i, mean), (j, kernel) in product(enumerate(MEANS), enumerate(sorted(OURS)))
} | {
    "sums, learned scales": of_gp(mean="linear+mlp", kernel="ard+linear", output_scale="learned"),
    "warped": WarpedPrior(of_gp(kernel="ard+matern")),
    "mixture": MixturePrior(of_gp(mean="constant", noise_model="linear"), 3),
    "mixture of warped": MixturePrior(WarpedPrior(of_gp(mean="linear", kernel="periodic")), 2),
}


def samples(rng: np.random.Generator, rows: int) -> Data:
    x = rng.normal(size=(rows, 2))
    return Data(x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=rows), rng.random(rows) < 0.8)


def answers(model: PersonalModel) -> list[Any]:
    xp = arrays.of(model.particles)
    predicted, y, levels = model(xp.asarray(PLACES)), np.linspace(-1, 1, 4), np.array([0.1, 0.5])
    return [
        *predicted,
        model.weights,
        model.responsibilities(),
        predictive.mean(predicted),
        predictive.std(predicted),
        predictive.quantiles(predicted, xp.asarray(levels)),
        predictive.cdf(predicted, xp.asarray(y)),
        predictive.log_density(predicted, xp.asarray(y)),
        *xp.each(model.prior.leave_one_out)(model.particles, model.posteriors),
        xp.each(model.prior.log_evidence_of)(model.particles, model.posteriors),
        xp.each(lambda phi: model.prior.fingerprint(phi, xp.asarray(PLACES)))(model.particles),
    ]


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=list(FAMILIES))
def test_numpy_says_what_jax_says(number: int) -> None:
    prior, rng = list(FAMILIES.values())[number], np.random.default_rng(number)
    particles = 0.7 * rng.normal(size=(2, prior.size))
    data, more = samples(rng, 9), samples(rng, 4)
    rule, temperature = RULES[number % 3], (1.0, 0.6)[number % 2]

    def everything(phi: Any, data: Data, more: Data) -> list[Any]:
        model, xp = personal_model(prior, phi, data, rule, temperature), arrays.of(phi)
        evidence = xp.each(lambda one: prior.log_evidence(one, data, temperature))(phi)
        return [*answers(model), *answers(model.extend(more)), evidence]

    assert prior.plain
    with np.errstate(all="ignore"):  # of what `where` leaves out; JAX warns of nothing
        plain = everything(particles, data, more)
    assert all(type(answer) in (np.ndarray, np.float64) for answer in plain)
    with jax.enable_x64(True):
        traced = jax.jit(everything)(*jax.tree.map(jnp.asarray, (particles, data, more)))
        for mine, theirs in zip(plain, traced, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


def test_jitter_is_added_only_where_it_is_needed() -> None:
    twice = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    better = twice + 0.5 * np.eye(3)
    assert_close = np.testing.assert_allclose
    for matrix in (twice, better, np.full((3, 3), np.nan), -better):
        with jax.enable_x64(True):
            theirs = np.asarray(arrays.of(jnp.ones(1)).factorise(jnp.asarray(matrix)))
        assert_close(arrays.of(matrix).factorise(matrix), theirs, rtol=1e-3)
    whitened = arrays.of(better).factorise(better)
    assert_close(whitened @ better @ whitened.T, np.eye(3), atol=1e-12)
