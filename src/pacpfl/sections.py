"""The sections of a configuration that say what priors and networks are."""

from __future__ import annotations

from dataclasses import dataclass

from pacpfl.settings import key


@dataclass(frozen=True)
class PriorConfig:
    mean: str = key(
        "mlp",
        "mean function: zero, constant, linear, mlp, or a sum such as linear+mlp",
        parts=("zero", "constant", "linear", "mlp"),
    )
    mean_widths: tuple[int, ...] = key(
        (32, 32), "neurons of the mean network's hidden layers", least=1
    )
    kernel: str = key(
        "deep",
        "kernel: deep, ard, linear, or a sum such as deep+linear",
        parts=("deep", "ard", "linear"),
    )
    kernel_widths: tuple[int, ...] = key(
        (32, 32), "neurons of the kernel network's hidden layers", least=1
    )
    kernel_outputs: int = key(2, "outputs of the kernel network", least=1)
    output_scale: str = key("fixed", "fixed at 1 (paper) or learned", choices=("fixed", "learned"))
    members: int = key(
        1, "K: base priors mixed into one; more than 1 for clients of several kinds", least=1
    )
    noise: float = key(0.4, "centre of the hyper-prior of the noise std", above=0)
    noise_spread: float = key(0.1, "std of that hyper-prior", above=0)
    noise_model: str = key(
        "constant",
        "how the noise depends on the features: constant, or its logarithm linear or by an mlp",
        choices=("constant", "linear", "mlp"),
    )
    noise_widths: tuple[int, ...] = key(
        (8,), "neurons of the noise network's hidden layers", least=1
    )
    warp: str = key(
        "none",
        "what is Gaussian: the target (none), or a learned warp of it, for skewed noise",
        choices=("none", "sinh-arcsinh"),
    )


@dataclass(frozen=True)
class NetworkConfig:
    """The network of fedavg, mtl and maml, and of Bayesian networks."""

    kind: str = key("mlp", "mlp, or cnn (images)", choices=("mlp", "cnn"))
    widths: tuple[int, ...] = key((32, 32), "neurons of its hidden layers (mlp)", least=1)
    activation: str = key("tanh", "of its hidden layers (mlp)", choices=("tanh", "relu"))
    filters: tuple[int, ...] = key((32, 64), "channels of its two convolutions (cnn)", least=1)
    hidden: int = key(512, "neurons of its dense layer (cnn)", least=1)


@dataclass(frozen=True)
class BNNConfig:
    """A Bayesian network as a prior: what a particle of classification is (priors/bnn.py)."""

    draws: int = key(1, "L: networks drawn for one estimate of the evidence", least=1)
    objective: str = key(
        "evidence",
        "what is estimated: the evidence (paper) or its lower bound elbo",
        choices=("evidence", "elbo"),
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
class PosteriorConfig:
    """How a client infers its own networks from a Bayesian one (priors/inference.py).

    Training does not depend on it: a finished run that is started again with other values here is
    only personalised and measured again.
    """

    inference: str = key(
        "svgd",
        "svgd (paper), variational or laplace",
        choices=("svgd", "variational", "laplace"),
    )
    networks: int = key(5, "networks per particle in a client's mixture", least=1)
    adapt: str = key("last", "which layers adapt to the client", choices=("last", "all"))
    steps: int = key(20, "steps of the inference; 0: networks drawn from the prior", least=0)
    learning_rate: float = key(0.03, "their size, in units of the prior's std", above=0)
    temperature: float = key(1.0, "weight of the client's samples against the prior", least=0)
    optimizer: str = key("adam", "optimiser of the inference", choices=("adam", "sgd"))
    svgd_kernel: str = key("rbf", "kernel between networks (svgd)", choices=("rbf", "imq"))
    batch: int | None = key(None, "samples per step of the inference; unset: all", least=1)
