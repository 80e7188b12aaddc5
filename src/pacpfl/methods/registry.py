"""Every method by its name: what it is called, made of, made for, and what it depends on.

From a configuration and a form to priors, networks and methods, for both tasks: where the target is a
number the likelihood is Gaussian; where it is one of several classes it is categorical, and what a
particle of PAC-PFL stands for is a Bayesian network.

A method of somebody else's package stands here, too, if its distribution names an `Entry` in the group
of entry points `pacpfl.methods`:

    [project.entry-points."pacpfl.methods"]
    mean = "their_package:ENTRY"

A method's module is imported when the method is built: reading a configuration, and asking a client's
Gaussian processes, need no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pacpfl.bounds.conditions import lambda_condition
from pacpfl.bounds.server import lambda_from_tau, tau_from_lambda
from pacpfl.errors import InputError
from pacpfl.methods.settings import (
    DEFAULT_TAU,
    AloneSettings,
    LocalTraining,
    MAMLSettings,
    MTLSettings,
    PFedBayesSettings,
    PFedGPSettings,
    TrainSettings,
)
from pacpfl.personal import PersonalSettings
from pacpfl.priors.base import Exact, Prior
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.networks import CNN, MLP, ROWS, NetworkSettings
from pacpfl.priors.settings import BNNSettings, Inference
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.settings import nearest
from pacpfl.types import Federation, Form

if TYPE_CHECKING:
    from pacpfl.methods.base import Method
    from pacpfl.methods.network import MAML, NetworkModel
    from pacpfl.methods.pacpfl import PACPFL
    from pacpfl.methods.transforms import Private
    from pacpfl.priors.bnn import BNNPrior

GROUP = "pacpfl.methods"
Task = Literal["numbers", "classes"]
BOTH: frozenset[Task] = frozenset({"numbers", "classes"})
NUMBERS: frozenset[Task] = frozenset({"numbers"})
SMALLEST = 16  # pixels; a side below this has no room for two unpadded convolutions of 5 x 5


@dataclass(frozen=True)
class Sections:
    """What of a configuration methods are built from."""

    prior: GPSettings = GPSettings()
    network: NetworkSettings = NetworkSettings()
    train: TrainSettings = TrainSettings()
    local: LocalTraining = LocalTraining()
    mtl: MTLSettings = MTLSettings()
    maml: MAMLSettings = MAMLSettings()
    bnn: BNNSettings = BNNSettings()
    pfedbayes: PFedBayesSettings = PFedBayesSettings()
    pfedgp: PFedGPSettings = PFedGPSettings()
    alone: AloneSettings = AloneSettings()
    posterior: Inference = Inference()
    privacy: PrivacySettings = PrivacySettings()
    personal: PersonalSettings = PersonalSettings()


def build_prior(config: Sections, form: Form) -> Prior:
    """Return the family of priors that a configuration means: a Bayesian network for classes."""
    if form.classes is not None:
        if config.prior.members > 1:
            raise InputError(
                "Mixtures of Bayesian networks are not offered; set prior.members = 1."
            )
        from pacpfl.priors.bnn import BNNPrior

        model = build_model(config, form)
        return BNNPrior(model.network, model.likelihood, config.bnn, config.posterior)
    prior: Exact = GPPrior(len(form.features), config.prior)
    if config.prior.warp != "none":
        from pacpfl.priors.warped import WarpedPrior

        prior = WarpedPrior(prior)
    if config.prior.members > 1:
        from pacpfl.priors.mixture import MixturePrior

        prior = MixturePrior(prior, config.prior.members)
    return prior


def build_network(config: Sections, form: Form, outputs: int) -> MLP | CNN:
    network, shape = config.network, form.shape
    if network.kind == "mlp":
        return MLP((len(form.features), *network.widths, outputs), network.activation)
    if shape is None or len(shape) != 2:
        raise InputError('network.kind = "cnn" needs images, which the data are not; choose "mlp".')
    first, second = network.filters
    padding: Literal["valid", "same"] = "valid" if min(shape) >= SMALLEST else "same"
    return CNN(*shape, outputs, (first, second), network.hidden, padding)


def build_model(config: Sections, form: Form) -> NetworkModel:
    from pacpfl.likelihoods import Categorical, Gaussian
    from pacpfl.methods.network import NetworkModel

    likelihood = Gaussian(1.0) if form.classes is None else Categorical(form.classes)
    return NetworkModel(build_network(config, form, likelihood.outputs), likelihood)


def vague_prior(config: Sections, form: Form) -> BNNPrior:
    """A prior that knows no data: wide, and every layer adapts.

    Half a million weights against a few samples: at temperature 1 the prior drowns the data and nothing
    is learned, so the samples get the weight that a baseline worth beating needs.
    """
    from pacpfl.priors.bnn import BNNPrior

    alone, model = config.alone, build_model(config, form)
    inference = Inference(
        alone.inference, alone.networks, "all", alone.steps, alone.learning_rate, alone.temperature,
        batch=alone.batch,
    )  # fmt: skip
    settings = BNNSettings(initial_std=alone.initial_std)
    return BNNPrior(model.network, model.likelihood, settings, inference)


def temperatures(config: Sections, form: Form) -> dict[str, float]:
    """Return tau and lambda, whichever was given, and the condition of the server-level theorem.

    The theorem has one beta; that of the mean number of samples stands for it. Where nobody tells
    the numbers of samples there is tau alone.
    """
    train, n, n_2 = config.train, form.clients, form.later
    if form.sizes is None:
        if train.lambda_ is not None:
            raise InputError(
                "lambda needs the number of samples of every client, and not all sites tell it; set "
                "tau, or share_sizes = true at every site."
            )
        return {"tau": train.tau or DEFAULT_TAU}
    beta = train.temperature * float(np.mean(form.sizes))
    lambda_, tau = train.lambda_, train.tau or DEFAULT_TAU
    if lambda_ is not None:
        tau = tau_from_lambda(lambda_, [beta] * n, n_2, train.upsilon)
    else:  # no finite lambda leads to tau = 1, and none at all beyond it
        lambda_ = lambda_from_tau(min(tau, 1.0), [beta] * n, n_2, train.upsilon)
    return {
        "tau": tau,
        "lambda": lambda_,
        "beta": beta,
        "n_2": n_2,
        "lambda_condition": lambda_condition(lambda_, n_2, train.upsilon).status == "holds",
    }


# Bytes that clients who are personalised together may take.
ROOM = {"cpu": 2**30}
ROOM_ACCELERATOR = 2**34
GRADIENT = 3  # forward pass, its copy for the backward pass, and the backward pass
COPIES = 4  # of the parameters: themselves, gradient, two moments of Adam


class Memory(NamedTuple):
    """What one client's work holds at once: from it follows how many clients go together."""

    matrices: int = 0  # kernel matrices
    networks: int = 1  # side by side, when the client's own model is made
    gradients: bool = True  # of those networks
    rows: int | None = None  # that pass through them at once; None: all


