"""The hyper-prior, whose blocks have their own means and spreads, against scipy."""

from __future__ import annotations

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pacpfl import hyper
from pacpfl.errors import InputError
from pacpfl.hyper import Block

pytestmark = pytest.mark.usefixtures("x64")

BLOCKS = (Block("a", 2), Block("b", 1, mean=-1.5, std=0.1), Block("none", 0), Block("c", 3, 0.7))
PHI = np.random.default_rng(0).normal(size=6)
PEER = stats.multivariate_normal([0, 0, -1.5, 0.7, 0.7, 0.7], np.diag([2.0, 2, 0.1, 2, 2, 2]) ** 2)


@pytest.fixture
def prior() -> hyper.HyperPrior:
    return hyper.hyper_prior(BLOCKS, 2.0, jnp.float64)


def test_score_against_differences(prior: hyper.HyperPrior, oracle: SimpleNamespace) -> None:
    many = np.stack([PHI, 2 * PHI, PHI - 1])
    rows = [oracle.central_differences(PEER.logpdf, row) for row in many]
    np.testing.assert_allclose(hyper.score(prior, many), rows, rtol=1e-6, atol=1e-8)


def test_samples_follow_the_hyper_prior(prior: hyper.HyperPrior) -> None:
    draws = np.asarray(hyper.sample(jax.random.key(0), prior, 4000))
    assert draws.shape == (4000, 6)
    for column, mean, std in zip(draws.T, prior.means, prior.stds, strict=True):
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(draws.T) - np.eye(6)).max() < 0.06


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_a_hyper_prior_needs_a_positive_spread(std: float) -> None:
    with pytest.raises(InputError, match="must be positive"):
        hyper.hyper_prior(BLOCKS, std)
