"""From a configuration to a federation and the methods that learn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pacpfl import hyper
from pacpfl.config import Config
from pacpfl.data.check import check_federation
from pacpfl.data.digits import digits
from pacpfl.data.images import Images, load_images
from pacpfl.data.partition import by_writer, dirichlet
from pacpfl.data.polynomial import polynomial
from pacpfl.data.settings import PVSettings
from pacpfl.data.standardize import standardize
from pacpfl.errors import InputError
from pacpfl.methods.ard import ARD
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import DEFAULT_TAU, PACPFL, build_optimizer
from pacpfl.methods.pfedgp import PFedGP
from pacpfl.methods.pooled import Pooled
from pacpfl.methods.ridge import Ridge
from pacpfl.methods.vanilla import Vanilla
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import mixture
from pacpfl.priors.warped import WarpedPrior
from pacpfl.studies.build_networks import (
    build_bnn_prior,
    build_fedavg,
    build_maml,
    build_mtl,
    build_pfedbayes,
    build_pfedgp_classify,
    build_pooled_bnn,
    build_vanilla_bnn,
)
from pacpfl.types import Federation, Form

if TYPE_CHECKING:
    from pacpfl.data.weather import Weather


class Entry(NamedTuple):
    """A method as people name it, whether it learns in rounds, and how it is made."""

    title: str
    rounds: bool
    build: Callable[[Config, Form], Method]


def build_federation(config: Config) -> Federation:
    federation = _federations[config.data.name](config)
    check_federation(federation)
    return standardize(federation, config.data.standardize)


def _polynomial(config: Config) -> Federation:
    data = config.data
    return polynomial(
        data.clients,
        data.new_clients,
        data.samples,
        data.test_samples,
        data.noise,
        data.opposite,
        config.seed,
    )


def _pv(config: Config) -> Federation:
    from pacpfl.data.pv import pv  # here and below: what it needs takes half a second to import

    data, houses = config.data, config.pv
    return pv(
        houses.panels,  # type: ignore[arg-type]
        data.clients,
        data.new_clients,
        data.samples,
        houses.window,  # type: ignore[arg-type]
        load_weather(houses),
        config.seed,
        skip=houses.skip,
    )


@cache
def load_weather(houses: PVSettings) -> Weather:
    """Synthetic weather does not change with the seed of a run: the city has one past."""
    if houses.weather == "synthetic":
        from pacpfl.data.synthetic_weather import synthetic_weather

        return synthetic_weather(houses.latitude, houses.longitude)
    from pacpfl.data.pvgis import fetch_pvgis, read_pvgis_csv

    if houses.weather == "pvgis":
        return fetch_pvgis(houses.latitude, houses.longitude)
    return read_pvgis_csv(Path(houses.weather))


def _own(config: Config) -> Federation:
    from pacpfl.data.tables.read import load_own

    return load_own(config.tables, config.seed).federation


def _digits(config: Config) -> Federation:
    data = config.data
    return digits(
        data.clients,
        data.new_clients,
        data.samples or None,
        config.images.test_fraction,
        seed=config.seed,
    )


def _femnist(config: Config) -> Federation:
    data = config.data
    return by_writer(
        _images(config, 10),
        data.clients,
        data.new_clients,
        data.samples or None,
        config.images.test_fraction,
        seed=config.seed,
    )


def _emnist(config: Config) -> Federation:
    data = config.data
    return dirichlet(
        _images(config, None),
        data.clients,
        data.new_clients,
        config.images.alpha,
        config.images.test_fraction,
        seed=config.seed,
    )


def _images(config: Config, classes: int | None) -> Images:
    if not config.images.path:
        raise InputError(
            f"{config.data.name} needs images; name their file or folder with --data PATH."
        )
    return _load_images(config.images.path, classes)


_load_images = cache(load_images)
_federations: dict[str, Callable[[Config], Federation]] = {
    "polynomial": _polynomial,
    "pv": _pv,
    "digits": _digits,
    "femnist": _femnist,
    "emnist": _emnist,
    "tables": _own,
}


def build_prior(config: Config, form: Form) -> Prior:
    """Return the family of priors that a configuration means: a Bayesian network for classes."""
    if form.classes is not None:
        return build_bnn_prior(config, form)
    plain = GPPrior(len(form.features), config.prior)
    return mixture(
        plain if config.prior.warp == "none" else WarpedPrior(plain), config.prior.members
    )


def build_method(name: str, config: Config, form: Form) -> Method:
    return entry(name, form).build(config, form)


def entry(name: str, form: Form) -> Entry:
    """What a method's name stands for where the target is a number, or one of several classes."""
    if form.classes is None:
        return METHODS[name]
    if name not in CLASSIFIERS:
        raise InputError(
            f"{name} is not made for classes, and the target is one of several; choose among "
            f"{', '.join(CLASSIFIERS)}."
        )
    return CLASSIFIERS[name]


def build_pacpfl(config: Config, form: Form) -> PACPFL:
    settings = replace(config.train, tau=temperatures(config, form)["tau"], lambda_=None)
    optimizer = build_optimizer(config.train)
    return PACPFL(
        build_prior(config, form), form.clients, optimizer, settings, config.personal.weights
    )


def build_pfedgp(config: Config, form: Form) -> PFedGP:
    prior = build_prior(config, form)
    return PFedGP(prior, build_optimizer(config.train), batch=config.train.batch)


def simple_prior(config: Config, form: Form) -> GPPrior:
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


def build_vanilla(config: Config, prior: Prior) -> Vanilla:
    return Vanilla(prior, config.alone)


def build_pooled(config: Config, prior: Prior) -> Pooled:
    return Pooled(prior, config.alone)


METHODS: dict[str, Entry] = {
    "pacpfl": Entry("PAC-PFL", True, build_pacpfl),
    "pfedgp": Entry("pFedGP", True, build_pfedgp),
    "pfedbayes": Entry("pFedBayes", True, build_pfedbayes),
    "mtl": Entry("MTL", True, build_mtl),
    "maml": Entry("MAML", True, build_maml),
    "fedavg": Entry("FedAvg", True, build_fedavg),
    "vanilla": Entry("GP per client", False, lambda c, f: build_vanilla(c, simple_prior(c, f))),
    "vanilla-deep": Entry(
        "Deep GP per client", False, lambda c, f: build_vanilla(c, build_prior(c, f))
    ),
    "pooled": Entry("Pooled GP", False, lambda c, f: build_pooled(c, simple_prior(c, f))),
    "pooled-deep": Entry("Pooled deep GP", False, lambda c, f: build_pooled(c, build_prior(c, f))),
    "ridge": Entry("Ridge per client", False, lambda c, f: Ridge()),
    "ard": Entry("ARD-GP per client", False, lambda c, f: ARD()),
}
# What learns in rounds does so in both tasks: `rounds` never differs between the two tables.
CLASSIFIERS: dict[str, Entry] = {
    **{name: METHODS[name] for name in ("pacpfl", "pfedbayes", "mtl", "maml", "fedavg")},
    "pfedgp": Entry("pFedGP", True, build_pfedgp_classify),
    "vanilla": Entry("BNN per client", False, build_vanilla_bnn),
    "pooled": Entry("Pooled BNN", False, build_pooled_bnn),
}
TITLES = {name: entry.title for name, entry in METHODS.items()}


def temperatures(config: Config, form: Form) -> dict[str, Any]:
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
