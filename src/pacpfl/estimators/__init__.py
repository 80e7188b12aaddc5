"""PAC-PFL with scikit-learn's conventions (docs/python-api.md)."""

from pacpfl.estimators.classifier import PACPFLClassifier
from pacpfl.estimators.regressor import PACPFLRegressor

__all__ = ["PACPFLClassifier", "PACPFLRegressor"]
