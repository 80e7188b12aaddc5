"""Numbers that no bound may be made of: one sentence, never a silent number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from finite_world import refused

from pacpfl import bounds
from pacpfl.bounds import ClientPremises, ServerPremises, losses

CLIENT = ClientPremises(2.0, 10, 0.0, 1.0, 0.05)
SERVER = ServerPremises((2.0, 2.0), (10, 8), 0.0, 1.0, 0.05, lambda_=5.0)
NAN, INF = math.nan, math.inf

PREMISES = [
    {"delta": 0.0},
    {"delta": 1.0},
    {"delta": -0.1},
    {"delta": NAN},
    {"a": 1.0},
    {"a": 2.0},
    {"a": NAN},
    {"b": INF},
    {"b": NAN},
]


@pytest.mark.parametrize(
    "change",
    [
        *PREMISES,
        {"m": 0},
        {"m": -3},
        {"m": 2.5},
        {"m": NAN},
        {"beta": 0.0},
        {"beta": -1.0},
        {"beta": NAN},
        {"beta": INF},
        {"later": -1},
        {"epsilon": -0.1},
        {"epsilon": NAN},
        {"epsilon": INF},
        {"choices": 0},
        {"unit": "house"},
    ],
    ids=str,
)
def test_client_premises(change: dict[str, object]) -> None:
    refused(lambda: dataclasses.replace(CLIENT, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        *PREMISES,
        {"samples": ()},
        {"samples": (10, 0)},
        {"samples": (10,)},
        {"betas": (1.0, -1.0)},
        {"betas": (1.0, NAN)},
        {"betas": (1.0, 0.0)},
        {"later": (1,)},
        {"later": (1, -1)},
        {"lambda_": 0.0},
        {"lambda_": -2.0},
        {"lambda_": NAN},
        {"upsilon": 0.0},
        {"upsilon": NAN},
    ],
    ids=str,
)
def test_server_premises(change: dict[str, object]) -> None:
    refused(lambda: dataclasses.replace(SERVER, **change))  # type: ignore[arg-type]


NO_LAMBDA = dataclasses.replace(SERVER, lambda_=INF)
CALLS: dict[str, Callable[[], object]] = {
    "risk NaN": lambda: bounds.client_bound(NAN, 0.1, CLIENT),
    "risk above b": lambda: bounds.client_bound(1.1, 0.1, CLIENT),
    "risk below a": lambda: bounds.client_bound(-0.1, 0.1, CLIENT),
    "KL negative": lambda: bounds.client_bound(0.5, -0.1, CLIENT),
    "KL NaN": lambda: bounds.client_bound(0.5, NAN, CLIENT),
    "KL infinite": lambda: bounds.client_bound(0.5, INF, CLIENT),
    "ln Z positive": lambda: bounds.gibbs_client_bound(0.1, CLIENT),
    "ln Z too small": lambda: bounds.gibbs_client_bound(-2.5, CLIENT),
    "ln Z NaN": lambda: bounds.gibbs_client_bound(NAN, CLIENT),
    "ln Z of an unbounded loss": lambda: bounds.gibbs_client_bound(-INF, CLIENT),
    "cost epsilon": lambda: bounds.privacy_cost(-1.0, 10, 0.05),
    "cost m": lambda: bounds.privacy_cost(1.0, 0, 0.05),
    "cost delta": lambda: bounds.privacy_cost(1.0, 10, 1.5),
    "level tau": lambda: bounds.sampling_epsilon([1.0], 0.0, 1.0, [5]),
    "level width": lambda: bounds.sampling_epsilon([1.0], 0.5, -1.0, [5]),
    "level m": lambda: bounds.sampling_epsilon([1.0], 0.5, 1.0, [0]),
    "level draws": lambda: bounds.sampling_epsilon([1.0], 0.5, 1.0, [5], draws=0),
    "server evidence NaN": lambda: bounds.server_bound([-0.5, NAN], 0.1, SERVER),
    "server evidence too few": lambda: bounds.server_bound([-0.5], 0.1, SERVER),
    "server evidence positive": lambda: bounds.server_bound([-0.5, 1.0], 0.1, SERVER),
    "server KL": lambda: bounds.server_bound([-0.5, -0.5], -0.1, SERVER),
    "server KL NaN": lambda: bounds.server_bound([-0.5, -0.5], NAN, SERVER),
    "server weights": lambda: bounds.server_bound([-0.5, -0.5], 0.1, SERVER, weights=[0.5, 0.6]),
    "server weight zero": lambda: bounds.server_bound(
        [-0.5, -0.5], 0.1, SERVER, weights=[0.0, 1.0]
    ),
    "printed word": lambda: bounds.server_bound([-0.5, -0.5], 0.1, SERVER, printed="both"),  # type: ignore[arg-type]
    "printed lambda": lambda: bounds.server_bound([-0.5, -0.5], 0.1, NO_LAMBDA, printed="theorem"),
    "optimal NaN": lambda: bounds.optimal_server_bound(NAN, SERVER),
    "optimal positive": lambda: bounds.optimal_server_bound(1.0, SERVER),
    "new client lambda": lambda: bounds.new_client_bound([-0.5, -0.5], 0.1, NO_LAMBDA),
    "new client KL": lambda: bounds.new_client_bound([-0.5, -0.5], NAN, SERVER),
    "new client betas": lambda: bounds.optimal_new_client_bound(
        -0.5, dataclasses.replace(SERVER, betas=(1.0, 2.0))
    ),
    "new client ln Z": lambda: bounds.optimal_new_client_bound(NAN, SERVER),
    "tau lambda": lambda: bounds.tau_from_lambda(-1.0, [1.0], 1),
    "tau n_2": lambda: bounds.tau_from_lambda(1.0, [1.0], -1),
    "tau betas": lambda: bounds.tau_from_lambda(1.0, [NAN], 1),
    "lambda tau": lambda: bounds.lambda_from_tau(1.2, [1.0], 1),
    "lambda tau zero": lambda: bounds.lambda_from_tau(0.0, [1.0], 1),
    "range beta": lambda: bounds.later_range(0.0, 5, 1, 0.0, 1.0, 2),
    "range m": lambda: bounds.later_range(1.0, 0, 1, 0.0, 1.0, 2),
    "factor m": lambda: bounds.later_factor(0, 1),
    "factor later": lambda: bounds.later_factor(1, -1),
    "Q* NaN": lambda: bounds.optimal_hyper_posterior([0.0], [[NAN]], 0.5),
    "Q* tau": lambda: bounds.optimal_hyper_posterior([0.0], [[-1.0]], NAN),
    "use m": lambda: bounds.non_vacuous_loss(1.0, 0, 0.0, 1.0),
    "use epsilon": lambda: bounds.non_vacuous_privacy(-1.0, 1.0, 5, 0.0, 1.0),
    "lambda condition": lambda: bounds.lambda_condition(NAN, 1, 0.1),
    "beta condition": lambda: bounds.beta_condition(NAN, 4),
    "growth": lambda: bounds.consistency(NAN, 1.0, 1.0),
    "growth of n_2": lambda: bounds.consistency(0.5, 1.0, 1.5),
    "margin NaN": lambda: bounds.participation_margin(NAN, -1.0, CLIENT),
    "margin range": lambda: bounds.participation_margin(1.0, -1.0, CLIENT),
    "std zero": lambda: bounds.diagonal_gaussian_kl([0.0], [0.0], [0.0], [1.0]),
    "mean NaN": lambda: bounds.diagonal_gaussian_kl([NAN], [1.0], [0.0], [1.0]),
    "covariance": lambda: bounds.gaussian_kl([0.0], [[-1.0]], [0.0], [[1.0]]),
    "covariance NaN": lambda: bounds.gaussian_kl([0.0], [[NAN]], [0.0], [[1.0]]),
    "noise": lambda: bounds.gaussian_process_kl([[1.0]], [0.0], 0.0),
    "temperature": lambda: bounds.gaussian_process_kl([[1.0]], [0.0], 1.0, 0.0),
    "residual NaN": lambda: bounds.gaussian_process_kl([[1.0]], [NAN], 1.0),
    "kernel shape": lambda: bounds.gaussian_process_kl([[1.0]], [0.0, 1.0], 1.0),
    "no sample": lambda: bounds.gaussian_process_kl(np.zeros((0, 0)), [], 1.0),
    "mixture sum": lambda: bounds.mixture_kl([0.5, 0.6], [0.5, 0.5], [1.0, 1.0]),
    "mixture support": lambda: bounds.mixture_kl([0.5, 0.5], [1.0, 0.0], [1.0, 1.0]),
    "mixture KL": lambda: bounds.mixture_kl([0.5, 0.5], [0.5, 0.5], [1.0, -1.0]),
    "mixture evidence": lambda: bounds.mixture_log_evidence([0.5, 0.5], [NAN, 1.0]),
    "bandwidth": lambda: bounds.particle_cloud_kl([[0.0]], 0.0, 0.0, 1.0),
    "particles": lambda: bounds.particle_cloud_kl([[NAN]], 1.0, 0.0, 1.0),
    "hyper KL negative": lambda: bounds.optimal_hyper_kl(0.5, [-4.0], -1.0),
    "hyper KL NaN": lambda: bounds.optimal_hyper_kl(0.5, [-4.0], NAN),
    "partition alpha": lambda: bounds.log_partition([0.0, 0.0], 1.0),
    "partition NaN": lambda: bounds.log_partition([0.0, NAN], 0.05),
    "partition one draw": lambda: bounds.log_partition([0.0], 0.05),
    "partition groups": lambda: bounds.log_partition([0.0, 0.0, 0.0], 0.05, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    refused(CALLS[name])


LOSSES: list[Callable[[], object]] = [
    lambda: losses.clipped_squared_error([1.0], [math.nan], 1.0),
    lambda: losses.clipped_squared_error([1.0], [1.0], 0.0),
    lambda: losses.clipped_nll([math.nan], 0.0, 1.0),
    lambda: losses.clipped_nll([0.0], 1.0, 1.0),
    lambda: losses.brier([[0.5, 0.6]], [0]),
    lambda: losses.brier([[0.5, 0.5]], [2]),
    lambda: losses.expected_clipped_square(0.0, -1.0, 0.0, 1.0),
    lambda: losses.expected_clipped_square(0.0, 1.0, 1.0, 1.0),
    lambda: losses.expected_clipped_gaussian_nll(0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
    lambda: losses.expected_miss(0.0, 1.0, 0.0, -0.1),
    lambda: losses.monte_carlo_upper([0.5, 1.5], 0.0, 1.0, 0.05),
    lambda: losses.monte_carlo_upper([0.5], 0.0, 1.0, 0.05),
    lambda: losses.monte_carlo_upper([0.5, 0.5], 0.0, 1.0, 0.0),
    lambda: losses.monte_carlo_upper([0.5, 0.5], 0.0, 1.0, 0.05, "worst"),  # type: ignore[arg-type]
    lambda: losses.miss([0.0], [0.0], math.nan),
]


@pytest.mark.parametrize("call", LOSSES)
def test_losses(call: Callable[[], object]) -> None:
    refused(call)


def test_rounding_is_not_an_error() -> None:
    assert bounds.client_bound(1 + 1e-12, 0.0, CLIENT).value > 1
    assert bounds.gibbs_client_bound(1e-12, CLIENT).value > 0
