"""The settings of the methods, apart from their mathematics: reading a configuration needs no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pacpfl.settings import Settings, key

DEFAULT_TAU = 1.0
LOCAL_OPTIMIZERS = ("sgd", "momentum", "adam")


@dataclass(frozen=True)
class TrainSettings(Settings):
    """How PAC-PFL trains; the optimiser is that of every method whose server has one."""

    rounds: int = key(1000, "T: rounds of training", least=1)
    particles: int = key(4, "k: particles of the hyper-posterior", least=1)
    hyper_std: float = key(1.0, "sigma_P: std of the hyper-prior", above=0)
    initial_spread: float = key(
        1.0,
        "start of the particles: 1 draws from the hyper-prior, less is closer to its mean",
        above=0,
    )
    tau: float | None = key(
        None, "weight of the clients' evidence against the hyper-prior", above=0
    )
    lambda_: float | None = key(None, "instead of tau: lambda of the server bound", above=0)
    upsilon: float = key(1e-4, "small constant of the server bound", above=0)
    temperature: float = key(
        1.0,
        "how much of an independent sample each one counts; beta_i is this times m_i",
        above=0,
        symbol="beta / m_i",
    )
    clients_per_round: int | None = key(None, "c: clients per round; unset: all", least=1)
    batch: int | None = key(None, "b: samples per client and round; unset: all", least=1)
    batch_rule: str = key(
        "evidence",
        "a batch's part of ln Z: evidence is m/b times its own; printed raises its temperature to m/b",
        choices=("evidence", "printed"),
    )
    aggregation: str = key(
        "sum",
        "sum: estimate of the sum over all clients; mean: as printed",
        choices=("sum", "mean"),
    )
    svgd_kernel: str = key(
        "rbf",
        "kernel between particles: rbf (paper), imq, function",
        choices=("rbf", "imq", "function"),
    )
    optimizer: str = key(
        "adam", "optimiser of the particles", choices=("adam", "sgd", "adamw", "rmsprop", "lion")
    )
    learning_rate: float = key(1e-2, "eta: its step size", above=0)
    schedule: str = key(
        "cosine",
        "of the step size over the rounds; cooldown is constant and falls to 0 in the last fifth",
        choices=("constant", "cosine", "exponential", "cooldown"),
    )
    blend: tuple[str, ...] = key(
        (),
        "groups of particles of smaller families, each with its numbers: particles=4 kernel=linear",
    )

    def problems(self) -> Iterator[str]:
        if self.tau is not None and self.lambda_ is not None:
            yield "tau and lambda say the same thing; give one of them."


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains a network at home: fedavg, mtl, pfedbayes."""

    steps: int = key(5, "steps in a round", least=1)
    learning_rate: float = key(0.05, "their size", above=0)
    optimizer: str = key("sgd", "their optimiser", choices=LOCAL_OPTIMIZERS)
    batch: int | None = key(None, "samples per step; unset: all", least=1)


@dataclass(frozen=True)
class MTLSettings(Settings):
    """Beside [local], which says how the clients train."""

    coupling: float = key(0.1, "weight of the pull towards the mean of all clients", least=0)
    personal_steps: int = key(500, "steps of a new client, which starts from the mean", least=0)


@dataclass(frozen=True)
class MAMLSettings(Settings):
    """Beside [train], whose optimiser is the server's, and whose batch the clients'."""

    inner_steps: int = key(1, "steps of adaptation while learning", least=1)
    inner_learning_rate: float = key(0.05, "their size", above=0)
    personal_steps: int = key(1, "steps of adaptation at the end", least=0)
    first_order: bool = key(False, "leave out the second derivatives")


@dataclass(frozen=True)
class PFedBayesSettings(Settings):
    """Beside [local], which gives the steps of a round and their batches."""

    optimizer: str = key("adam", "of the clients", choices=LOCAL_OPTIMIZERS)
    learning_rate: float = key(1e-3, "size of the steps for the personal distribution", above=0)
    shared_learning_rate: float = key(1e-3, "and for the client's copy of the shared one", above=0)
    zeta: float = key(1.0, "weight of the divergence from the shared distribution", above=0)
    mixing: float = key(
        1.0, "beta: how much of the clients' mean the server takes", above=0, most=1
    )
    draws: int = key(1, "K: networks drawn in one step", least=1)
    initial_std: float = key(0.02, "standard deviation of the weights before training", above=0)
    personal_steps: int = key(50, "steps of every client at the end", least=0)
    networks: int = key(32, "networks in a client's predictive mixture", least=1)


@dataclass(frozen=True)
class PFedGPSettings(Settings):
    """pFedGP for classes: trees of binary Gaussian processes on a shared network's features."""

    features: int = key(64, "outputs of the shared network", least=1)
    objective: str = key(
        "predictive", "what a client maximises", choices=("predictive", "marginal")
    )
    tree: str = key(
        "similarity", "how classes are paired in the tree", choices=("similarity", "number")
    )
    iterations: int = key(10, "mean-field updates in training", least=1)
    personal_iterations: int = key(50, "mean-field updates at the end", least=1)
    support: int = key(0, "samples of a client that a round sees; 0: all", least=0)
    personal_support: int = key(0, "samples that its final model keeps; 0: all", least=0)
    kernel_variance: float = key(8.0, "variance of the kernel at the start", above=0)
    kernel_length: float = key(1.0, "its length at the start", above=0)


@dataclass(frozen=True)
class AloneSettings(Settings):
    """Models that are fitted at once, without rounds: vanilla, pooled, ard."""

    steps: int = key(500, "steps of the fit", least=1)
    learning_rate: float = key(0.03, "their size", above=0)
    restarts: int = key(4, "starting points; pooled models use one", least=1)
    hyper_std: float = key(0.5, "spread of the starting points", above=0)
    inducing: int = key(128, "inducing points of a pooled model", least=1)
    inference: str = key(
        "svgd", "of a Bayesian network: svgd or variational", choices=("svgd", "variational")
    )
    networks: int = key(5, "networks in its mixture", least=1)
    initial_std: float = key(0.1, "standard deviation of its prior, which knows no data", above=0)
    temperature: float = key(1000.0, "weight of the samples against that prior", above=0)
    batch: int | None = key(None, "samples per step of its fit; unset: all", least=1)
