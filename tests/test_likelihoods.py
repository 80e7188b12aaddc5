from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, softmax

from pacpfl import predictive
from pacpfl.likelihoods import Categorical, Gaussian

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(0)


def test_categorical_density_is_the_softmax_at_the_label() -> None:
    logits = 5 * RNG.normal(size=(6, 4))
    labels = np.array([0, 3, 1, 1, 2, 0])
    found = Categorical(4).log_density(jnp.asarray(logits), jnp.asarray(labels, float))
    np.testing.assert_allclose(found, log_softmax(logits, axis=1)[np.arange(6), labels])
    assert Categorical(4).outputs == 4


def test_categorical_predictions_are_means_of_probabilities() -> None:
    logits = RNG.normal(size=(3, 5, 4))
    found = Categorical(4).predict(jnp.asarray(logits)).log_probabilities
    np.testing.assert_allclose(np.exp(found), softmax(logits, axis=-1).mean(0))


def test_extreme_logits_stay_finite() -> None:
    model = Categorical(2)
    outputs = jnp.array([[1e4, -1e4], [-1e4, 1e4]])
    value, gradient = jax.value_and_grad(lambda o: model.log_density(o, jnp.zeros(2)).sum())(
        outputs
    )
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_gaussian_density_and_prediction() -> None:
    model = Gaussian(0.3)
    outputs, y = RNG.normal(size=(7, 1)), RNG.normal(size=7)
    np.testing.assert_allclose(
        model.log_density(jnp.asarray(outputs), jnp.asarray(y)),
        stats.norm.logpdf(y, outputs[:, 0], 0.3),
    )
    members = RNG.normal(size=(2, 7, 1))
    prediction = model.predict(jnp.asarray(members))
    expected = stats.norm.pdf(y, members[..., 0], 0.3).mean(0)
    np.testing.assert_allclose(np.exp(predictive.log_density(prediction, jnp.asarray(y))), expected)
