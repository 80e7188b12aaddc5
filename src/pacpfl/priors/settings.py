"""The settings of Bayesian networks as priors, apart from their mathematics, which needs JAX."""

from __future__ import annotations

from dataclasses import dataclass

from pacpfl.priors.networks import Network, body_size
from pacpfl.settings import Settings, key


@dataclass(frozen=True)
class BNNSettings(Settings):
    """A Bayesian network as a prior: what a particle of classification is."""

    draws: int = key(1, "L: networks drawn for one estimate of the evidence", least=1)
    objective: str = key(
        "evidence",
        "evidence from draws (paper), its lower bound elbo, or by laplace, with few weights that adapt",
        choices=("evidence", "elbo", "laplace"),
    )
    noise: str = key(
        "shared",
        "whether the clients of a round draw the same networks, or each its own",
        choices=("shared", "own"),
    )
    std_per: str = key(
        "weight",
        "what has a standard deviation of its own: every weight, or layer",
        choices=("weight", "layer"),
    )
    initial_std: float = key(0.03, "standard deviation of the weights at the start", above=0)
    std_spread: float = key(1.0, "std of the hyper-prior of its logarithm", above=0)


@dataclass(frozen=True)
class Inference(Settings):
    """How a client infers its own networks from a Bayesian one.

    The step size falls like a cosine; `temperature` multiplies that of the evidence; `laplace`, whose
    steps are Newton's, takes all samples in each. Training does not depend on any of it: a finished run
    that is started again with other values here is only personalised and measured again.
    """

    inference: str = key(
        "svgd", "svgd (paper), variational or laplace", choices=("svgd", "variational", "laplace")
    )
    networks: int = key(5, "networks per particle in a client's mixture", least=1)
    adapt: str = key("last", "which layers adapt to the client", choices=("last", "all"))
    steps: int = key(20, "steps of the inference; 0: networks drawn from the prior", least=0)
    learning_rate: float = key(0.03, "their size, in units of the prior's std", above=0)
    temperature: float = key(1.0, "weight of the client's samples against the prior", least=0)
    optimizer: str = key("adam", "optimiser of the inference", choices=("adam", "sgd"))
    svgd_kernel: str = key("rbf", "kernel between networks (svgd)", choices=("rbf", "imq"))
    batch: int | None = key(None, "samples per step of the inference; unset: all", least=1)

    def fixed(self, network: Network) -> int:
        """Return how many of the weights do not adapt: the first ones."""
        return body_size(network) if self.adapt == "last" else 0
