"""scikit-learn's own checks of what an estimator is: none is excused.

They ask about conventions, not about learning: the tested instances take no rounds of training, and
what a client learns from its own rows alone is enough for the accuracy that is asked for.
"""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from pacpfl import PACPFLClassifier, PACPFLRegressor

REGRESSOR = PACPFLRegressor(
    rounds=0, particles=1, mean="constant", kernel="ard", precision="float64"
)
CLASSIFIER = PACPFLClassifier(
    rounds=0,
    particles=1,
    networks=2,
    widths=(16,),
    initial_std=1.0,
    precision="float64",
    settings={"posterior.steps": 200, "posterior.learning_rate": 0.1},
)


@parametrize_with_checks([REGRESSOR, CLASSIFIER])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)