@dataclass(frozen=True)
class Entry:
    """All that the package knows of a method beside its functions."""

    name: str  # in configurations, folders and reports
    title: str  # what people call it
    build: Callable[[Sections, Form], Method]
    tasks: frozenset[Task] = BOTH  # what the target may be
    learns: Literal["in rounds", "alone", "from pooled data"] = "in rounds"
    # What of the clients' data leaves them: nothing, what a privacy budget accounts for, or more than
    # that. Who does not say releases more: `privacy.strict` refuses it.
    releases: Literal["nothing", "accounted", "more"] = "more"
    settings: tuple[str, ...] = ()  # sections that its results depend on, beside those of the data
    class_title: str = ""  # if it is another model where the target is a class
    memory: Callable[[Sections, Form], Memory] = lambda config, form: Memory()
    # As `build`, of a method that learns particles of a prior: how far they are apart is told, noise
    # can make their training private, and they serve clients who come later.
    particles: Callable[[Sections, Form], PACPFL] | None = None

    @property
    def in_rounds(self) -> bool:
        return self.learns == "in rounds"

    def clients_at_once(self, config: Sections, federation: Federation, dtype: type) -> int | None:
        """Return how many clients to personalise at once, so that their networks fit into memory.

        What counts is the size of the activations: a convolution of 28 x 28 pixels holds a third of a
        megabyte for every image and network. None: the engine decides, as where targets are numbers.
        """
        if federation.classes is None:
            return None
        import jax

        network = build_network(config, federation.form, federation.classes)
        rows = max(len(c.personal) for group in federation.groups().values() for c in group)
        held = self.memory(config, federation.form)
        passes, rows = GRADIENT if held.gradients else 1, min(rows, held.rows or rows)
        floats = held.networks * (passes * rows * network.activations + COPIES * network.size)
        room = ROOM.get(jax.default_backend(), ROOM_ACCELERATOR)
        return max(1, room // (np.dtype(dtype).itemsize * floats))

    def title_for(self, form: Form) -> str:
        """Return what people call the model that it is for this target."""
        return self.title if form.classes is None else self.class_title or self.title


def entry(name: str) -> Entry:
    """Return the method of this name; if there is none, the nearest name is told."""
    known = entries()
    if name not in known:
        raise InputError(f"there is no method {name!r}{nearest(name, known)}")
    return known[name]


def named(task: Task | None = None, learns: str | None = None) -> tuple[str, ...]:
    """Return the names of the methods for this task that learn in this way; None: whichever."""
    return tuple(
        name
        for name, one in entries().items()
        if (task is None or task in one.tasks) and learns in (None, one.learns)
    )


def build_method(name: str, config: Sections, form: Form) -> Method:
    """Return the method of this name for a federation of this form."""
    return _able(name, form).build(config, form)


def check_method(name: str, config: Sections, form: Form) -> None:
    """Raise what `build_method` would; where the target is a number, none of ours is built for that."""
    found = _able(name, form)
    if form.classes is not None or found not in OURS:
        found.build(config, form)
        return
    build_prior(config, form)
    temperatures(config, form)
    if "network" in found.settings:
        build_network(config, form, 1)


def _able(name: str, form: Form) -> Entry:
    found, task = entry(name), task_of(form)
    if task not in found.tasks:
        raise InputError(
            f"{name} is not made for {task}, which the target is; choose among "
            f"{', '.join(named(task))}."
        )
    return found


def build_private(name: str, config: Sections, form: Form) -> Private | None:
    """Return the method of this name with noise; None where no privacy is asked for, or accounted."""
    build, rounds = entry(name).particles, config.train.rounds
    if build is None:
        return None
    plan = config.privacy.plan(rounds, form.clients, config.train.clients_per_round)
    if plan is None:
        return None
    from pacpfl.methods.transforms import protect

    return protect(build(config, form), plan, config.privacy, rounds)


def task_of(form: Form) -> Task:
    return "numbers" if form.classes is None else "classes"


@cache
def entries() -> Mapping[str, Entry]:
    """Return all methods by name: ours, then those of other packages."""
    ours = {one.name: one for one in OURS}
    return ours | {one.name: one for one in _others(ours)}


def _others(ours: Mapping[str, Entry]) -> Iterator[Entry]:
    for point in entry_points(group=GROUP):
        place = f"The entry point {point.name} = {point.value!r} in {GROUP}"
        try:
            found = point.load()
        except Exception as error:
            raise InputError(
                f"{place} cannot be loaded ({error}); mend or remove the package that brings it."
            ) from error
        if not isinstance(found, Entry):
            raise InputError(f"{place} is a {type(found).__name__}; let it name an Entry.")
        if point.name in ours:
            raise InputError(f"{place} takes the name of a method of pacpfl; choose another name.")
        if found.releases == "accounted":
            raise InputError(
                f"{place} says that a budget accounts for it: that of pacpfl alone is."
            )
        yield replace(found, name=point.name)


def build_pacpfl(config: Sections, form: Form) -> PACPFL:
    from pacpfl.methods.pacpfl import PACPFL, build_optimizer

    train = replace(config.train, tau=temperatures(config, form)["tau"], lambda_=None)
    optimizer, own = build_optimizer(config.train), config.personal
    prior = build_prior(config, form)
    method = PACPFL(prior, form.clients, optimizer, train, own.weights, exact=own.exact)
    if not train.blend:
        return method
    from pacpfl.methods.blend import Blend
    from pacpfl.priors.gp import GPPrior

    if not isinstance(prior, GPPrior):
        raise InputError("train.blend needs one Gaussian process: no warp, no members, no classes.")
    return Blend.of(method, prior)


def _pacpfl_memory(config: Sections, form: Form) -> Memory:
    k, posterior = config.train.particles, config.posterior
    if form.classes is None:
        return Memory(k * config.prior.members)
    if posterior.adapt == "last":  # networks one after the other, in parts, without gradients
        return Memory(networks=k, gradients=False, rows=ROWS)
    return Memory(networks=k * posterior.networks, rows=posterior.batch)


def _pfedgp(config: Sections, form: Form) -> Method:
    from pacpfl.methods.pacpfl import build_optimizer
    from pacpfl.methods.pfedgp import PFedGP, PFedGPClassify

    optimizer = build_optimizer(config.train)
    if form.classes is None:
        return PFedGP(build_prior(config, form), optimizer, batch=config.train.batch)
    network = build_network(config, form, config.pfedgp.features)
    return PFedGPClassify(network, form.classes, optimizer, config.pfedgp)


def _pfedgp_memory(config: Sections, form: Form) -> Memory:
    # For classes one binary Gaussian process for each level of their tree.
    members = config.prior.members
    return Memory(members if form.classes is None else (form.classes - 1).bit_length())


def _maml(config: Sections, form: Form) -> MAML:
    from pacpfl.methods.network import MAML
    from pacpfl.methods.pacpfl import build_optimizer

    optimizer = build_optimizer(config.train)
    return MAML(build_model(config, form), config.maml, config.train.batch, optimizer)


def _mtl(config: Sections, form: Form) -> Method:
    from pacpfl.methods.network import MTL

    return MTL(build_model(config, form), form.clients, config.local, config.mtl)


def _fedavg(config: Sections, form: Form) -> Method:
    from pacpfl.methods.network import FedAvg

    return FedAvg(build_model(config, form), config.local)


def _pfedbayes(config: Sections, form: Form) -> Method:
    from pacpfl.methods.pfedbayes import PFedBayes

    return PFedBayes(build_model(config, form), config.local, config.pfedbayes)


def _alone(kind: str, config: Sections, form: Form, deep: bool = False) -> Method:
    """Return what people fit to one small data set, or to that of all: plain, or of the deep prior."""
    from pacpfl.methods import alone

    if form.classes is not None:
        return getattr(alone, f"{kind}BNN")(vague_prior(config, form))
    plain = alone.plain_prior(len(form.features), config.prior.noise)
    return getattr(alone, kind)(build_prior(config, form) if deep else plain, config.alone)


def _ridge(config: Sections, form: Form) -> Method:
    from pacpfl.methods.alone import Ridge

    return Ridge()


def _ard(config: Sections, form: Form) -> Method:
    from pacpfl.methods.alone import ARD, plain_prior

    return ARD(plain_prior(len(form.features)))


def _local_memory(config: Sections, form: Form) -> Memory:
    return Memory(rows=config.local.batch)


def _ard_memory(config: Sections, form: Form) -> Memory:
    from pacpfl.methods.alone import ARD

    return Memory(ARD.settings.restarts)


def _alone_memory(config: Sections, form: Form) -> Memory:
    return Memory(networks=config.alone.networks, rows=config.alone.batch)


OURS = (
    Entry(
        "pacpfl", "PAC-PFL", build_pacpfl,
        releases="accounted",
        settings=("prior", "network", "train", "bnn", "posterior", "personal", "privacy"),
        memory=_pacpfl_memory, particles=build_pacpfl,
    ),
    Entry(
        "pfedgp", "pFedGP", _pfedgp,
        settings=("prior", "network", "train", "pfedgp"), memory=_pfedgp_memory,
    ),
    Entry(
        "pfedbayes", "pFedBayes", _pfedbayes,
        settings=("network", "train", "local", "pfedbayes"), memory=_local_memory,
    ),
    Entry(
        "mtl", "MTL", _mtl,
        settings=("network", "train", "local", "mtl"), memory=_local_memory,
    ),
    Entry("maml", "MAML", _maml, settings=("network", "train", "maml")),
    Entry(
        "fedavg", "FedAvg", _fedavg,
        settings=("network", "train", "local"),
    ),
    Entry(
        "vanilla", "GP per client", partial(_alone, "Vanilla"),
        learns="alone", releases="nothing", settings=("prior", "network", "alone"),
        class_title="BNN per client", memory=_alone_memory,
    ),
    Entry(
        "vanilla-deep", "Deep GP per client", partial(_alone, "Vanilla", deep=True),
        tasks=NUMBERS, learns="alone", releases="nothing", settings=("prior", "alone"),
    ),
    Entry(
        "pooled", "Pooled GP", partial(_alone, "Pooled"),
        learns="from pooled data", settings=("prior", "network", "alone"),
        class_title="Pooled BNN", memory=_alone_memory,
    ),
    Entry(
        "pooled-deep", "Pooled deep GP", partial(_alone, "Pooled", deep=True),
        tasks=NUMBERS, learns="from pooled data", settings=("prior", "alone"),
    ),
    Entry(
        "ridge", "Ridge per client", _ridge,
        tasks=NUMBERS, learns="alone", releases="nothing",
    ),
    Entry(
        "ard", "ARD-GP per client", _ard,
        tasks=NUMBERS, learns="alone", releases="nothing",
        memory=_ard_memory,
    ),
)  # fmt: skip
