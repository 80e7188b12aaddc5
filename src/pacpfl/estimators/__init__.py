"""PAC-PFL with scikit-learn's conventions (docs/python-api.md)."""

from pacpfl.estimators.classifier import PACPFLClassifier
from pacpfl.estimators.regressor import PACPFLRegressor
from pacpfl.estimators.splits import NewClientSplit, new_client_scores

__all__ = ["NewClientSplit", "PACPFLClassifier", "PACPFLRegressor", "new_client_scores"]
