"""pFedGP (Achituve, Shamsian, Navon, Chechik & Fetaya 2021): one Gaussian-process prior for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from pacpfl import hyper
from pacpfl.linalg import factorise, gaussian_log_density
from pacpfl.methods.base import Nothing, Weights, mini_batch
from pacpfl.methods.network import Downhill, State, Update, combine, server_step
from pacpfl.methods.settings import PFedGPSettings
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.priors.networks import Network
from pacpfl.tiles import matmul, split, transpose
from pacpfl.types import Data, Probabilities

ABSENT = 1e-6
POWER_STEPS = 30  # of the power method: the classes' order settles before the vector does
# Expectations under N(0, 1) by equal steps: the integrand is analytic, so the error falls faster than
# any power. Below 1e-6 for variances of f up to 25, where Gauss-Hermite with as many points has 1e-4.
NODES = np.linspace(-6.5, 6.5, 64)
LOG_WEIGHTS = -0.5 * NODES**2 - np.log(np.exp(-0.5 * NODES**2).sum())

Parameters = Float[Array, " size"]  # of the network, and behind them ln v and ln l
Each = Float[Array, " m"]  # a number for each sample
Square = Float[Array, "m m"]


@dataclass(frozen=True)
class PFedGP(Downhill):
    """For regression.

    All clients share one prior, a Gaussian process with a deep kernel, and condition it on their
    own samples. It is learned so that it explains each of them:

        maximise over phi the mean over clients of ln Z(P_phi, S_i).

    The original is a classifier; for regression, here:
    - Gaussian noise, learned with the kernel: the evidence is closed form, without inducing points
      and augmentation.
    - The mean function is the prior's: `zero` is the original's, the PAC-PFL paper also tries a
      network.
    - Clients send gradients, and the server takes the step with any optimiser. So it is the special
      case of PAC-PFL that its paper names: one particle, a flat hyper-prior, tau = 1 and the mean
      over clients. With the sum of n clients PAC-PFL's gradients are n tau times as large.
    - A batch's log-likelihood is scaled to all m_i samples, as printed for PAC-PFL.
    - Weights start as one draw of N(0, initial_std^2), all else where the prior's own blocks are
      centred: one particle has nothing to gain from a bad draw.
    """

    prior: Prior
    optimizer: optax.GradientTransformation
    batch: int | None = None  # None: all samples
    initial_std: float = 0.5

    watched = "log_evidence"

    def init(self, key: Array, example: Data) -> State:
        blocks = [b if b.std is None else b._replace(std=0.0) for b in self.prior.blocks]
        start = hyper.hyper_prior(blocks, self.initial_std, example.x.dtype)
        return self.begin(hyper.sample(key, start, 1)[0])

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        samples, batch = data.mask.sum(), mini_batch(key, data, self.batch)
        temperature = (samples / batch.mask.sum()).astype(data.x.dtype)
        log_evidence, gradient = jax.value_and_grad(self.prior.log_evidence)(
            state.parameters, batch, temperature
        )
        return Update(-gradient, log_evidence / samples), ()

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        combined = combine(updates.gradient, weights)
        used = (weights > 0) & jnp.isfinite(updates.gradient).all(1)
        share = jnp.where(used, weights, 0)
        share = share / jnp.where(used.any(), share.sum(), 1)
        mean = share @ jnp.where(used[:, None], updates.gradient, 0)
        return server_step(self.optimizer, state, combined._replace(mean=mean))

    def personalize(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel:
        return personal_model(self.prior, state.parameters[None], data, "uniform")


class Samples(NamedTuple):
    """A client's samples as its tree sees them."""

    features: Float[Array, "m f"]
    members: Float[Array, "m classes"]  # 1 where a sample is of the class; padding: 0
    tree: ClassTree
    kernels: Float[Array, "levels m m"]  # zero between samples of different nodes
    sides: Float[Array, "levels m"]  # -1 or +1; 0 where there is nothing to decide


