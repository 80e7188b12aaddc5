"""pacpfl: personalised federated learning of probabilistic models, with PAC-Bayes guarantees."""

__version__ = "0.1.0"
