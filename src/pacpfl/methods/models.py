"""From a configuration and a form to priors and networks, for both tasks.

Where the target is a number the likelihood is Gaussian; where it is one of several classes it is
categorical, and what a particle of PAC-PFL stands for is a Bayesian network (`build_bnn_prior`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pacpfl.bounds.conditions import lambda_condition
from pacpfl.bounds.server import lambda_from_tau, tau_from_lambda
from pacpfl.errors import InputError
from pacpfl.likelihoods import Categorical, Gaussian, Likelihood
from pacpfl.methods.alone import AloneSettings
from pacpfl.methods.maml import MAMLSettings
from pacpfl.methods.mtl import MTLSettings
from pacpfl.methods.network import LocalTraining, NetworkModel
from pacpfl.methods.pacpfl import DEFAULT_TAU, TrainSettings
from pacpfl.methods.pfedbayes import PFedBayesSettings
from pacpfl.methods.pfedgp_classes import PFedGPSettings
from pacpfl.personal import PersonalSettings
from pacpfl.priors.base import Prior
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.mixture import mixture
from pacpfl.priors.networks import CNN, MLP, NetworkSettings
from pacpfl.priors.warped import WarpedPrior
from pacpfl.types import Form

SMALLEST = 16  # pixels; a side below this has no room for two unpadded convolutions of 5 x 5


class Sections(Protocol):
    """What of a configuration methods are built from: `config.Config` has these sections, and more."""

    @property
    def seed(self) -> int: ...
    @property
    def prior(self) -> GPSettings: ...
    @property
    def network(self) -> NetworkSettings: ...
    @property
    def train(self) -> TrainSettings: ...
    @property
    def local(self) -> LocalTraining: ...
    @property
    def mtl(self) -> MTLSettings: ...
    @property
    def maml(self) -> MAMLSettings: ...
    @property
    def bnn(self) -> BNNSettings: ...
    @property
    def pfedbayes(self) -> PFedBayesSettings: ...
    @property
    def pfedgp(self) -> PFedGPSettings: ...
    @property
    def alone(self) -> AloneSettings: ...
    @property
    def posterior(self) -> Inference: ...
    @property
    def personal(self) -> PersonalSettings: ...


def build_prior(config: Sections, form: Form) -> Prior:
    """Return the family of priors that a configuration means: a Bayesian network for classes."""
    if form.classes is not None:
        return build_bnn_prior(config, form)
    plain = GPPrior(len(form.features), config.prior)
    return mixture(
        plain if config.prior.warp == "none" else WarpedPrior(plain), config.prior.members
    )


def simple_prior(config: Sections, form: Form) -> GPPrior:
    """What people fit to one small data set: constant mean, one length scale per feature, learned
    scale, and a wide hyper-prior of the noise to start from."""
    return GPPrior(
        len(form.features),
        GPSettings(
            mean="constant",
            kernel="ard",
            output_scale="learned",
            noise=config.prior.noise,
            noise_spread=1.0,
        ),
    )


def build_likelihood(form: Form) -> Likelihood:
    return Gaussian(1.0) if form.classes is None else Categorical(form.classes)


def build_network(config: Sections, form: Form, outputs: int) -> MLP | CNN:
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


def build_model(config: Sections, form: Form) -> NetworkModel:
    likelihood = build_likelihood(form)
    return NetworkModel(build_network(config, form, likelihood.outputs), likelihood)


def build_bnn_prior(config: Sections, form: Form) -> BNNPrior:
    if config.prior.members > 1:
        raise InputError("Mixtures of Bayesian networks are not offered; set prior.members = 1.")
    model = build_model(config, form)
    return BNNPrior(model.network, model.likelihood, config.bnn, config.posterior)


def vague_prior(config: Sections, form: Form) -> BNNPrior:
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


def temperatures(config: Sections, form: Form) -> dict[str, Any]:
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
    if train.lambda_ is not None:
        lambda_ = train.lambda_
        tau = tau_from_lambda(lambda_, [beta] * n, n_2, train.upsilon)
    else:
        tau = train.tau or DEFAULT_TAU
        # No finite lambda leads to tau = 1, and none at all beyond it.
        lambda_ = lambda_from_tau(min(tau, 1.0), [beta] * n, n_2, train.upsilon)
    return {
        "tau": tau,
        "lambda": lambda_,
        "beta": beta,
        "n_2": n_2,
        "lambda_condition": lambda_condition(lambda_, n_2, train.upsilon).status == "holds",
    }
