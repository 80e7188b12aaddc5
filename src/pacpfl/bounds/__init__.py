"""The paper's theorems as functions. `docs/theory.md` says what each needs and what we found."""

from pacpfl.bounds.bound import Bound
from pacpfl.bounds.client import ClientPremises, client_bound, gibbs_client_bound
from pacpfl.bounds.conditions import (
    Condition,
    beta_condition,
    consistency,
    lambda_condition,
    non_vacuous_loss,
    non_vacuous_privacy,
)
from pacpfl.bounds.divergences import (
    Bracket,
    diagonal_gaussian_kl,
    gaussian_kl,
    gaussian_process_kl,
    mixture_kl,
    mixture_log_evidence,
    optimal_hyper_kl,
    particle_cloud_kl,
)
from pacpfl.bounds.entropy import lagrangian, participation, participation_margin
from pacpfl.bounds.newcomers import new_client_bound, optimal_new_client_bound
from pacpfl.bounds.partition import LogPartition, log_partition
from pacpfl.bounds.privacy_cost import privacy_cost, sampling_epsilon
from pacpfl.bounds.server import (
    ServerPremises,
    lambda_from_tau,
    later_factor,
    later_range,
    optimal_hyper_posterior,
    optimal_server_bound,
    server_bound,
    tau_from_lambda,
)

__all__ = [
    "Bound",
    "Bracket",
    "ClientPremises",
    "Condition",
    "LogPartition",
    "ServerPremises",
    "beta_condition",
    "client_bound",
    "consistency",
    "diagonal_gaussian_kl",
    "gaussian_kl",
    "gaussian_process_kl",
    "gibbs_client_bound",
    "lagrangian",
    "lambda_condition",
    "lambda_from_tau",
    "later_factor",
    "later_range",
    "log_partition",
    "mixture_kl",
    "mixture_log_evidence",
    "new_client_bound",
    "non_vacuous_loss",
    "non_vacuous_privacy",
    "optimal_hyper_kl",
    "optimal_hyper_posterior",
    "optimal_new_client_bound",
    "optimal_server_bound",
    "participation",
    "participation_margin",
    "particle_cloud_kl",
    "privacy_cost",
    "sampling_epsilon",
    "server_bound",
    "tau_from_lambda",
]
