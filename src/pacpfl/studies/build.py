"""From a configuration to a federation and the methods that learn from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax

from pacpfl import hyper
from pacpfl.config import Config, TrainConfig
from pacpfl.data.check import check_federation
from pacpfl.data.polynomial import polynomial
from pacpfl.data.standardize import standardize_clients
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.pooled import Pooled
from pacpfl.methods.vanilla import Vanilla
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.mixture import mixture
from pacpfl.types import Federation

TITLES = {
    "pacpfl": "PAC-PFL",
    "vanilla": "GP per client",
    "vanilla-deep": "Deep GP per client",
    "pooled": "Pooled GP",
    "pooled-deep": "Pooled deep GP",
}


def build_federation(config: Config) -> Federation:
    data = config.data
    federation = polynomial(
        data.clients,
        data.new_clients,
        data.samples,
        data.test_samples,
        data.noise,
        data.opposite,
        config.seed,
    )
    check_federation(federation)
    return standardize_clients(federation) if data.standardize == "client" else federation


def build_prior(config: Config, features: int) -> Prior:
    prior = config.prior
    base = GPPrior(
        features,
        mean=tuple(prior.mean.split("+")),
        kernel=tuple(prior.kernel.split("+")),
        mean_widths=prior.mean_widths,
        kernel_widths=prior.kernel_widths,
        kernel_outputs=prior.kernel_outputs,
        learn_output_scale=prior.output_scale == "learned",
        noise=prior.noise,
        noise_spread=prior.noise_spread,
    )
    return mixture(base, prior.members)


def build_method(name: str, config: Config, federation: Federation) -> Method:
    features = len(federation.features)
    if name == "pacpfl":
        return build_pacpfl(config, federation)
    if name.endswith("-deep"):
        local: Prior = build_prior(config, features)
    else:
        # What people fit to one small data set: constant mean, one length scale per feature, learned
        # scale, and a wide hyper-prior of the noise to start from.
        local = GPPrior(
            features,
            mean=("constant",),
            kernel=("ard",),
            learn_output_scale=True,
            noise=config.prior.noise,
            noise_spread=1.0,
        )
    return Pooled(local) if name.startswith("pooled") else Vanilla(local)


def build_pacpfl(config: Config, federation: Federation) -> PACPFL:
    train = config.train
    return PACPFL(
        prior=build_prior(config, len(federation.features)),
        clients=len(federation.existing),
        optimizer=build_optimizer(train),
        particles=train.particles,
        tau=temperatures(config, federation)["tau"],
        hyper_std=train.hyper_std,
        initial_spread=train.initial_spread,
        beta=train.beta,
        batch=train.batch,
        aggregation=train.aggregation,
        svgd_kernel=train.svgd_kernel,
        mixture_weights=config.personal.weights,
    )


DEFAULT_TAU = 1.0


def temperatures(config: Config, federation: Federation) -> dict[str, Any]:
    """tau and lambda, whichever was given, and the condition of the server-level theorem.

    The theorem has one beta; with beta_i = m_i the mean number of samples stands for it.
    """
    train, clients = config.train, federation.existing
    n, n_2 = len(clients), sum(client.later is not None for client in clients)
    beta = train.beta or float(np.mean([len(client.train) for client in clients]))
    if train.lambda_ is not None:
        lambda_ = train.lambda_
        tau = hyper.tau_from_lambda(lambda_, beta, n, n_2, train.upsilon)
    else:
        tau = train.tau or DEFAULT_TAU
        lambda_ = hyper.lambda_from_tau(tau, beta, n, n_2, train.upsilon)
    return {
        "tau": tau,
        "lambda": lambda_,
        "beta": beta,
        "n_2": n_2,
        "lambda_condition": hyper.lambda_condition(lambda_, n_2, train.upsilon),
    }


def build_optimizer(train: TrainConfig) -> optax.GradientTransformation:
    rate, rounds = train.learning_rate, train.rounds
    schedule = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, rounds),
        "exponential": optax.exponential_decay(rate, rounds, 0.01),
    }[train.schedule]
    return getattr(optax, train.optimizer)(schedule)
