"""The least a round can cost: its arithmetic, and the memory it must touch.

Every scalar addition, multiplication, division, square root, exponential and tanh of the plain
algorithm with the analytic gradient counts as one operation; symmetric matrices are computed once.
Of memory only what must come from and go to the main memory counts: data in, particles in and out.
Everything between can stay in a cache as long as one matrix fits, because clients and particles
can be done one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.problem import KERNEL_OUTPUTS, Sizes

WORD = 4  # bytes of a float32


class Ceiling(NamedTuple):
    """What the machine was measured to do in the same run."""

    operations_per_second: float  # of a large float32 matrix product
    bytes_per_second: float  # of copying a large array


def floor_seconds(sizes: Sizes, ceiling: Ceiling) -> float:
    """All arithmetic at the speed of a matrix product, or all traffic: whichever takes longer."""
    return max(
        operations(sizes) / ceiling.operations_per_second,
        traffic(sizes) / ceiling.bytes_per_second,
    )


def operations(sizes: Sizes) -> int:
    """c k (networks + kernel + factorisation + gradient) + sums over clients + SVGD."""
    k, c, d = sizes.particles, sizes.clients, sizes.dimension
    networks = sum(network_operations(net, sizes.samples) for net in sizes.layers)
    return (
        c * k * (networks + evidence_operations(sizes.samples))
        + (c - 1) * k * d
        + (svgd_operations(k, d))
    )


def traffic(sizes: Sizes) -> int:
    """Bytes: every sample once, every particle once in and once out."""
    samples = sizes.clients * sizes.samples * (sizes.features + 1)
    return WORD * (samples + 2 * sizes.particles * sizes.dimension)


def matrix_bytes(sizes: Sizes) -> int:
    """Bytes of all kernel matrices: what an implementation that keeps them all would hold."""
    return WORD * sizes.clients * sizes.particles * sizes.samples**2


def network_operations(layers: tuple[tuple[int, int], ...], m: int) -> int:
    """Forward, and backward in weights and biases, for m inputs of one network with tanh."""
    total = 0
    for index, (inputs, outputs) in enumerate(layers):
        total += m * outputs * 2 * inputs  # products, their sum, bias
        total += inputs * outputs * (2 * m - 1) + outputs * (m - 1)  # gradient
        if index > 0:  # tanh before this layer, and the gradient through it: g (1 - t^2)
            total += m * inputs + m * inputs * (2 * outputs - 1) + 3 * m * inputs
    return total


def evidence_operations(m: int) -> int:
    """ln Z and its gradient in mean, kernel features and noise, for one m x m covariance.

    The Cholesky factor, its inverse and the product of that with its transpose cost
    m (m + 1) (2 m + 1) / 6 each: together about m^3.
    """
    pairs, q = m * (m - 1) // 2, KERNEL_OUTPUTS
    kernel = pairs * (3 * q + 1) + m  # exp(-|difference|^2 / 2), noise on the diagonal
    factors = m * (m + 1) * (2 * m + 1) // 2
    alpha = m + m * (2 * m - 1)  # residual, product with the inverse
    density = 2 * m + 2 * m + 2  # r^T alpha, sum of logarithms, and together
    by_covariance = 2 * pairs + 2 * m + m  # alpha alpha^T - C^-1, and its trace
    by_features = pairs * (1 + q + 2 * q)  # times K, times the difference, added to both ends
    return kernel + factors + alpha + density + by_covariance + by_features


def svgd_operations(k: int, d: int) -> int:
    """Scores, pairwise distances, kernel, direction and step of k particles."""
    pairs = k * (k - 1) // 2
    kernel = pairs * (3 * d - 1 + 2)
    row_sums = k * (k - 1) + k
    return 3 * k * d + kernel + row_sums + 2 * k * d + k * d * (2 * k - 1) + 2 * k * d + 2 * k * d
