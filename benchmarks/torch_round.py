"""The round in PyTorch, batched by hand over clients x particles: the strongest eager peer.

Three ways to the gradient, all with the same result:

- `analytic` factors every covariance once and uses alpha = C^-1 (y - h), d ln Z / dh = alpha,
  d ln Z / dC = (alpha alpha^T - C^-1) / 2, so that only the networks are left to differentiate,
  which is written out too. All clients and particles are one batch, and PyTorch divides the
  work inside each operation.
- `threaded` does the same, but deals the clients to workers that run at the same time, each on
  one thread: LAPACK gains little from two threads on one small matrix, so this is the faster
  way wherever the matrices are not tiny.
- `autodiff` lets PyTorch differentiate the log evidence, factorisation and all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pdist, softplus

from benchmarks.problem import Problem, take_apart

Network = list[tuple[Tensor, Tensor]]
# particles [k, d_phi] -> ln Z [k, c] and the gradient [k, d_phi] of its mean over the clients
Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]
Step = Callable[[Any], Tensor]

METHODS = ("analytic", "threaded", "autodiff")


def make_round(problem: Problem, dtype: str, threads: int, method: str = "analytic") -> Step:
    """`step(particles)` gives the particles after one round; data are converted here, once."""
    gradient = make_gradient(problem, dtype, threads, method)
    # PyTorch's own second thread would spin for a while after the SVGD step, in a worker's way.
    return make_step(problem, dtype, 1 if method == "threaded" else threads, gradient)


def make_gradient(problem: Problem, dtype: str, threads: int, method: str) -> Gradient:
    """The clients' part of a round by one of `METHODS`."""
    if method == "threaded":
        return _threaded(problem, dtype, threads)
    return {"analytic": _analytic, "autodiff": _autodiff}[method](problem, dtype)


def make_step(problem: Problem, dtype: str, threads: int, gradient: Gradient) -> Step:
    """Client gradients, then the hyper-prior and the SVGD step of Algorithm 1."""

    def step(particles: Any) -> Tensor:
        # The number of threads is one setting per process, and the harness takes turns.
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        old = torch.as_tensor(particles, dtype=getattr(torch, dtype))
        _, by_particle = gradient(old)
        with torch.no_grad():
            scores = torch.sub(
                problem.tau * by_particle, old, alpha=1.0 / problem.hyper_prior_std**2
            )
            return torch.add(old, svgd_direction(old, scores), alpha=problem.learning_rate)

    return step


def svgd_direction(particles: Tensor, scores: Tensor) -> Tensor:
    """Same formula as `problem.svgd_direction`, as one product with the k x k kernel."""
    count = len(particles)
    if count == 1:
        return scores
    pairs = pdist(particles).square()
    median = torch.quantile(pairs, 0.5)
    # Between equal particles any bandwidth will do, but not 0 / 0.
    rate = torch.where(median > 0.0, math.log(count + 1) / median, 1.0)
    squared = pairs.new_zeros(count, count)
    rows, columns = torch.triu_indices(count, count, offset=1)
    squared[rows, columns] = pairs
    kernel = torch.exp(-rate * (squared + squared.T))
    # Only differences count; measured from the centre they lose no digits.
    away = 2.0 * rate * (particles - particles.mean(dim=0))
    return (kernel @ (scores - away) + kernel.sum(dim=1, keepdim=True) * away) / count


def _analytic(problem: Problem, dtype: str) -> Gradient:
    """ln Z and its gradient by formulas: one Cholesky factorisation, one inverse, no tape.

    The large matrices live in buffers made once: asking the system for fresh memory in every
    round costs a good part of its time. LAPACK wants columns side by side, which for a
    symmetric matrix is the same as rows side by side: `.mT` saves PyTorch the transposition.
    """
    sizes = problem.sizes
    k, c, m = sizes.particles, sizes.clients, sizes.samples
    x, y = _data(problem, dtype)
    constant = m * math.log(2.0 * math.pi)
    kernel, covariance, factor_rows = (x.new_empty(k * c, m, m) for _ in range(3))

    @torch.no_grad()
    def gradient(particles: Tensor) -> tuple[Tensor, Tensor]:
        mean_network, kernel_network, raw_noise = take_apart(particles, sizes)
        mean_inputs, mean = _forward(mean_network, x)
        kernel_inputs, z = _forward(kernel_network, x)
        z = z.view(k * c, m, -1)
        sigma = softplus(raw_noise)
        torch.bmm(*_exponent_factors(z), out=kernel).exp_()
        covariance.copy_(kernel)
        _diagonal(covariance).view(k, c, m).add_(sigma.square()[:, None, None])
        factor = torch.linalg.cholesky(covariance.mT, out=factor_rows.mT)
        residual = (y - mean.view(k, c, m)).view(k * c, m)
        alpha = torch.cholesky_solve(residual[..., None], factor)
        log_evidence = -0.5 * ((residual * alpha[..., 0]).sum(dim=-1) + constant)
        log_evidence -= _diagonal(factor).log().sum(dim=-1)

        inverse = torch.cholesky_inverse(factor, out=covariance.mT).mT
        # twice d ln Z / dC, whose trace gives the noise and whose product with K gives z
        by_covariance = inverse.baddbmm_(alpha, alpha.mT, beta=-1.0)
        trace = _diagonal(by_covariance).reshape(k, c * m).sum(dim=-1)
        by_raw_noise = trace * sigma * torch.sigmoid(raw_noise) / c
        weights = by_covariance.mul_(kernel)
        by_z = weights @ z - weights.sum(dim=-1, keepdim=True) * z
        blocks = [
            *_backward(mean_network, mean_inputs, alpha.view(k, c * m, 1) / c),
            *_backward(kernel_network, kernel_inputs, by_z.view(k, c * m, -1) / c),
            by_raw_noise[:, None],
        ]
        return log_evidence.view(k, c), torch.cat(blocks, dim=1)

    return gradient


