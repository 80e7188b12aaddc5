"""One PAC-PFL round with Gaussian-process priors, as plain NumPy: the data and the answer.

Every timed implementation gets the same `Problem` and must return the new particles of
`reference_round`, which is written for the reader (float64, one client and one particle at a
time) and is the oracle of the tests.

A particle phi is a flat vector of length d_phi: the mean network h_phi, then the kernel
network f_phi, then one raw noise value. A network is its layers in order, a layer its weight
[inputs, outputs] in row-major order and then its bias [outputs]; between layers stands tanh.
The prior of a particle is

    y ~ N(h_phi(x), K + sigma^2 I),   K_ab = exp(-|f_phi(x_a) - f_phi(x_b)|^2 / 2),
    sigma = ln(1 + exp(raw noise)).

A round is Algorithm 1 of the paper with all c clients of the problem selected and the whole
data of each in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import pdist, squareform
from scipy.special import expit

KERNEL_OUTPUTS = 2
# softplus(RAW_NOISE) = 0.4, the noise that particles start near.
RAW_NOISE = float(np.log(np.expm1(0.4)))


@dataclass(frozen=True)
class Sizes:
    """How large a round is; `hidden` are the widths of both networks."""

    particles: int
    clients: int
    samples: int
    features: int = 15
    hidden: tuple[int, ...] = (32, 32)

    @property
    def layers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(inputs, outputs) of each layer, for the mean network and for the kernel network."""
        return tuple(
            tuple(zip((self.features, *self.hidden), (*self.hidden, outputs), strict=True))
            for outputs in (1, KERNEL_OUTPUTS)
        )

    @property
    def dimension(self) -> int:
        """d_phi, the length of a particle."""
        return 1 + sum((inputs + 1) * outputs for net in self.layers for inputs, outputs in net)


# The sizes of the published table, the first being the main one.
TABLE = (
    Sizes(particles=4, clients=24, samples=150),
    Sizes(particles=4, clients=5, samples=150),
    Sizes(particles=4, clients=24, samples=10, features=1),
    Sizes(particles=16, clients=24, samples=150),
    Sizes(particles=4, clients=24, samples=610),
)


@dataclass(frozen=True)
class Problem:
    """Data of all clients, the particles before the round, and the constants of the update."""

    sizes: Sizes
    x: np.ndarray  # [c, m, features]
    y: np.ndarray  # [c, m]
    particles: np.ndarray  # [k, d_phi]
    hyper_prior_std: float = 1.0
    tau: float = 1.0
    learning_rate: float = 1e-3


class Round(NamedTuple):
    """What a round computes: ln Z per particle and client, its gradient, the new particles."""

    log_evidence: np.ndarray  # [k, c]
    gradient: np.ndarray  # [k, d_phi], of the mean of ln Z over the clients
    particles: np.ndarray  # [k, d_phi]


class Parameters(NamedTuple):
    """A particle taken apart; a network is a list of (weight [in, out], bias [out])."""

    mean: list[tuple[Any, Any]]
    kernel: list[tuple[Any, Any]]
    raw_noise: Any


