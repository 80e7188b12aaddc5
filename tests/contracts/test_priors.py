"""What every family of priors promises, whatever it is: one battery over all of them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from small_data import padded, small

from pacpfl import hyper, predictive
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.priors.base import Prior
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.mixture import MixturePrior
from pacpfl.priors.networks import MLP
from pacpfl.priors.warped import WarpedPrior
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

LINE = small(2, mean="linear", kernel="ard", noise_model="linear")
EXACT: dict[str, Prior] = {
    "deep": small(2),
    "matern": small(2, mean="zero", kernel="matern"),
    "periodic": small(2, mean="constant", kernel="periodic+linear"),
    "sums": small(
        2,
        mean="constant+linear+mlp",
        kernel="deep+ard+linear",
        output_scale="learned",
        noise_model="mlp",
    ),
    "mixture": MixturePrior(LINE, 3),
    "warped": WarpedPrior(LINE),
    "mixture of warped": MixturePrior(WarpedPrior(LINE), 2),
}
LAPLACE = Inference("laplace", networks=3, steps=2, adapt="all")
DRAWN: dict[str, Prior] = {
    "classes": BNNPrior(
        MLP((2, 3, 3)), Categorical(3), BNNSettings(draws=2), Inference(networks=3, steps=2)
    ),
    "classes by Laplace": BNNPrior(
        MLP((2, 3, 3)),
        Categorical(3),
        BNNSettings(objective="laplace", initial_std=0.3),
        Inference("laplace", networks=3, steps=4),
    ),
    "bound": BNNPrior(
        MLP((2, 3, 1)), Gaussian(0.5), BNNSettings(objective="elbo", noise="own"), LAPLACE
    ),
}
ALL = EXACT | DRAWN
exact = pytest.mark.parametrize("name", EXACT)
every = pytest.mark.parametrize("name", ALL)

COUNT, SLOTS = 8, 12
AT = np.random.default_rng(9).normal(size=(4, 2))
KEY = jax.random.key(5)
of_prior = partial(compiled, static_argnums=0)


def particle(prior: Prior) -> np.ndarray:
    around = hyper.hyper_prior(prior.blocks, 0.6, np.float64)
    return np.asarray(hyper.sample(jax.random.key(1), around, 1, 0.5)[0])


def samples(name: str) -> Data:
    """Without padding."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(COUNT, 2))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=COUNT)
    return Data(x, (y > 0) + (y > 0.5) * 1.0 if "classes" in name else y, np.ones(COUNT, bool))


@of_prior
def evidence(prior: Prior, phi: jax.Array, data: Data, temperature: float) -> Any:
    noise = prior.draw(KEY, phi.dtype)
    return jax.value_and_grad(prior.log_evidence)(phi, data, temperature, noise)


@of_prior
def answers(prior: Prior, phi: jax.Array, data: Data, temperature: float, at: jax.Array) -> Any:
    posterior = prior.posterior(phi, data, temperature, KEY)
    prediction = prior.predict(phi, posterior, at)
    return (
        prediction,
        prior.log_evidence_of(phi, posterior),
        prior.responsibilities(phi, posterior),
    )


@of_prior
def grown(prior: Prior, phi: jax.Array, parts: list[Data], temperature: float) -> Any:
    first, *more = parts
    posterior = prior.posterior(phi, first, temperature)
    for data in more:
        posterior = prior.extend(phi, posterior, data)
    return posterior, prior.log_evidence_of(phi, posterior)


@of_prior
def left_out(prior: Prior, phi: jax.Array, data: Data, temperature: float) -> Any:
    """What the family says of every sample, and what refits without it say."""

    def refit(row: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        rest = data._replace(mask=data.mask & (jnp.arange(data.mask.size) != row))
        prediction = prior.predict(phi, prior.posterior(phi, rest, temperature), data.x[row][None])
        density = predictive.log_density(prediction, data.y[row][None])[0]
        below = predictive.cdf(prediction, data.y[row][None])[0]
        return density, whole - prior.log_evidence(phi, rest, temperature), below

    whole = prior.log_evidence(phi, data, temperature)
    refits = jax.vmap(refit)(jnp.arange(data.mask.size))
    return prior.leave_one_out(phi, prior.posterior(phi, data, temperature)), refits


def close(found: Any, expected: Any, error: float = 1e-8) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=error, atol=error), found, expected
    )


