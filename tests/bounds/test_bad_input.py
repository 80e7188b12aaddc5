"""Numbers that no bound may be made of: one sentence, never a silent number."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused

from pacpfl import bounds
from pacpfl.bounds import ClientPremises, ServerPremises, losses

NAN, INF = math.nan, math.inf
C, S = (2.0, 10, 0.0, 1.0, 0.05), ((2.0, 2.0), (10, 8), 0.0, 1.0, 0.05)
CLIENT, SERVER = ClientPremises(*C), ServerPremises(*S, lambda_=5.0)
NO_LAMBDA = dataclasses.replace(SERVER, lambda_=INF)
BETAS = dataclasses.replace(SERVER, betas=(1.0, 2.0))
BUDGET = {"delta": [0.0, 1.0, -0.1, NAN], "a": [1.0, 2.0, NAN], "b": [INF, NAN]}
PAC_BAYES = (0.1, 1.0, 9, 0.0, 1.0, 0.05)
LOGS, EVEN, ONES = [-0.5, -0.5], [0.5, 0.5], [1.0, 1.0]


def case(call: Callable[..., object], *fine: Any, **wrong: list[Any]) -> Any:
    """A call that is fine, and what single arguments of it must not be."""
    return pytest.param(call, fine, wrong, id=f"{call.__name__}: {', '.join(wrong)}")


@pytest.mark.parametrize(
    ("call", "fine", "wrong"),
    [
        case(ClientPremises, *C, **BUDGET, m=[0, -3, 2.5, NAN]),
        case(ClientPremises, *C, beta=[0.0, -1.0, NAN, INF], unit=["house"]),
        case(ClientPremises, *C, later=[-1], epsilon=[-0.1, NAN, INF], choices=[0]),
        case(ServerPremises, *S, **BUDGET, later=[(1,), (1, -1)]),
        case(ServerPremises, *S, samples=[(), (10, 0), (10,)]),
        case(ServerPremises, *S, betas=[(-1.0, 2.0), (NAN, 2.0), (0.0, 2.0), (2.0,)]),
        case(ServerPremises, *S, lambda_=[0.0, -2.0, NAN], upsilon=[0.0, NAN]),
        case(bounds.client_bound, 0.5, 0.1, CLIENT, empirical_risk=[NAN, 1.1, -0.1]),
        case(bounds.client_bound, 0.5, 0.1, CLIENT, kl=[-0.1, NAN, INF]),
        case(bounds.gibbs_client_bound, -0.5, CLIENT, log_evidence=[0.1, -2.5, NAN, -INF]),
        case(bounds.privacy_cost, 1.0, 10, 0.05, epsilon=[-1.0], m=[0], delta=[1.5]),
        case(bounds.sampling_epsilon, [1.0], 0.5, 1.0, [5], tau=[0.0], width=[-1.0]),
        case(bounds.sampling_epsilon, [1.0], 0.5, 1.0, [5], samples=[[0]], draws=[0]),
        case(bounds.server_bound, LOGS, 0.1, SERVER, log_evidence=[[-0.5, NAN], [-0.5], [-0.5, 1]]),
        case(bounds.server_bound, LOGS, 0.1, SERVER, kl=[-0.1, NAN]),
        case(bounds.server_bound, LOGS, 0.1, SERVER, weights=[[0.5, 0.6], [0.0, 1.0]]),
        case(bounds.server_bound, LOGS, 0.1, SERVER, printed=["both"]),
        case(bounds.server_bound, LOGS, 0.1, NO_LAMBDA, printed=["theorem", "proof"]),
        case(bounds.optimal_server_bound, -0.5, SERVER, log_partition=[NAN, 1.0]),
        case(bounds.new_client_bound, LOGS, 0.1, SERVER, kl=[NAN], given=[NO_LAMBDA]),
        case(bounds.optimal_new_client_bound, -0.5, SERVER, log_partition=[NAN], given=[BETAS]),
        case(bounds.tau_from_lambda, 1.0, [1.0], 1, lambda_=[-1.0], betas=[[NAN]], n_2=[-1]),
        case(bounds.lambda_from_tau, 0.5, [1.0], 1, tau=[1.2, 0.0]),
        case(bounds.later_range, 1.0, 5, 1, 0.0, 1.0, 2, beta=[0.0], m=[0]),
        case(bounds.later_factor, 1, 1, m=[0], later=[-1]),
        case(bounds.optimal_hyper_posterior, [0.0], [[-1.0]], 0.5, tau=[NAN]),
        case(bounds.optimal_hyper_posterior, [0.0], [[-1.0]], 0.5, log_evidence=[[[NAN]]]),
        case(bounds.non_vacuous_loss, 1.0, 5, 0.0, 1.0, samples=[0]),
        case(bounds.non_vacuous_privacy, 1.0, 1.0, 5, 0.0, 1.0, epsilon=[-1.0]),
        case(bounds.lambda_condition, 1.0, 1, 0.1, lambda_=[NAN]),
        case(bounds.beta_condition, 1.0, 4, beta=[NAN]),
        case(bounds.consistency, 0.5, 1.0, 1.0, beta_power=[NAN], n_2_power=[1.5]),
        case(bounds.participation_margin, -0.5, -1.0, CLIENT, evidence_after=[NAN, 1.0]),
        case(bounds.diagonal_gaussian_kl, *[[1.0]] * 4, mean_q=[[NAN]], std_q=[[0.0]]),
        case(bounds.gaussian_kl, [0.0], [[1.0]], [0.0], [[1.0]], covariance_q=[[[-1.0]], [[NAN]]]),
        case(bounds.gaussian_process_kl, [[1.0]], [0.0], 1.0, residual=[[NAN], [0.0, 1.0]]),
        case(bounds.gaussian_process_kl, [[1.0]], [0.0], 1.0, noise_variance=[0.0]),
        case(bounds.gaussian_process_kl, [[1.0]], [0.0], 1.0, temperature=[0.0]),
        case(bounds.mixture_kl, EVEN, EVEN, ONES, weights_q=[[0.5, 0.6]], weights_p=[[1.0, 0.0]]),
        case(bounds.mixture_kl, EVEN, EVEN, ONES, kls=[[1.0, -1.0]]),
        case(bounds.mixture_log_evidence, [0.5, 0.5], LOGS, log_evidences=[[NAN, 1.0]]),
        case(bounds.particle_cloud_kl, [[0.0]], 1.0, 0.0, 1.0, particles=[[[NAN]]]),
        case(bounds.particle_cloud_kl, [[0.0]], 1.0, 0.0, 1.0, bandwidth=[0.0]),
        case(bounds.optimal_hyper_kl, 0.5, [-4.0], -2.5, log_partition=[-1.0, NAN]),
        case(bounds.log_partition, LOGS, 0.05, log_terms=[[0.0, NAN], [0.0]]),
        case(bounds.log_partition, LOGS, 0.05, alpha=[1.0], groups=[3]),
        case(losses.clipped_squared_error, [1.0], [1.0], 1.0, target=[[NAN]], limit=[0.0]),
        case(losses.clipped_nll, [0.0], 0.0, 1.0, log_density=[[NAN]], a=[1.0]),
        case(losses.brier, [[0.5, 0.5]], [0], probabilities=[[[0.5, 0.6]]], labels=[[2]]),
        case(losses.expected_clipped_square, 0.0, 1.0, 0.0, 1.0, variance=[-1.0], low=[1.0]),
        case(losses.expected_clipped_gaussian_nll, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, noise_std=[0.0]),
        case(losses.expected_miss, 0.0, 1.0, 0.0, 0.1, tolerance=[-0.1]),
        case(
            bounds.betting_bound, [0.5, 0.5], 0.0, 1.0, 0.05, values=[[0.5, 1.5], []], delta=[0.0]
        ),
        case(bounds.clopper_pearson, 1, 5, 0.05, errors=[6, -1, 0.5], rows=[0], delta=[1.0]),
        case(bounds.kl_inverse, 0.1, 1.0, mean=[1.1, NAN], nats=[-0.1]),
        case(bounds.maurer_seeger, *PAC_BAYES, empirical_risk=[1.1], kl=[-1.0], m=[0], delta=[0.0]),
        case(bounds.maurer_seeger, *PAC_BAYES, privacy=[-1.0], a=[1.0]),
        case(bounds.catoni, 0.1, 1.0, 3.0, 9, 0.0, 1.0, 0.05, beta=[0.0], kl=[NAN], m=[0]),
        case(bounds.gaussian_cost, 0.05, 1.0, delta=[0.0], mu=[-1.0]),
        case(bounds.approximate_cost, 0.05, 1.0, 1e-5, epsilon=[-1.0], delta_private=[-1.0]),
        case(losses.miss, [0.0], [0.0], 0.5, tolerance=[NAN]),
    ],
)
def test_every_wrong_argument_is_refused(
    call: Callable[..., object], fine: tuple[Any, ...], wrong: dict[str, list[Any]]
) -> None:
    call(*fine)
    usual = inspect.signature(call).bind(*fine).arguments
    for name, values in wrong.items():
        for value in values:
            refused(lambda: call(**usual | {name: value}))  # noqa: B023 - called at once


def test_a_process_without_samples_is_refused() -> None:
    refused(lambda: bounds.gaussian_process_kl(np.zeros((0, 0)), [], 1.0), "at least one sample")


def test_rounding_is_not_an_error() -> None:
    assert bounds.client_bound(1 + 1e-12, 0.0, CLIENT).value > 1
    assert bounds.gibbs_client_bound(1e-12, CLIENT).value > 0
