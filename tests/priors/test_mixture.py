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

from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import MixturePrior, mixture
from pacpfl.types import Data

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


def padded(x: np.ndarray, y: np.ndarray) -> Data:
    empty = SLOTS - len(y)
    return Data(
        np.concatenate([x, np.full((empty, 1), 9.0)]),
        np.concatenate([y, np.full(empty, 9.0)]),
        np.arange(SLOTS) < len(y),
    )


def log_joint(oracle: SimpleNamespace, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ln pi_j + ln N(y | m_j, C_j)"""
    return np.log(softmax(LOGITS)) + [
        stats.multivariate_normal(
            oracle.mean(BASE, phi, x),
            oracle.kernel(BASE, phi, x, x) + np.diag(oracle.noise(BASE, phi, x) ** 2),
        ).logpdf(y)
        for phi in MEMBERS
    ]


def log_predictive(
    oracle: SimpleNamespace, x: np.ndarray, y: np.ndarray, at: np.ndarray, value: float
) -> float:
    """ln p(value at `at` | x, y): the ratio of two joint densities, nothing conditioned by hand."""
    both = logsumexp(log_joint(oracle, np.concatenate([x, at]), np.append(y, value)))
    return float(both - logsumexp(log_joint(oracle, x, y)))


def test_evidence_is_the_weighted_sum(everything: Everything, oracle: SimpleNamespace) -> None:
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y), at=AT)
    expected = np.log(np.sum(np.exp(log_joint(oracle, x, y))))
    np.testing.assert_allclose(found["evidence"], expected, rtol=1e-10)
    np.testing.assert_allclose(found["evidence_of"], expected, rtol=1e-10)


def test_gradient_against_differences_at_another_temperature(
    everything: Everything, oracle: SimpleNamespace
) -> None:
    x, y = samples(6)

    def peer(phi: np.ndarray) -> float:
        each = [oracle.log_evidence(BASE, p, x, y, 0.7) for p in phi[3:].reshape(3, 4)]
        return float(logsumexp(each, b=softmax(phi[:3])))

    found = everything(PRIOR, PHI, padded(x, y), 0.7, AT)
    np.testing.assert_allclose(found["evidence"], peer(PHI), rtol=1e-10)
    expected = oracle.central_differences(peer, PHI)
    np.testing.assert_allclose(found["gradient"], expected, rtol=1e-7, atol=1e-9)


def test_responsibilities_by_bayes(everything: Everything, oracle: SimpleNamespace) -> None:
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y), at=AT)
    joint = np.exp(log_joint(oracle, x, y))
    np.testing.assert_allclose(found["responsibilities"], joint / joint.sum(), rtol=1e-9)
    np.testing.assert_allclose(found["weights"], joint / joint.sum(), rtol=1e-9)


def test_predictions_are_the_exact_mixture(everything: Everything, oracle: SimpleNamespace) -> None:
    """Against p(y, y*) / p(y), both sums of multivariate densities."""
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y), at=AT)
    for point in (0, 3, 7):
        for value in (-1.5, 0.0, 0.8):
            each = stats.norm(found["means"][:, point], found["stds"][:, point]).pdf(value)
            expected = log_predictive(oracle, x, y, AT[point : point + 1], value)
            np.testing.assert_allclose(
                np.log(found["weights"] @ each), expected, rtol=1e-9, atol=1e-9
            )


def test_leave_one_out_against_refits(everything: Everything, oracle: SimpleNamespace) -> None:
    """Without a sample the members' weights change too."""
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y), at=AT)["held_out"]
    for j in range(6):
        others = np.arange(6) != j
        expected = log_predictive(oracle, x[others], y[others], x[j : j + 1], y[j])
        np.testing.assert_allclose(found[j], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[6:], 0, atol=1e-12)


def test_leave_one_out_against_refits_at_another_temperature(
    everything: Everything, oracle: SimpleNamespace
) -> None:
    """The members' weights are those of the tempered evidence, the density is the sample's own."""
    x, y = samples(6)
    found = everything(PRIOR, PHI, padded(x, y), 0.6, AT)

    def log_joint_of(rows: np.ndarray) -> np.ndarray:
        return np.log(softmax(LOGITS)) + [
            oracle.log_evidence(BASE, phi, x[rows], y[rows], 0.6) for phi in MEMBERS
        ]

    whole = logsumexp(log_joint_of(np.arange(6)))
    for j in range(6):
        rest = np.arange(6) != j
        joint = log_joint_of(rest)
        each = [
            stats.norm(*(part[0] for part in moments)).pdf(y[j])
            for phi in MEMBERS
            for moments in [oracle.predict(BASE, phi, x[rest], y[rest], x[j : j + 1], 0.6)]
        ]
        np.testing.assert_allclose(
            found["held_out"][j], np.log(softmax(joint) @ each), rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            found["held_out_evidence"][j], whole - logsumexp(joint), rtol=1e-8, atol=1e-9
        )


def test_one_member_is_the_base(everything: Everything) -> None:
    x, y = samples(6)
    single = everything(MixturePrior(BASE, 1), np.append(0.7, MEMBERS[1]), padded(x, y), at=AT)
    base = everything(BASE, MEMBERS[1], padded(x, y), at=AT)
    assert single["gradient"][0] == 0
    single["gradient"] = single["gradient"][1:]
    for name, expected in base.items():
        np.testing.assert_allclose(single[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
    assert mixture(BASE, 1) is BASE
    assert mixture(BASE, 3) == PRIOR


@pytest.mark.parametrize("lengths", [[4, 1, 1], [4, 4]])
def test_extending_equals_refitting(lengths: list[int], oracle: SimpleNamespace) -> None:
    """The last block carries padding where eight rows hold six samples."""
    x, y = samples(6)
    data = Data(*(part[: sum(lengths)] for part in padded(x, y)))
    ends = np.cumsum(lengths)
    first, *more = (
        Data(*(part[end - length : end] for part in data))
        for end, length in zip(ends, lengths, strict=True)
    )

    @jax.jit
    def both_ways(phi: jax.Array) -> tuple[Any, Any]:
        posterior = PRIOR.posterior(phi, first)
        for block in more:
            posterior = PRIOR.extend(phi, posterior, block)
        return posterior, PRIOR.posterior(phi, data)

    grown, anew = both_ways(PHI)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), grown, anew)
    np.testing.assert_allclose(grown.log_evidence, log_joint(oracle, x, y), rtol=1e-8)


def test_fingerprint_weighs_members_by_use(oracle: SimpleNamespace) -> None:
    """Squared distances of fingerprints are then averages over members."""
    x = AT[:4]
    found = np.asarray(jax.jit(PRIOR.fingerprint)(PHI, x)).reshape(3, -1)
    for row, weight, member in zip(found, softmax(LOGITS), MEMBERS, strict=True):
        expected = np.sqrt(weight) * np.asarray(jax.jit(BASE.fingerprint)(member, x))
        np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_blocks_repeat_those_of_the_base() -> None:
    blocks = PRIOR.blocks
    assert blocks[0].name == "logits" and blocks[0].size == 3
    assert len({block.name for block in blocks}) == len(blocks) == 1 + 3 * len(BASE.blocks)
    assert PRIOR.size == len(PHI) == sum(block.size for block in blocks)
    assert PRIOR.components == 3
    for j in range(3):
        own = blocks[1 + j * len(BASE.blocks) : 1 + (j + 1) * len(BASE.blocks)]
        assert [block[1:] for block in own] == [block[1:] for block in BASE.blocks]
