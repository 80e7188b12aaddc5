"""The sections of a configuration: frozen records whose fields say what is allowed, and help.

One record for each section of the TOML file; `config.py` puts them together and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pacpfl.settings import key

DATASETS = ("polynomial", "pv", "digits", "femnist", "emnist", "tables")
CLASSIFICATION = ("digits", "femnist", "emnist")


@dataclass(frozen=True)
class DataConfig:
    name: str = key("polynomial", "the data set", choices=DATASETS)
    clients: int = key(24, "existing clients, who train", least=1)
    new_clients: int = key(24, "new clients, who join after training", least=0)
    samples: int = key(10, "training samples of each client; 0: all there are (images)", least=0)
    test_samples: int = key(100, "test samples of each client (polynomial, digits)", least=2)
    noise: float = key(0.15, "standard deviation of the observation noise", least=0)
    opposite: bool = key(False, "the two kinds of clients have opposite means")
    standardize: str = key(
        "none",
        "scale features and target by training rows: none, those of each client, or of all (global)",
        choices=("none", "client", "global"),
    )


@dataclass(frozen=True)
class PVConfig:
    """The houses of `data.name = "pv"`."""

    panels: str = key(
        "EW", "EW: half of the houses face east, half west; S: all south", choices=("EW", "S")
    )
    window: str = key(
        "random",
        "training hours: the first ones of June and July, or a random choice",
        choices=("first", "random"),
    )
    skip: int = key(0, "hours of June and July before the first training hour", least=0)
    weather: str = key(
        "synthetic",
        "synthetic, pvgis (asks the service once, then its cache), or a CSV file of PVGIS",
    )
    latitude: float = key(46.52, "of synthetic and PVGIS weather", least=-66, most=66)
    longitude: float = key(6.63, "of synthetic and PVGIS weather", least=-180, most=180)


@dataclass(frozen=True)
class ImagesConfig:
    """The images of `data.name = "femnist"` (a client is a writer) and `"emnist"` (label skew)."""

    path: str = key("", "file or folder of the images; pacpfl run femnist --data PATH sets it")
    alpha: float = key(0.4, "Dirichlet parameter of the label skew (emnist)", above=0)
    test_fraction: float = key(0.2, "share of each client's images kept for testing", above=0)


@dataclass(frozen=True)
class TablesConfig:
    """Your own tables, `data.name = "tables"` (docs/own-data.md); `pacpfl init` writes this section."""

    source: str = key("", "a folder with one file for each client, or one file")
    client: str = key("", "column that names the client; empty: each file is one")
    target: str = key("", "column that is to be predicted")
    task: str = key(
        "auto", "what the target is: numbers, or classes", choices=("auto", "regression", "classes")
    )
    columns: tuple[str, ...] = key((), "columns to learn from; empty: all others")
    ignore: tuple[str, ...] = key((), "columns to leave out")
    categorical: tuple[str, ...] = key((), "columns whose numbers are names of categories")
    dates: tuple[str, ...] = key((), "columns of dates, encoded as sines and cosines")
    cycles: tuple[str, ...] = key(
        ("hour", "weekday", "month"), "of these cycles: hour, weekday, day (of the year), month"
    )
    missing: str = key(
        "error",
        "missing cells: an error, drop the row, or impute the training median",
        choices=("error", "drop", "impute"),
    )
    unseen: str = key(
        "zeros",
        "a category no training row has: all zeros, or an error",
        choices=("zeros", "error"),
    )
    split: str = key(
        "rows",
        "which rows only measure: at random, the last ones in time, or as a column says",
        choices=("rows", "time", "column"),
    )
    split_by: str = key("", "column of the times, or of the words train, later, test")
    held_out: float = key(0.2, "share of each client's rows that only measure", above=0, most=0.9)
    for_later: float = key(0.0, "share that is kept until personalisation", least=0, most=0.9)
    most: int = key(0, "training rows of a client at most; 0: all", least=0)
    small: str = key(
        "error", "clients with too few rows: an error, or leave out", choices=("error", "leave")
    )
    new: tuple[str, ...] = key((), "clients that join after the training, by name")
    new_share: float = key(
        0.0, "share of the clients, drawn, that join after it", least=0, most=0.9
    )
    new_by: str = key("", "column that calls its client new or existing")


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
class TrainConfig:
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
        1.0, "how much of an independent sample each one counts; beta_i is this times m_i", above=0
    )
    clients_per_round: int | None = key(None, "c: clients per round; unset: all", least=1)
    batch: int | None = key(None, "b: samples per client and round; unset: all", least=1)
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
        "cosine", "of the step size over the rounds", choices=("constant", "cosine", "exponential")
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


@dataclass(frozen=True)
class LocalConfig:
    """How a client trains a network at home: fedavg, mtl, pfedbayes; maml's meta-steps."""

    steps: int = key(5, "steps in a round", least=1)
    learning_rate: float = key(0.05, "their size", above=0)
    optimizer: str = key("sgd", "their optimiser", choices=("sgd", "momentum", "adam"))
    batch: int | None = key(None, "samples per step; unset: all", least=1)