def _threaded(problem: Problem, dtype: str, threads: int) -> Gradient:
    """`_analytic` on equal shares of the clients, one single-threaded worker for each share."""
    clients = problem.sizes.clients
    shares = np.array_split(np.arange(clients), min(threads, clients))
    parts = [
        _analytic(
            replace(
                problem,
                sizes=replace(problem.sizes, clients=len(share)),
                x=problem.x[share],
                y=problem.y[share],
            ),
            dtype,
        )
        for share in shares
    ]
    # The number of threads inside an operation is a setting of the calling thread.
    workers = ThreadPoolExecutor(len(parts), initializer=torch.set_num_threads, initargs=(1,))

    def gradient(particles: Tensor) -> tuple[Tensor, Tensor]:
        results = list(workers.map(lambda part: part(particles), parts))
        by_particle = sum(
            (len(share) / clients) * by_share
            for share, (_, by_share) in zip(shares, results, strict=True)
        )
        assert isinstance(by_particle, Tensor)
        return torch.cat([log_evidence for log_evidence, _ in results], dim=1), by_particle

    return gradient


def _autodiff(problem: Problem, dtype: str) -> Gradient:
    """ln Z of all clients and particles in one expression, differentiated by PyTorch."""
    sizes = problem.sizes
    k, c, m = sizes.particles, sizes.clients, sizes.samples
    x, y = _data(problem, dtype)
    constant = m * math.log(2.0 * math.pi)
    identity = torch.eye(m, dtype=x.dtype)

    def gradient(particles: Tensor) -> tuple[Tensor, Tensor]:
        particles = particles.detach().requires_grad_()
        mean_network, kernel_network, raw_noise = take_apart(particles, sizes)
        mean = _forward(mean_network, x)[1].view(k, c, m)
        z = _forward(kernel_network, x)[1].view(k, c, m, -1)
        left, right = _exponent_factors(z)
        variance = softplus(raw_noise).square()[:, None, None, None]
        factor = torch.linalg.cholesky(torch.exp(left @ right) + variance * identity)
        white = torch.linalg.solve_triangular(factor, (y - mean)[..., None], upper=False)
        log_evidence = -0.5 * (white.square().sum(dim=(-1, -2)) + constant)
        log_evidence = log_evidence - _diagonal(factor).log().sum(dim=-1)
        (by_particle,) = torch.autograd.grad(log_evidence.mean(dim=1).sum(), particles)
        return log_evidence.detach(), by_particle

    return gradient


def _data(problem: Problem, dtype: str) -> tuple[Tensor, Tensor]:
    """x as [c * m, features], since the networks do not care whose sample it is; y as [c, m]."""
    x = torch.as_tensor(problem.x, dtype=getattr(torch, dtype)).flatten(0, 1).contiguous()
    return x, torch.as_tensor(problem.y, dtype=getattr(torch, dtype))


def _exponent_factors(z: Tensor) -> tuple[Tensor, Tensor]:
    """A [.., m, 4] and B [.., 4, m] with A B = -|z_a - z_b|^2 / 2."""
    centred = z - z.mean(dim=-2, keepdim=True)  # smaller norms: less cancels in float32
    half = -0.5 * centred.square().sum(dim=-1, keepdim=True)
    one = torch.ones_like(half)
    return torch.cat([centred, half, one], dim=-1), torch.cat([centred, one, half], dim=-1).mT


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _forward(network: Network, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The input of each layer, and the output of the last, of all k networks: [k, c * m, out]."""
    values = x.expand(len(network[0][0]), *x.shape)
    inputs = []
    for layer, (weight, bias) in enumerate(network):
        inputs.append(values)
        values = torch.baddbmm(bias[:, None], values, weight)
        if layer < len(network) - 1:
            values = values.tanh()
    return inputs, values


def _backward(network: Network, inputs: list[Tensor], by_output: Tensor) -> list[Tensor]:
    """Gradient in weights and biases, flat and in the particle's order, by the chain rule."""
    blocks: list[Tensor] = []
    for layer in reversed(range(len(network))):
        values = inputs[layer]
        blocks = [(values.mT @ by_output).flatten(1), by_output.sum(dim=1), *blocks]
        if layer > 0:
            by_input = by_output @ network[layer][0].mT
            by_output = torch.ops.aten.tanh_backward(by_input, values)
    return blocks
