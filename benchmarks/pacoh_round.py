"""GPyTorch used as the closest public peer uses it: the reference of the speed table.

The peer is the code of Rothfuss et al. (PACOH; repository jonasrothfuss/meta_learning_pacoh,
folder `meta_learn`, `svgd.py` read in its earlier place `src`). The particles are one batch, a
loop goes over the clients (there: tasks). What it does in every step is done here too:

- `GPR_meta_svgd.py`: data are float32; in every step each task's x and y are tiled over the
  particles with `repeat`, so that x is [k, m, features] and y is [k, m].
- `random_gp.py`: in every step the template of the model is deep-copied once and its parameters
  are set to slices of the flat particles; then, for every task, a new kernel, a new likelihood, a
  new `ExactGP` and a new `ExactMarginalLogLikelihood` are made. The forward pass also applies
  the likelihood to the prior, a result that the caller drops. The marginal log likelihoods, one
  [k] vector per task, are stacked and summed, and the log density of the hyper-prior, one
  independent normal per block of parameters, is added.
- `models.py`: networks are `bmm` plus bias with tanh between; kernel and likelihood hold the
  particles' values as plain tensors, not as parameters; the kernel is the exponential of
  GPyTorch's own squared distances.
- `svgd.py`: PyTorch differentiates the whole log density in the particles, and then the sum of
  the SVGD kernel matrix, whose distances come from matrix products and whose bandwidth is a
  median taken by NumPy; minus the direction is put into `particles.grad` for a torch optimiser.
- No setting of GPyTorch is touched: Cholesky up to 800 samples, jitter only after a failure,
  checks for debugging on.

What the peer does and this round does not ask for is left out, in its favour: length and output
scales, and Adam instead of SGD.
"""

# GPyTorch has no type information, and parts of PyTorch have none.
# mypy: disable-error-code="import-untyped, misc, no-untyped-call"

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import _HomoskedasticNoiseBase
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.nn.functional import softplus

from benchmarks.problem import Problem, Sizes, take_apart
from benchmarks.torch_round import Gradient, Network, Step


def make_round(problem: Problem, dtype: str, threads: int) -> Step:
    """The score and the repulsion by automatic differentiation, the step by a torch optimiser."""
    sizes, precision = problem.sizes, getattr(torch, dtype)
    log_evidence = _log_evidence(problem, dtype)
    lengths = [
        n for net in sizes.layers for inputs, outputs in net for n in (inputs * outputs, outputs)
    ]
    lengths.append(1)
    hyper_prior = [
        Independent(
            Normal(
                torch.zeros(length, dtype=precision),
                torch.full((length,), problem.hyper_prior_std, dtype=precision),
            ),
            1,
        )
        for length in lengths
    ]
    particles = torch.zeros(sizes.particles, sizes.dimension, dtype=precision)
    optimizer = torch.optim.SGD([particles], lr=problem.learning_rate)

    def direction() -> Tensor:
        leaf = particles.detach().requires_grad_()
        blocks = leaf.split(lengths, dim=1)
        log_prior = torch.stack(
            [prior.log_prob(block) for prior, block in zip(hyper_prior, blocks, strict=True)]
        ).sum(dim=0)
        log_density = log_prior + problem.tau * log_evidence(leaf).mean(dim=-1)
        (score,) = torch.autograd.grad(log_density.sum(), leaf)
        kernel = _svgd_kernel(leaf, leaf.detach())
        (gradient,) = torch.autograd.grad(kernel.sum(), leaf)
        # k(a, b) depends on a - b: its gradient in b is minus the one in a.
        return (kernel.detach() @ score - gradient) / len(leaf)

    def step(start: Any) -> Tensor:
        # The number of threads is one setting per process, and the harness takes turns.
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        particles.copy_(torch.as_tensor(start))
        optimizer.zero_grad()
        particles.grad = -direction()
        optimizer.step()
        return particles.clone()

    return step


def make_gradient(problem: Problem, dtype: str) -> Gradient:
    """ln Z and its gradient, client after client."""
    log_evidence = _log_evidence(problem, dtype)

    def gradient(particles: Tensor) -> tuple[Tensor, Tensor]:
        leaf = particles.detach().requires_grad_()
        values = log_evidence(leaf)
        (by_particle,) = torch.autograd.grad(values.mean(dim=-1).sum(), leaf)
        return values.detach(), by_particle

    return gradient