@dataclass(frozen=True)
class PFedGPClassify(Downhill):
    """For classification, without inducing points.

    All clients share a network g and a kernel on its output; a client's own model is a tree of binary
    Gaussian-process classifiers (`class_tree`) with Polya-Gamma augmentation (`fit`), conditioned on
    its own samples.

        k(x, x') = v exp(-|u(x) - u(x')|^2 / (2 l^2)),   u(x) = g(x) / |g(x)|,

        client:  gradient of its objective by the network's parameters, ln v and ln l
        server:  the clients' mean, and one step of any optimiser.

    With one local step of plain gradient descent, the original's setting, averaging networks is the
    same. A client's objective is

    - `predictive`, the default of the authors' code: the mean of ln p(y_j | x_j, support) over a
      random half of each class, the other half being the support;
    - `marginal`, the paper's derivation: 1/m times the lower bound on ln p(y | x). It rewards a
      kernel under which classes of one side of a node look alike, whatever their own difference: on
      handwritten digits (30 writers, 20 samples each, a network of 64 and 32 units, 1,500 rounds)
      it ended with 57% correct of the test samples whose class the writer had, the first with 88%.

    In every round each client's tree is built anew, by the `similarity` of its classes as the
    features are then, as in the original, or by their `number` (91% of those digits).

    Where this departs from the original, and why:
    - Mean-field updates instead of Gibbs chains, and a tree of halves instead of 2-means: see below.
    - A node counts by the sum over its samples, so that the nodes' sum is the likelihood of the
      samples; the authors' code takes each node's mean.
    - v and l are learned; the authors' code keeps them at 8 and 1 (our initial values; 77% if kept).
    - The probability of a side is E[sigma(f)]; the authors' code takes exp E[ln sigma(f)].
    - A class of which the client has no sample gets the probability `ABSENT`, not 0, so that a
      log-likelihood stays finite.

    A client costs log2(classes) factorisations of m x m per iteration; `support` bounds m.
    """

    network: Network  # its outputs are the features
    classes: int
    optimizer: optax.GradientTransformation
    settings: PFedGPSettings = PFedGPSettings()

    watched = "log_evidence"

    def init(self, key: Array, example: Data) -> State:
        own = self.settings
        kernel = jnp.array([math.log(own.kernel_variance), math.log(own.kernel_length)])
        start = jnp.concatenate([self.network.initial(key), kernel]).astype(example.x.dtype)
        return self.begin(start)

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        support_key, half_key = jax.random.split(key)
        data = mini_batch(support_key, data, self.settings.support or None)

        def objective(parameters: Array) -> Array:
            if self.settings.objective == "predictive":
                return self.log_predictive(parameters, data, half_key)
            return self.log_evidence_bound(parameters, data) / data.mask.sum()

        value, gradient = jax.value_and_grad(objective)(state.parameters)
        return Update(-gradient, value), ()

    def log_evidence_bound(self, parameters: Parameters, data: Data) -> Float[Array, ""]:
        """The bound on ln p(y | x) of the client's tree: the sum of its nodes' bounds."""
        samples = self.samples(parameters, data)
        scales = fit_levels(samples.kernels, samples.sides, self.settings.iterations)
        return jax.vmap(log_evidence_bound)(samples.kernels, samples.sides, scales).sum()

    def log_predictive(self, parameters: Parameters, data: Data, key: Array) -> Float[Array, ""]:
        """Mean of ln p(y_j | x_j, support) over half of each class's samples; 0 if there are none."""
        samples = self.samples(parameters, data)
        asked = half_of_each_class(key, samples.members)
        labels = jnp.where(asked, 0, samples.sides)
        scales = fit_levels(samples.kernels, labels, self.settings.iterations)
        mean, reduction = jax.vmap(latent)(samples.kernels, labels, scales, samples.kernels)
        left = self.covariance(parameters, jnp.sum(samples.features**2, axis=1)) - reduction
        each = log_probability(samples.sides * mean, left)
        total = jnp.sum(jnp.where(asked & (samples.sides != 0), each, 0))
        return total / jnp.maximum(asked.sum(), 1)

    def samples(self, parameters: Parameters, data: Data) -> Samples:
        # Zeros for padding: whatever it holds, NaN times 0 would be NaN.
        features = self.features(parameters, jnp.where(data.mask[:, None], data.x, 0))
        kernel = self.covariance(parameters, matmul(features, transpose(features)))
        members = (data.y[:, None] == jnp.arange(self.classes)) & data.mask[:, None]
        members = members.astype(kernel.dtype)
        counts = members.sum(0)
        if self.settings.tree == "number":
            numbers = jnp.arange(self.classes, dtype=kernel.dtype)
            similarity = jnp.outer(numbers, numbers)
        else:  # inner products of the classes' means in the kernel's own feature space
            shares = members / jnp.maximum(counts, 1)
            similarity = matmul(transpose(shares), matmul(kernel, shares))
        tree = class_tree(similarity, counts > 0)
        shared = matmul(matmul(members, tree.together.astype(kernel.dtype)), transpose(members))
        sides = matmul(tree.side, transpose(members))
        return Samples(features, members, tree, shared * kernel, sides)

    def features(self, parameters: Parameters, x: Float[Array, "m d"]) -> Float[Array, "m f"]:
        """The network's output, each row brought to length 1."""
        output = self.network(parameters[:-2], x)
        tiny = jnp.finfo(output.dtype).eps ** 2  # a row of zeros has no direction, nor a gradient
        return output * jax.lax.rsqrt(jnp.sum(output**2, axis=1, keepdims=True) + tiny)

    def covariance(self, parameters: Parameters, products: Array) -> Array:
        """k by inner products of features of length 1, for which |u - u'|^2 / 2 = 1 - u u'."""
        log_variance, log_length = parameters[-2], parameters[-1]
        return jnp.exp(log_variance + (products - 1) * jnp.exp(-2 * log_length))

    def personalize(self, state: State, client_state: Nothing, data: Data, key: Array) -> TreeModel:
        data = mini_batch(key, data, self.settings.personal_support or None)
        samples = self.samples(state.parameters, data)
        scales = fit_levels(samples.kernels, samples.sides, self.settings.personal_iterations)
        posteriors = jax.vmap(posterior_given)(samples.kernels, samples.sides, scales)
        return TreeModel(
            self, state.parameters, samples.features, samples.members, samples.tree, posteriors
        )


