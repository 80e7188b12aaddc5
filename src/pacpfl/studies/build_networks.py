"""From a configuration to networks, and to the methods that train them: both tasks.

Where the target is a number the likelihood is Gaussian; where it is one of several classes it is
categorical, and what a particle of PAC-PFL stands for is a Bayesian network (`build_bnn_prior`).
"""

from __future__ import annotations

from pacpfl.config import Config
from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian, Likelihood
from pacpfl.methods.fedavg import FedAvg
from pacpfl.methods.maml import MAML
from pacpfl.methods.mtl import MTL
from pacpfl.methods.network import NetworkModel
from pacpfl.methods.pacpfl import build_optimizer
from pacpfl.methods.pfedbayes import PFedBayes
from pacpfl.methods.pfedgp_classify import PFedGPClassify
from pacpfl.methods.vanilla_bnn import PooledBNN, VanillaBNN
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import CNN, MLP, Network
from pacpfl.types import Form

SMALLEST = 16  # pixels; a side below this has no room for two unpadded convolutions of 5 x 5


def build_likelihood(form: Form) -> Likelihood:
    return Gaussian(1.0) if form.classes is None else Categorical(form.classes)


def build_network(config: Config, form: Form, outputs: int) -> Network:
    network, shape = config.network, form.shape
    if network.kind == "mlp":
        return MLP((len(form.features), *network.widths, outputs), network.activation)
    if shape is None or len(shape) != 2:
        raise InputError('network.kind = "cnn" needs images, which the data are not; choose "mlp".')
    first, second = network.filters
    return CNN(
        *shape,
        outputs,
        filters=(first, second),
        hidden=network.hidden,
        padding="valid" if min(shape) >= SMALLEST else "same",
    )


def build_model(config: Config, form: Form) -> NetworkModel:
    likelihood = build_likelihood(form)
    return NetworkModel(build_network(config, form, likelihood.outputs), likelihood)


def build_fedavg(config: Config, form: Form) -> FedAvg:
    return FedAvg(build_model(config, form), config.local)


def build_mtl(config: Config, form: Form) -> MTL:
    return MTL(
        build_model(config, form),
        form.clients,
        config.local,
        config.mtl,
    )


def build_maml(config: Config, form: Form) -> MAML:
    return MAML(
        build_model(config, form),
        config.maml,
        config.train.batch,
        server_optimizer=build_optimizer(config.train),
    )


def build_pfedbayes(config: Config, form: Form) -> PFedBayes:
    return PFedBayes(build_model(config, form), config.local, config.pfedbayes)


def build_pfedgp_classify(config: Config, form: Form) -> PFedGPClassify:
    assert form.classes is not None
    network = build_network(config, form, config.pfedgp.features)
    return PFedGPClassify(network, form.classes, build_optimizer(config.train), config.pfedgp)


def build_bnn_prior(config: Config, form: Form) -> BNNPrior:
    if config.prior.members > 1:
        raise InputError("Mixtures of Bayesian networks are not offered; set prior.members = 1.")
    model = build_model(config, form)
    return BNNPrior(model.network, model.likelihood, config.bnn, config.posterior)


def build_vanilla_bnn(config: Config, form: Form) -> VanillaBNN:
    return VanillaBNN(_without_federation(config, form))


def build_pooled_bnn(config: Config, form: Form) -> PooledBNN:
    return PooledBNN(_without_federation(config, form))


def _without_federation(config: Config, form: Form) -> BNNPrior:
    """A prior that knows no data: wide, and every layer adapts.

    Half a million weights against a few samples: at temperature 1 the prior drowns the data and nothing
    is learned, so the samples get the weight that a baseline worth beating needs.
    """
    alone, model = config.alone, build_model(config, form)
    inference = Inference(
        alone.inference,
        alone.networks,
        "all",
        alone.steps,
        alone.learning_rate,
        alone.temperature,
        batch=alone.batch,
    )
    return BNNPrior(
        model.network,
        model.likelihood,
        BNNSettings(initial_std=alone.initial_std),
        inference=inference,
    )