@every
def test_blocks_and_starts_have_the_size_and_parts_the_weights(name: str) -> None:
    prior = ALL[name]
    assert sum(block.size for block in prior.blocks) == prior.size == particle(prior).size
    assert len({block.name for block in prior.blocks}) == len(prior.blocks)
    around = hyper.hyper_prior(prior.blocks, 1.0, np.float32)
    starts = prior.start(KEY, around, 3, 0.1)
    assert starts.shape == (3, prior.size) and starts.dtype == np.float32
    assert len({start.tobytes() for start in np.asarray(starts)}) == 3
    weights, members = prior.parts(jnp.asarray(particle(prior)))
    assert float(weights.sum()) == pytest.approx(1) and len(weights) == len(members)
    assert bool(prior.draws) == bool(jax.tree.leaves(prior.draw(KEY, np.float32)))
    assert (prior.matrices == 0) == (not prior.together) == bool(prior.draws)


@every
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_of_the_evidence_against_finite_differences(
    name: str, temperature: float, oracle: SimpleNamespace
) -> None:
    prior, data = ALL[name], padded(*samples(name)[:2], SLOTS)
    phi = particle(prior)
    _, gradient = evidence(prior, phi, data, temperature)
    expected = oracle.central_differences(
        lambda p: float(evidence(prior, p, data, temperature)[0]), phi
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


@every
def test_padding_changes_nothing(name: str) -> None:
    prior, data = ALL[name], samples(name)
    phi = particle(prior)
    more = padded(data.x, data.y, SLOTS)
    close(evidence(prior, phi, more, 0.8), evidence(prior, phi, data, 0.8), 1e-10)
    close(answers(prior, phi, more, 0.8, AT), answers(prior, phi, data, 0.8, AT), 1e-10)


@exact
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_posterior_knows_the_evidence_of_its_samples(name: str, temperature: float) -> None:
    prior, data = EXACT[name], padded(*samples(name)[:2], SLOTS)
    phi = particle(prior)
    _, of_posterior, responsibilities = answers(prior, phi, data, temperature, AT)
    np.testing.assert_allclose(of_posterior, evidence(prior, phi, data, temperature)[0], rtol=1e-9)
    assert responsibilities.shape == (prior.components,)
    assert float(responsibilities.sum()) == pytest.approx(1)


@exact
@pytest.mark.parametrize("ends", [(6, 7, 8, 12), (5, 12)])
def test_extending_equals_the_posterior_of_all_samples(name: str, ends: tuple[int, ...]) -> None:
    """One sample at a time and a block at once, some of the rows padding."""
    prior, data = EXACT[name], padded(*samples(name)[:2], SLOTS)
    starts = (0, *ends[:-1])
    parts = [
        Data(*(part[start:end] for part in data)) for start, end in zip(starts, ends, strict=True)
    ]
    phi = particle(prior)
    close(grown(prior, phi, parts, 0.6), grown(prior, phi, [data], 0.6))


@exact
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_leave_one_out_against_refits(name: str, temperature: float) -> None:
    prior, data = EXACT[name], padded(*samples(name)[:2], SLOTS)
    found, refits = left_out(prior, particle(prior), data, temperature)
    for values, expected in zip(found, refits, strict=True):
        np.testing.assert_allclose(values[data.mask], expected[data.mask], rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(values[~data.mask], 0, atol=1e-12)


@every
def test_fingerprints_are_vectors_that_tell_particles_apart(name: str) -> None:
    prior = ALL[name]
    one = particle(prior)
    found = [np.asarray(prior.fingerprint(jnp.asarray(phi), AT)) for phi in (one, one, one + 0.3)]
    assert found[0].ndim == 1 and np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-3


@exact
def test_single_precision_is_as_good_as_single_precision_can_be(name: str) -> None:
    prior, data = EXACT[name], padded(*samples(name)[:2], SLOTS)
    phi = particle(prior)
    double = evidence(prior, phi, data, 1.0), answers(prior, phi, data, 1.0, AT)
    with jax.enable_x64(False):
        small = Data(data.x.astype(np.float32), data.y.astype(np.float32), data.mask)
        at, phi = AT.astype(np.float32), phi.astype(np.float32)
        single = evidence(prior, phi, small, 1.0), answers(prior, phi, small, 1.0, at)
    for found, expected in zip(*map(jax.tree.leaves, (single, double)), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