class TreeModel(eqx.Module):
    """One client's model: the posteriors of its tree's nodes."""

    method: PFedGPClassify = eqx.field(static=True)
    parameters: Parameters
    features: Float[Array, "m f"]  # of the client's samples
    members: Float[Array, "m classes"]
    tree: ClassTree
    posteriors: BinaryPosterior  # leading axis: levels

    def __call__(self, x: Float[Array, "t d"]) -> Probabilities:
        features = self.method.features(self.parameters, x)
        products = matmul(self.features, transpose(features))
        cross = self.method.covariance(self.parameters, products)
        variance = self.method.covariance(self.parameters, jnp.sum(features**2, axis=1))

        def level(together: Array, side: Array, posterior: BinaryPosterior) -> Array:
            """ln p of each class's side at its node; 0 where there is nothing to decide.

            B is zero between samples of different nodes, and so is W: the node's part of |W k|^2 is the
            sum over the node's rows.
            """
            own = matmul(together.astype(cross.dtype), transpose(self.members))  # [classes, m]
            mean = matmul(own * posterior.alpha, cross)
            white = matmul(posterior.inverse_factor, posterior.root[:, None] * cross)
            decided = log_probability(side[:, None] * mean, variance - matmul(own, white**2))
            return jnp.where(side[:, None] != 0, decided, 0)

        per_class = jax.vmap(level)(self.tree.together, self.tree.side, self.posteriors).sum(0).T
        # Probability `ABSENT` for each class that is not there; the others share the rest.
        present = self.members.any(0)
        rest = jnp.log1p(-ABSENT * jnp.sum(~present, dtype=per_class.dtype))
        return Probabilities(jnp.where(present, per_class + rest, math.log(ABSENT)))


