"""The round in GPyTorch, in two ways that both make the particles one batch and loop over clients.

`as_pacoh`, the reference of the table, is how the closest public peer does it: see `pacoh_round`.
`tuned` is what a patient user could make of it: what a training loop need not repeat is done once
(models are built with the data), inputs are shared by the particles, checks meant for debugging
are off, and the SVGD step is the one of `torch_round`. Both factor by Cholesky, GPyTorch's own
choice up to 800 samples.
"""

# GPyTorch has no type information.
# mypy: disable-error-code="import-untyped, misc"

from __future__ import annotations

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn import Module, Parameter, ParameterList
from torch.nn.functional import softplus

from benchmarks import pacoh_round
from benchmarks.pacoh_round import UnitSquaredExponential
from benchmarks.problem import Problem, take_apart
from benchmarks.torch_round import Gradient, Network, Step, make_step

VARIANTS = ("as_pacoh", "tuned")


def make_round(problem: Problem, dtype: str, threads: int, variant: str = "as_pacoh") -> Step:
    """`step(particles)` gives the particles after one round; data are converted here, once."""
    if variant == "as_pacoh":
        return pacoh_round.make_round(problem, dtype, threads)
    return make_step(problem, dtype, threads, _tuned_gradient(problem, dtype))


def make_gradient(problem: Problem, dtype: str, variant: str = "as_pacoh") -> Gradient:
    """ln Z and its gradient, client after client; the particles are one batch."""
    if variant == "as_pacoh":
        return pacoh_round.make_gradient(problem, dtype)
    return _tuned_gradient(problem, dtype)


class BatchedNetwork(Module):
    """k networks with tanh between layers, applied to the same inputs: [m, in] -> [k, m, out]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.weights = ParameterList([Parameter(weight) for weight, _ in network])
        self.biases = ParameterList([Parameter(bias) for _, bias in network])

    def forward(self, x: Tensor) -> Tensor:
        values = x.expand(len(self.weights[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias[:, None], values, weight)
            if layer < len(self.weights) - 1:
                values = values.tanh()
        return values

    def ordered(self) -> list[Parameter]:
        """Parameters in the order of the flat particle."""
        return [
            parameter
            for layer in zip(self.weights, self.biases, strict=True)
            for parameter in layer
        ]


class ClientModel(gpytorch.models.ExactGP):
    """The priors of all particles over one client's data; the networks belong to all clients."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: GaussianLikelihood,
        mean_network: BatchedNetwork,
        kernel_network: BatchedNetwork,
    ) -> None:
        super().__init__(x, y, likelihood)
        self.mean_network = mean_network
        self.kernel_network = kernel_network
        self.covariance = UnitSquaredExponential()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(
            self.mean_network(x)[..., 0], self.covariance(self.kernel_network(x))
        )


def _tuned_gradient(problem: Problem, dtype: str) -> Gradient:
    """Everything that a training loop need not repeat is done here, before the first round."""
    sizes = problem.sizes
    precision = getattr(torch, dtype)
    # The modules' parameters are views of one flat tensor, so that one copy sets them all.
    flat = torch.as_tensor(problem.particles, dtype=precision).clone()
    parameters = take_apart(flat, sizes)
    mean_network = BatchedNetwork(parameters.mean)
    kernel_network = BatchedNetwork(parameters.kernel)
    likelihood = GaussianLikelihood(
        noise_constraint=Positive(
            transform=lambda raw: softplus(raw).square(),
            inv_transform=lambda variance: variance.sqrt().expm1().log(),
        ),
        batch_shape=torch.Size([sizes.particles]),
    )
    raw_noise = Parameter(parameters.raw_noise[:, None])
    likelihood.noise_covar.raw_noise = raw_noise
    leaves = [*mean_network.ordered(), *kernel_network.ordered(), raw_noise]
    clients = []
    for x, y in zip(problem.x, problem.y, strict=True):
        inputs, targets = (torch.as_tensor(values, dtype=precision) for values in (x, y))
        model = ClientModel(inputs, targets, likelihood, mean_network, kernel_network)
        clients.append((model, ExactMarginalLogLikelihood(likelihood, model), inputs, targets))

    def gradient(particles: Tensor) -> tuple[Tensor, Tensor]:
        flat.copy_(particles)
        with gpytorch.settings.debug(False), gpytorch.settings.max_cholesky_size(10_000):
            # GPyTorch divides the log likelihood by the number of samples.
            log_evidence = sizes.samples * torch.stack(
                [likelihood_of(model(x), y) for model, likelihood_of, x, y in clients], dim=-1
            )
            blocks = torch.autograd.grad(log_evidence.mean(dim=-1).sum(), leaves)
        by_particle = torch.cat([block.flatten(1) for block in blocks], dim=1)
        return log_evidence.detach(), by_particle

    return gradient