def _log_evidence(problem: Problem, dtype: str) -> Callable[[Tensor], Tensor]:
    """particles [k, d_phi] -> ln Z [k, c], to be differentiated by PyTorch."""
    sizes, precision = problem.sizes, getattr(torch, dtype)
    clients = [
        (torch.as_tensor(x, dtype=precision), torch.as_tensor(y, dtype=precision))
        for x, y in zip(problem.x, problem.y, strict=True)
    ]
    template = Template(sizes, precision)
    k = sizes.particles

    def log_evidence(particles: Tensor) -> Tensor:
        tiled = [(x[None].repeat(k, 1, 1), y[None].repeat(k, 1)) for x, y in clients]
        model = copy.deepcopy(template)
        model.set(particles)
        # GPyTorch divides the log likelihood by the number of samples.
        return sizes.samples * torch.stack([model.log_likelihood(x, y) for x, y in tiled], dim=-1)

    return log_evidence


class UnitSquaredExponential(Kernel):
    """exp(-|a - b|^2 / 2): GPyTorch's RBF kernel without the length scale it would divide by."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **options: object) -> Tensor:
        squared: Tensor = self.covar_dist(x1, x2, square_dist=True, diag=diag, **options)
        return squared.div(-2.0).exp()


class GivenNoise(_HomoskedasticNoiseBase):
    """Noise whose variance [k, 1] is a tensor that depends on the particles, not a parameter."""

    def __init__(self, variance: Tensor) -> None:
        super(_HomoskedasticNoiseBase, self).__init__()  # which would make a parameter
        self.variance = variance

    @property
    def noise(self) -> Tensor:
        return self.variance


class Template:
    """The model that every step copies: k networks for the mean, k for the kernel, k noises."""

    def __init__(self, sizes: Sizes, precision: torch.dtype) -> None:
        self.sizes = sizes
        self.set(torch.zeros(sizes.particles, sizes.dimension, dtype=precision))

    def set(self, particles: Tensor) -> None:
        self.mean, self.kernel, self.raw_noise = take_apart(particles, self.sizes)

    def log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """The marginal log likelihood per sample of one client, [k], by new objects."""
        likelihood = _GaussianLikelihoodBase(
            noise_covar=GivenNoise(softplus(self.raw_noise).square()[:, None])
        )
        model = ClientModel(x, y, likelihood, self.mean, self.kernel)
        objective = ExactMarginalLogLikelihood(likelihood, model)
        output = model(x)
        likelihood(output)  # the peer asks for it, and uses only what follows
        result: Tensor = objective(output, y)
        return result


class ClientModel(gpytorch.models.ExactGP):
    """The priors of all particles over one client's tiled data; it lives for one step."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: _GaussianLikelihoodBase,
        mean_network: Network,
        kernel_network: Network,
    ) -> None:
        super().__init__(x, y, likelihood)
        self.networks = (mean_network, kernel_network)
        self.covariance = UnitSquaredExponential(batch_shape=torch.Size([len(x)]))

    def forward(self, x: Tensor) -> MultivariateNormal:
        mean, features = (_apply(network, x) for network in self.networks)
        return MultivariateNormal(mean[..., 0], self.covariance(features))


def _apply(network: Network, values: Tensor) -> Tensor:
    for layer, (weight, bias) in enumerate(network):
        values = torch.bmm(values, weight) + bias[:, None, :]
        if layer < len(network) - 1:
            values = torch.tanh(values)
    return values


def _svgd_kernel(a: Tensor, b: Tensor) -> Tensor:
    """exp(-|a_i - b_j|^2 / h) with the bandwidth of `problem.svgd_direction`."""
    count = len(a)
    squared = (a @ a.T).diag()[:, None] + (b @ b.T).diag()[None, :] - 2.0 * (a @ b.T)
    pairs = squared.detach().numpy()[np.triu_indices(count, 1)]
    bandwidth = float(np.median(pairs)) / math.log(count + 1) if count > 1 else 1.0
    return torch.exp(-squared / (1e-8 + bandwidth))