def half_of_each_class(key: Array, members: Float[Array, "m classes"]) -> Bool[Array, " m"]:
    """A random half of each class's samples, the smaller one where their number is odd.

    A sample's draw depends on the key and its own place alone: padding changes nothing.
    """
    places = jnp.arange(len(members))
    draws = jax.vmap(lambda place: jax.random.uniform(jax.random.fold_in(key, place)))(places)
    earlier = (draws[None, :] < draws[:, None]).astype(members.dtype)
    rank = jnp.sum(matmul(earlier, members) * members, axis=1)
    return rank < matmul(members, members.sum(0) // 2)


# --- the tree of classes (Achituve et al. 2021, section on the GP tree)
#
# Each inner node divides its classes in two, and a binary classifier of the node's samples decides:
#
#     p(y | x) = product over levels of p(side of y at its node | x).
#
# Classes that look alike stay together: a node's classes are divided at the median of their means'
# first principal component. (The paper's 2-means can cut off one class at a time.) Halves make the
# depth log2 of the number of classes, and all nodes of a level share one factorisation: a level is
# one Gaussian process whose kernel is zero between samples of different nodes. 62 classes need 6,
# not 61.


class ClassTree(NamedTuple):
    """For each level: which classes share a node that is still to be divided, and who goes where."""

    together: Bool[Array, "levels classes classes"]
    side: Float[Array, "levels classes"]  # -1 or +1; 0 for a class that is alone already, or absent


def class_tree(
    similarity: Float[Array, "classes classes"], present: Bool[Array, " classes"]
) -> ClassTree:
    """The tree of the classes that are present, from the inner products of their means."""
    similarity = jax.lax.stop_gradient(similarity)

    def divide(together: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        undivided = together & (together.sum(1) > 1)[:, None]
        right = _right_half(similarity, undivided)
        side = jnp.where(undivided.any(1), jnp.where(right, 1, -1), 0).astype(similarity.dtype)
        return together & (right[:, None] == right[None, :]), (undivided, side)

    everyone = present[:, None] & present[None, :]
    _, levels = jax.lax.scan(divide, everyone, length=(present.size - 1).bit_length())
    return ClassTree(*levels)


def _right_half(similarity: Array, together: Array) -> Bool[Array, " classes"]:
    """Whether a class lies in the upper half of its node along the first principal component.

    The similarities centred node by node, zero between nodes, are a block matrix whose blocks' first
    eigenvectors are the wanted components: the power method finds them all at once. It starts from
    the class that is farthest from its node's centre.
    """
    centre = together / jnp.maximum(together.sum(1, keepdims=True), 1)
    remainder = jnp.eye(len(together), dtype=similarity.dtype) - centre.astype(similarity.dtype)
    blocks = jnp.where(together, matmul(matmul(remainder, similarity), remainder.T), 0)
    farthest = jnp.argmax(jnp.where(together, jnp.diagonal(blocks), -jnp.inf), axis=1)
    start = jnp.take_along_axis(blocks, farthest[:, None], 1)[:, 0]

    def power(_: int, vector: Array) -> Array:
        longer = matmul(blocks, vector)
        largest = jnp.max(jnp.where(together, jnp.abs(longer), 0), axis=1)
        return longer / jnp.where(largest > 0, largest, 1)

    component = jax.lax.fori_loop(0, POWER_STEPS, power, start)
    lower = component[None, :] < component[:, None]
    equal = component[None, :] == component[:, None]
    before = lower | (equal & jnp.tri(len(together), k=-1, dtype=bool))  # of equal ones the first
    return 2 * jnp.sum(together & before, axis=1) >= together.sum(1)


# --- one binary classifier with a Gaussian process, by Polya-Gamma augmentation
#
#     f ~ N(0, K),   p(s_j | f) = sigma(s_j f_j)  for labels s_j = -1 or +1.
#
# With omega ~ PG(1, 0) the likelihood is a scale mixture of Gaussians (Polson, Scott & Windle 2013),
#
#     sigma(s f) = 1/2 E[exp(s f / 2 - omega f^2 / 2)],
#
# so that given omega the posterior of f is Gaussian. Here q(f) q(omega) is mean-field: q(omega_j) is
# PG(1, c_j), of which only the mean matters, and both updates are closed form (Wenzel et al. 2019):
#
#     omega_j = tanh(c_j / 2) / (2 c_j),   q(f) = N(mu, S),  S = (K^-1 + diag(omega))^-1,  mu = S s / 2,
#     c_j = sqrt(mu_j^2 + S_jj).
#
# Unlike Gibbs sampling, this is one compiled loop without random numbers, and its bound on ln Z
# (that of Jaakkola & Jordan 2000) has a gradient that costs one factorisation. The price is a
# posterior mean somewhat too close to 0 (by 7% at most on three samples of variance 3). Factorised
# is B = I + Omega^1/2 K Omega^1/2, whose eigenvalues are at least 1: K may be singular. A label of
# 0 stands for a sample that takes no part: its row of B is that of the identity.


class BinaryPosterior(NamedTuple):
    """q(f) at the samples; entries of samples that take no part are 0."""

    root: Each  # omega^1/2
    inverse_factor: Square  # W with W B W^T = I
    alpha: Each  # (K + Omega^-1)^-1 z, with pseudo-targets z = s / (2 omega)


def expected_omega(c: Each) -> Each:
    """Mean of PG(1, c): tanh(c / 2) / (2 c), which is 1/4 at 0."""
    positive = c > 0
    safe = jnp.where(positive, c, 1)
    return jnp.where(positive, jnp.tanh(safe / 2) / (2 * safe), 0.25)


def fit(kernel: Square, labels: Each, iterations: int) -> Each:
    """The scales c after so many rounds of updates, from those of the prior, c_j = K_jj^1/2.

    No product of matrices is needed: Omega^1/2 S Omega^1/2 = I - B^-1, so W alone gives S_jj.
    """
    kernel = jax.lax.stop_gradient(kernel)
    used = labels != 0

    def update(_: int, c: Array) -> Array:
        posterior = posterior_given(kernel, labels, c)
        mean = matmul(kernel, posterior.alpha)
        omega = jnp.where(used, posterior.root**2, 1)
        variance = (1 - jnp.sum(posterior.inverse_factor**2, axis=0)) / omega
        return jnp.sqrt(jnp.where(used, mean**2 + jnp.maximum(variance, 0), 0))

    start = jnp.sqrt(jnp.where(used, jnp.diagonal(kernel), 0))
    return jax.lax.fori_loop(0, iterations, update, start)


def fit_levels(
    kernels: Float[Array, "levels m m"], labels: Float[Array, "levels m"], iterations: int
) -> Float[Array, "levels m"]:
    return jax.vmap(lambda k, s: fit(k, s, iterations))(kernels, labels)


def posterior_given(kernel: Square, labels: Each, c: Each) -> BinaryPosterior:
    """q(f) for these scales: alpha = Omega^1/2 B^-1 u and mu = K alpha, with u = s / (2 omega^1/2)."""
    root, u, b = _pseudo_targets(kernel, labels, c)
    inverse = factorise(b)
    alpha = root * matmul(transpose(inverse), matmul(inverse, u))
    return BinaryPosterior(root, inverse, alpha)


def log_evidence_bound(kernel: Square, labels: Each, c: Each) -> Float[Array, ""]:
    """A lower bound on ln p(s), whatever c; it is highest at the fixed point of `fit`:

    sum_j [omega_j c_j^2 / 2 - ln(2 cosh(c_j / 2))] + |u|^2 / 2 - u^T B^-1 u / 2 - ln|B| / 2.

    `fit` lets no gradient through, so that of the bound is the one at fixed c. Where c is the fixed
    point, the derivative by c is zero and nothing is left out; before, it is that of a generalised
    EM step.
    """
    root, u, b = _pseudo_targets(kernel, labels, c)
    each = 0.5 * (root * c) ** 2 - jnp.logaddexp(c / 2, -c / 2) + 0.5 * u**2
    return gaussian_log_density(split(b), u) + jnp.sum(jnp.where(labels != 0, each, 0))


def _pseudo_targets(kernel: Square, labels: Each, c: Each) -> tuple[Each, Each, Square]:
    """Omega^1/2, u and B = I + Omega^1/2 K Omega^1/2"""
    used = labels != 0
    root = jnp.where(used, jnp.sqrt(expected_omega(c)), 0)
    whitened = root[:, None] * kernel * root[None, :] + jnp.eye(root.size, dtype=kernel.dtype)
    return root, labels / (2 * jnp.where(used, root, 1)), whitened


def latent(
    kernel: Square, labels: Each, c: Each, cross: Float[Array, "m t"]
) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """Mean of f at t other inputs, and how much the samples take off its prior variance:

    mean = k^T Omega^1/2 B^-1 u,   reduction = |B^-1/2 Omega^1/2 k|^2,   k a column of `cross`.

    It can be differentiated by the kernel and by `cross`.
    """
    root, u, b = _pseudo_targets(kernel, labels, c)
    own = root[:, None] * cross
    solved = solve(b, jnp.concatenate([u[:, None], own], axis=1))
    return matmul(solved[:, 0], own), jnp.sum(own * solved[:, 1:], axis=0)


@jax.custom_vjp
def solve(a: Square, b: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """X = A^-1 B for a symmetric positive definite A. Backwards: B' = A^-1 X', A' = -B' X^T."""
    return _solve_forward(a, b)[0]


def _solve_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    inverse = factorise(a)
    solved = matmul(transpose(inverse), matmul(inverse, b))
    return solved, (inverse, solved)


def _solve_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    inverse, solved = saved
    back = matmul(transpose(inverse), matmul(inverse, cotangent))
    return -matmul(back, transpose(solved)), back


solve.defvjp(_solve_forward, _solve_backward)


def log_probability(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """ln E[sigma(f)] for f ~ N(mean, variance), by quadrature."""
    nodes = jnp.asarray(NODES, mean.dtype)
    std = jnp.sqrt(jnp.maximum(variance, jnp.finfo(mean.dtype).eps))  # the root of 0 has no slope
    f = mean[..., None] + std[..., None] * nodes
    weights = jnp.asarray(LOG_WEIGHTS, mean.dtype)
    return jax.nn.logsumexp(jax.nn.log_sigmoid(f) + weights, axis=-1)