def make_problem(sizes: Sizes, seed: int = 0) -> Problem:
    """Random clients that share a nonlinear trend, and particles with sensible scales."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(sizes.clients, sizes.samples, sizes.features))
    slopes = random.normal(size=sizes.features) / np.sqrt(sizes.features)
    shift = random.normal(size=(sizes.clients, 1))
    noise = 0.4 * random.normal(size=(sizes.clients, sizes.samples))
    y = np.sin(2 * x @ slopes + shift) + noise
    blocks = []
    for network in sizes.layers:
        for inputs, outputs in network:
            weight = random.normal(size=(sizes.particles, inputs * outputs)) / np.sqrt(inputs)
            bias = 0.1 * random.normal(size=(sizes.particles, outputs))
            blocks += [weight, bias]
    blocks.append(RAW_NOISE + 0.1 * random.normal(size=(sizes.particles, 1)))
    return Problem(sizes, x, y, np.concatenate(blocks, axis=1))


def take_apart(particles: Any, sizes: Sizes) -> Parameters:
    """Views of the blocks of [..., d_phi] particles; arrays of NumPy, PyTorch or JAX alike."""
    lead = tuple(particles.shape[:-1])
    start = 0

    def block(*shape: int) -> Any:
        nonlocal start
        stop = start + int(np.prod(shape))
        values = particles[..., start:stop].reshape(*lead, *shape)
        start = stop
        return values

    networks = [
        [(block(inputs, outputs), block(outputs)) for inputs, outputs in network]
        for network in sizes.layers
    ]
    return Parameters(networks[0], networks[1], block(1)[..., 0])


def reference_round(problem: Problem) -> Round:
    """One round by straight loops over particles and clients, in float64."""
    sizes = problem.sizes
    log_evidence = np.empty((sizes.particles, sizes.clients))
    gradient = np.zeros((sizes.particles, sizes.dimension))
    for j, particle in enumerate(problem.particles):
        for i, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
            log_evidence[j, i], client_gradient = log_evidence_and_gradient(particle, x, y, sizes)
            gradient[j] += client_gradient / sizes.clients
    hyper_posterior = problem.tau * gradient - problem.particles / problem.hyper_prior_std**2
    direction = svgd_direction(problem.particles, hyper_posterior)
    return Round(log_evidence, gradient, problem.particles + problem.learning_rate * direction)


def log_evidence_and_gradient(
    particle: np.ndarray, x: np.ndarray, y: np.ndarray, sizes: Sizes
) -> tuple[float, np.ndarray]:
    """ln Z = ln N(y | h, C) with C = K + sigma^2 I, and its gradient in the flat particle.

    With alpha = C^-1 (y - h): d ln Z / dh = alpha and d ln Z / dC = (alpha alpha^T - C^-1) / 2.
    """
    parameters = take_apart(particle, sizes)
    mean_inputs, mean = _forward(parameters.mean, x)
    kernel_inputs, z = _forward(parameters.kernel, x)
    sigma = np.logaddexp(0.0, parameters.raw_noise)
    difference = z[:, None, :] - z[None, :, :]  # [m, m, 2]
    kernel = np.exp(-0.5 * np.sum(difference**2, axis=-1))
    factor = cho_factor(kernel + sigma**2 * np.eye(len(y)), lower=True)
    residual = y - mean[:, 0]
    alpha = cho_solve(factor, residual)
    log_determinant = 2.0 * np.sum(np.log(np.diag(factor[0])))
    log_evidence = -0.5 * (residual @ alpha + log_determinant + len(y) * np.log(2.0 * np.pi))

    by_covariance = 0.5 * (np.outer(alpha, alpha) - cho_solve(factor, np.eye(len(y))))
    # z_a stands in row a and in column a of the symmetric K: hence the factor 2.
    by_z = -2.0 * np.einsum("ab,abo->ao", by_covariance * kernel, difference)
    by_raw_noise = 2.0 * sigma * expit(parameters.raw_noise) * np.trace(by_covariance)
    gradient = [
        *_backward(parameters.mean, mean_inputs, alpha[:, None]),
        *_backward(parameters.kernel, kernel_inputs, by_z),
        np.array([by_raw_noise]),
    ]
    return float(log_evidence), np.concatenate(gradient)


def svgd_direction(particles: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Algorithm 1, last box: (1/k) sum_l [k(l, j) score_l + gradient of k(l, j) in phi_l].

    k(a, b) = exp(-|a - b|^2 / h) with h = median of |a - b|^2 over the pairs of different
    particles, divided by ln(k + 1); h is not differentiated. A lone particle follows its score.
    """
    count = len(particles)
    pairs = pdist(particles, "sqeuclidean")
    median = float(np.median(pairs)) if count > 1 else 0.0
    # Between equal particles any bandwidth will do, but not 0 / 0.
    bandwidth = median / np.log(count + 1) if median > 0.0 else 1.0
    kernel = np.exp(-squareform(pairs) / bandwidth)
    direction = np.zeros_like(particles)
    for j in range(count):
        for other in range(count):
            repulsion = 2.0 / bandwidth * (particles[j] - particles[other])
            direction[j] += kernel[other, j] * (scores[other] + repulsion) / count
    return direction


def _forward(network: list[tuple[Any, Any]], x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The input of each layer, and the output of the last."""
    inputs = [x]
    for weight, bias in network[:-1]:
        inputs.append(np.tanh(inputs[-1] @ weight + bias))
    weight, bias = network[-1]
    return inputs, inputs[-1] @ weight + bias


def _backward(
    network: list[tuple[Any, Any]], inputs: list[np.ndarray], by_output: np.ndarray
) -> list[np.ndarray]:
    """Gradient in weights and biases, flat and in the particle's order, by the chain rule."""
    blocks: list[np.ndarray] = []
    for (weight, _), values in zip(reversed(network), reversed(inputs), strict=True):
        blocks = [(values.T @ by_output).ravel(), by_output.sum(axis=0), *blocks]
        by_output = (by_output @ weight.T) * (1.0 - values**2)
    return blocks