@dataclass(frozen=True)
class MTLConfig:
    coupling: float = key(0.1, "weight of the pull towards the mean of all clients", least=0)
    personal_steps: int = key(500, "steps of a new client, which starts from the mean", least=0)


@dataclass(frozen=True)
class MAMLConfig:
    inner_steps: int = key(1, "steps of adaptation while learning", least=1)
    inner_learning_rate: float = key(0.05, "their size", above=0)
    personal_steps: int = key(1, "steps of adaptation at the end", least=0)
    first_order: bool = key(False, "leave out the second derivatives")


@dataclass(frozen=True)
class PFedBayesConfig:
    """Beside [local], which gives the steps of a round and their batches."""

    optimizer: str = key("adam", "of the clients", choices=("sgd", "momentum", "adam"))
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
class PFedGPConfig:
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
class AloneConfig:
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


@dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy of PAC-PFL's training (docs/privacy.md); the other methods have none."""

    mode: str = key(
        "none",
        "none, gaussian, laplace (pure epsilon), or paper (as printed: NO GUARANTEE)",
        choices=("none", "paper", "laplace", "gaussian"),
    )
    epsilon: float | None = key(None, "budget of the whole training", above=0)
    delta: float = key(1e-5, "with it (gaussian)", above=0, most=0.5)
    clip: float = key(1.0, "gamma: norm to which updates are clipped", above=0)
    clip_quantile: float | None = key(
        None, "let the clip adapt, so that this share of updates is not clipped", above=0, most=0.99
    )
    clip_rate: float = key(0.2, "how fast it adapts", above=0)
    per_particle: bool = key(False, "clip each particle's part to an equal share")
    sampling: str = key(
        "poisson",
        "how clients_per_round are drawn: poisson (that many expected), fixed (exactly), all",
        choices=("poisson", "fixed", "all"),
    )
    unit: str = key(
        "client",
        "what is protected: a client, or one sample of it",
        choices=("client", "sample"),
    )
    average: float = key(
        0.0, "share of the rounds, the last ones, whose particles are averaged", least=0, most=1
    )
    strict: bool = key(False, "leave everything out of the run folder that is not accounted for")
    noise_seed: int | None = key(
        None, "repeatable noise, for tests; the run is NOT PRIVATE then", least=0
    )


@dataclass(frozen=True)
class PersonalConfig:
    weights: str = key(
        "uniform",
        "weights of the particles at a client: uniform, evidence (paper), stacking",
        choices=("uniform", "evidence", "stacking"),
    )


@dataclass(frozen=True)
class RunConfig:
    methods: tuple[str, ...] = key(("pacpfl", "vanilla", "pooled"), "what to run, in this order")
    precision: str = key("float32", "of all arithmetic", choices=("float32", "float64"))
    checkpoint_rounds: int = key(500, "save at least every so many rounds", least=1)
    checkpoint_minutes: float = key(1.0, "and at least every so many minutes", above=0)


@dataclass(frozen=True)
class Config:
    seed: int = key(
        0, "of everything random: data, particles, choice of clients", least=0, most=2**32 - 1
    )
    data: DataConfig = DataConfig()
    pv: PVConfig = PVConfig()
    images: ImagesConfig = ImagesConfig()
    tables: TablesConfig = TablesConfig()
    prior: PriorConfig = PriorConfig()
    network: NetworkConfig = NetworkConfig()
    train: TrainConfig = TrainConfig()
    local: LocalConfig = LocalConfig()
    mtl: MTLConfig = MTLConfig()
    maml: MAMLConfig = MAMLConfig()
    bnn: BNNConfig = BNNConfig()
    pfedbayes: PFedBayesConfig = PFedBayesConfig()
    pfedgp: PFedGPConfig = PFedGPConfig()
    alone: AloneConfig = AloneConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    personal: PersonalConfig = PersonalConfig()
    run: RunConfig = RunConfig()
