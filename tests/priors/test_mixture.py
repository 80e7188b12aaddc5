"""Mixtures of priors against sums of densities from scipy, and refits without each sample."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, softmax
from small_data import padded

from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import MixturePrior

pytestmark = pytest.mark.usefixtures("x64")

Everything = Callable[..., dict[str, Any]]
BASE = GPPrior(1, GPSettings(mean="linear", kernel="ard"))
PRIOR = MixturePrior(BASE, 3)
LOGITS = np.array([0.4, -0.3, 1.1])
MEMBERS = np.array(
    [[1.0, 0.5, -0.5, -0.4], [-1.0, 0.0, 0.3, -0.8], [0.2, -0.5, 0.0, 0.1]]
)  # slope, intercept, ln length, raw noise
PHI = np.concatenate([LOGITS, MEMBERS.ravel()])
SLOTS = 8
AT = np.linspace(-2, 2, SLOTS)[:, None]


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 1))
    return x, 0.3 * x[:, 0] + 0.5 * rng.normal(size=count)


def log_joint(oracle: SimpleNamespace, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ln pi_j + ln N(y | m_j, C_j)"""
    return np.log(softmax(LOGITS)) + [
        stats.multivariate_normal(
            oracle.mean(BASE, phi, x),
            oracle.kernel(BASE, phi, x, x) + np.diag(oracle.noise(BASE, phi, x) ** 2),
        ).logpdf(y)
        for phi in MEMBERS
    ]


def test_evidence_is_the_weighted_sum(everything: Everything, oracle: SimpleNamespace) -> None:
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y, SLOTS), 0.7, AT)
    each = [oracle.log_evidence(BASE, phi, x, y, 0.7) for phi in MEMBERS]
    np.testing.assert_allclose(found["evidence"], logsumexp(each, b=softmax(LOGITS)), rtol=1e-10)


def test_predictions_are_the_exact_mixture(everything: Everything, oracle: SimpleNamespace) -> None:
    """Weights by Bayes' rule, densities against p(y, y*) / p(y), both sums of multivariate ones."""
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y, SLOTS), at=AT)
    shares = softmax(log_joint(oracle, x, y))
    np.testing.assert_allclose(found["responsibilities"], shares, rtol=1e-9)
    np.testing.assert_allclose(found["weights"], shares, rtol=1e-9)
    for point in (0, 3, 7):
        for value in (-1.5, 0.0, 0.8):
            each = stats.norm(found["means"][:, point], found["stds"][:, point]).pdf(value)
            at = AT[point : point + 1]
            both = log_joint(oracle, np.concatenate([x, at]), np.append(y, value))
            expected = logsumexp(both) - logsumexp(log_joint(oracle, x, y))
            found_log = np.log(found["weights"] @ each)
            np.testing.assert_allclose(found_log, expected, rtol=1e-9, atol=1e-9)


def test_fingerprint_weighs_members_by_use(oracle: SimpleNamespace) -> None:
    """Squared distances of fingerprints are then averages over members."""
    x = AT[:4]
    found = np.asarray(jax.jit(PRIOR.fingerprint)(PHI, x)).reshape(3, -1)
    for row, weight, member in zip(found, softmax(LOGITS), MEMBERS, strict=True):
        expected = np.sqrt(weight) * np.asarray(jax.jit(BASE.fingerprint)(member, x))
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_blocks_repeat_those_of_the_base() -> None:
    logits, *members = PRIOR.blocks
    assert (logits.name, logits.size, PRIOR.components) == ("logits", 3, 3)
    assert [block[1:] for block in members] == 3 * [block[1:] for block in BASE.blocks]
