"""Methods around methods: differentially private, in fewer bytes, or of which the server sees sums only.

`Private` is PAC-PFL with differential privacy, for any number of particles (paper, appendix on DP,
Algorithm 3):

    client:  G_i = gradients of ln Z, clipped                                     (line 6)
    server:  G = sum_i G_i + noise;  mean = G / expected cohort                   (lines 8 and 9)
             then as in PAC-PFL: hyper-prior's gradient, SVGD step                (lines 10 to 14)

What leaves a client is its clipped update, and with adaptive clipping one bit that is accounted
for; everything else is computed from noisy sums. The evidence on PAC-PFL's progress bar is never
sent.

Beyond the printed algorithm: the clip is on the whole k x d update; the noise is that of a plan
whose epsilon is accounted (pacpfl.privacy); the particles of the last rounds can be averaged, which
takes out much of the noise and costs nothing (Polyak & Juditsky 1992).

Unit `sample`: where ln Z is a sum over samples (`Prior.coupling` says why it is not), every
sample's gradient is clipped, and the sum over the client's samples is sent. The client unit implies
it.

With `summed` it is the same under secure aggregation (sites.secure): the sum of the updates
already holds the sites' noise, and the server adds none.

`Compressed` sends float16 or int8, with error feedback (Seide et al. 2014; Karimireddy 2019):

    sent      code(g + e),   code(v) = round(v / s * L) for s = max |v| of each row
    kept      e <- g + e - decode(code(g + e))

What rounding takes away in one round, a client adds in the next, so that no direction is lost for
good. Simulator, sites and replay compute the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from pacpfl import svgd
from pacpfl.errors import InputError
from pacpfl.methods import pacpfl
from pacpfl.methods.base import Curves, Method, Nothing, Predictor, Weights, mini_batch
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.personal import PersonalModel
from pacpfl.privacy import mechanisms
from pacpfl.privacy.accounting import ORDER, Plan, PrivacySettings
from pacpfl.privacy.mechanisms import AdaptiveClip, count_std, next_clip, sum_multiplier
from pacpfl.types import Data

ENCODINGS = ("exact", "float16", "int8")
WORTHWHILE = 64  # numbers in an array; smaller ones travel as they are
LEVELS = 127  # of int8, on each side of 0


class PrivateState(NamedTuple):
    inner: pacpfl.State
    clip: Float[Array, ""]
    round: Int[Array, ""]
    # Of the particles since `average_from`; () where none is kept.
    average: PyTree[Float[Array, "k size"]]


class PrivateUpdate(NamedTuple):
    gradients: Float[Array, "k size"]  # clipped
    # Whether nothing was clipped; () without adaptive clipping.
    unclipped: PyTree[Bool[Array, ""]]
    # Whether a gradient was not finite; () in strict mode: it is not accounted for.
    refused: PyTree[Bool[Array, ""]]


@dataclass(frozen=True)
class Private(Method[PrivateState, Nothing, PrivateUpdate]):
    method: PACPFL
    plan: Plan
    clip: float  # gamma; with `adaptive` where it starts
    per_particle: bool = False
    adaptive: AdaptiveClip | None = None
    average_from: int | None = None  # first round whose particles are averaged; None: no average
    strict: bool = False
    summed: bool = False  # only the clipped update is sent, and the noise comes with the sum

    def __post_init__(self) -> None:
        if self.plan.unit == "sample" and (coupling := self.method.prior.coupling):
            raise InputError(
                f"unit = sample cannot be had here: {coupling}, so no single sample's gradient can be "
                "clipped; choose unit = client, which protects every sample as well."
            )
        if self.adaptive and (self.plan.mode != "gaussian" or self.plan.unit != "client"):
            raise InputError(
                "A clip that adapts is accounted for Gaussian noise and whole clients only; leave "
                "clip_quantile out, or choose mode = gaussian and unit = client."
            )

    @property
    def order(self) -> int:
        return ORDER[self.plan.mode]

    @property
    def multiplier(self) -> float:
        """Noise on the sum, in units of the clip: a little more where the count is released, too."""
        if self.adaptive is None:
            return self.plan.multiplier
        return sum_multiplier(self.plan.multiplier, self.adaptive.count_std)

    def init(self, key: Array, example: Data) -> PrivateState:
        inner = self.method.init(key, example)
        average = () if self.average_from is None else inner.particles
        clip = jnp.asarray(self.clip, inner.particles.dtype)
        return PrivateState(inner, clip, jnp.zeros((), jnp.int32), average)

    def client_update(
        self, state: PrivateState, client_state: Nothing, data: Data, key: Array
    ) -> tuple[PrivateUpdate, Nothing]:
        unclipped: PyTree[Bool[Array, ""]] = ()
        if self.plan.unit == "sample":
            clipped, finite = self._per_sample(state, data, key)
        else:
            gradients = self.method.client_update(state.inner, (), data, key)[0].gradients
            clipped = mechanisms.clip(gradients, state.clip, self.order, self.per_particle)
            finite = mechanisms.finite_rows(gradients).all()
            unclipped = () if self.adaptive is None else (clipped == gradients).all()
        return PrivateUpdate(clipped, unclipped, () if self.strict else ~finite), ()

    def _per_sample(
        self, state: PrivateState, data: Data, key: Array
    ) -> tuple[Float[Array, "k size"], Bool[Array, ""]]:
        """sum over the batch of clip(t grad ln p(z | w)), one sample after the other.

        Replacing a sample changes neither m nor the batch's rows, so it changes one term, by at most
        twice the clip, or none where the sample is not in the batch.
        """
        method, particles = self.method, state.inner.particles
        batch = mini_batch(key, data, method.settings.batch)
        share = data.mask.sum() / batch.mask.sum()
        temperature = (method.settings.temperature * share).astype(data.x.dtype)
        noise = method.noise(state.inner, key, batch.x.dtype)

        def add(total: tuple[Array, Array], sample: Data) -> tuple[tuple[Array, Array], None]:
            one = jax.tree.map(lambda a: a[None], sample)
            gradients = jax.vmap(
                jax.grad(lambda phi, e: method.prior.log_evidence(phi, one, temperature, e))
            )(particles, noise)
            gradients = jnp.where(sample.mask, gradients, 0)
            clipped = mechanisms.clip(gradients, state.clip, self.order, self.per_particle)
            return (total[0] + clipped, total[1] & jnp.isfinite(gradients).all()), None

        return jax.lax.scan(add, (jnp.zeros_like(particles), jnp.array(True)), batch)[0]

    def server_update(
        self, state: PrivateState, updates: PrivateUpdate, weights: Weights, key: Array
    ) -> PrivateState:
        """`key` must be secret: the noise is drawn with it."""
        clip, cohort = state.clip, self.plan.cohort
        if self.summed:
            noisy = jnp.einsum("c,ckp->kp", weights, updates.gradients, precision="highest")
        else:
            noise_key, count_key, key = jax.random.split(key, 3)
            accepted = (weights > 0) & self._acceptable(state, updates.gradients)
            total = jnp.where(accepted[:, None, None], updates.gradients, 0).sum(0)
            kind = mechanisms.NOISE[self.plan.mode]
            noisy = mechanisms.add_noise(noise_key, total, self.multiplier * clip, kind)
            if self.adaptive is not None:
                half = jnp.where(weights > 0, updates.unclipped - 0.5, 0).astype(noisy.dtype).sum()
                clip = next_clip(count_key, clip, half, cohort, self.adaptive)
        # One update that stands for everybody's mean: PAC-PFL turns it into the sum, or leaves it.
        mean = pacpfl.Update((noisy / cohort)[None], jnp.zeros(1, noisy.dtype))
        inner = self.method.server_update(state.inner, mean, jnp.ones(1, noisy.dtype), key)
        average = state.average
        if self.average_from is not None:  # before that round, just the latest particles
            count = 1 + jnp.maximum(0, state.round - self.average_from).astype(noisy.dtype)
            average = average + (inner.particles - average) / count
        return PrivateState(inner, clip, state.round + 1, average)

    def _acceptable(
        self, state: PrivateState, gradients: Float[Array, "c k size"]
    ) -> Bool[Array, " c"]:
        """What a client that keeps to the protocol sends; others count as zero.

        Sums over a client's samples have no common limit: there only finite ones are asked for.
        """
        finite = jnp.isfinite(gradients).all((1, 2))
        if self.plan.unit == "sample":
            return finite
        norms = jax.vmap(lambda update: mechanisms.norm(update, self.order))(gradients)
        return finite & (norms <= state.clip * (1 + mechanisms.MARGIN))

    def released(self, state: PrivateState) -> pacpfl.State:
        """What training leaves: PAC-PFL's state, with averaged particles where these are wanted."""
        if self.average_from is None:
            return state.inner
        return state.inner._replace(particles=state.average)

    def personalize(
        self, state: PrivateState, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel:
        return self.method.personalize(self.released(state), (), data, key)

    @property
    def exact(self) -> int:
        return self.method.exact

    def serving(self, state: PrivateState, data: Data) -> Private:
        return replace(self, method=self.method.serving(self.released(state), data))

    def diagnostics(self, state: PrivateState, updates: PrivateUpdate, weights: Weights) -> Curves:
        """From the noisy state alone; the number of refused updates only where not `strict`."""
        inner = state.inner
        fingerprints = jax.vmap(self.method.fingerprint(inner))(inner.particles)
        curves = {"diversity": svgd.diversity(fingerprints)}
        if self.adaptive is not None:
            curves["clip"] = state.clip
        if not self.strict:
            bad = updates.refused | ~self._acceptable(state, updates.gradients)
            curves["refused"] = jnp.where(weights > 0, bad, False).sum()
        return curves


def protect(method: PACPFL, plan: Plan, settings: PrivacySettings, rounds: int) -> Private:
    """Return the method that clips, adds the plan's noise, and averages as the settings say."""
    adaptive = average_from = None
    if settings.clip_quantile is not None:
        noise = count_std(plan.multiplier, plan.cohort)
        adaptive = AdaptiveClip(settings.clip_quantile, noise, settings.clip_rate)
    if settings.average > 0:
        average_from = math.floor((1 - settings.average) * rounds)
    return Private(
        method, plan, settings.clip, settings.per_particle, adaptive, average_from, settings.strict
    )


def summed(method: Method) -> Method:
    """Return the method as secure rounds need it; refuse what they cannot do."""
    if not isinstance(method, Private):
        return method
    plan, problem = method.plan, ""
    if plan.mode != "gaussian":
        problem = (
            f"sites add Gaussian noise in shares, and the run has privacy mode {plan.mode}; choose "
            "gaussian, or set secure = false in [run]."
        )
    elif plan.unit != "client" or method.adaptive is not None:
        problem = (
            "a client's update needs one limit that all know; leave clip_quantile out and choose unit "
            "= client."
        )
    elif plan.sampling != "all":
        problem = (
            "the server knows who takes part in a round, so that sampling clients protects nobody; "
            "leave clients_per_round out."
        )
    if problem:
        raise InputError(f"With secure aggregation {problem}")
    return replace(method, strict=True, summed=True)


class Code(NamedTuple):
    """v = codes * scale (/ LEVELS where the codes are whole numbers)."""

    codes: Array
    scale: Array  # max |v| of each row


Sent: TypeAlias = PyTree[Array | Code]  # an update, whose large arrays are codes


class Carried(NamedTuple):
    """What a client keeps: what the method has it keep, and what rounding took away."""

    own: PyTree[Array]
    residual: PyTree[Array]


@dataclass(frozen=True)
class Compressed(Method[PyTree, Carried, Sent]):
    method: Method
    encoding: str  # float16 or int8

    def init(self, key: Array, example: Data) -> PyTree:
        return self.method.init(key, example)

    def init_client(self, state: PyTree, data: Data, key: Array) -> Carried:
        own = self.method.init_client(state, data, key)
        shapes, _ = jax.eval_shape(self.method.client_update, state, own, data, key)
        residual = jax.tree.map(
            lambda s: jnp.zeros(s.shape if worthwhile(s) else (0,), s.dtype), shapes
        )
        return Carried(own, residual)

    def client_update(
        self, state: PyTree, client_state: Carried, data: Data, key: Array
    ) -> tuple[Sent, Carried]:
        update, own = self.method.client_update(state, client_state.own, data, key)

        def send(leaf: Array, left: Array) -> tuple[Array | Code, Array]:
            if not worthwhile(leaf):
                return leaf, left
            code = encode(leaf + left, self.encoding)
            return code, leaf + left - decode(code, leaf.dtype)

        pairs = jax.tree.map(send, update, client_state.residual)
        sent, residual = (
            jax.tree.map(lambda _, pair, place=place: pair[place], update, pairs)
            for place in (0, 1)
        )
        return sent, Carried(own, residual)

    def server_update(self, state: PyTree, updates: Sent, weights: Weights, key: Array) -> PyTree:
        return self.method.server_update(state, decoded(updates, weights.dtype), weights, key)

    def personalize(
        self, state: PyTree, client_state: Carried, data: Data, key: Array
    ) -> Predictor:
        return self.method.personalize(state, client_state.own, data, key)

    @property
    def exact(self) -> int:
        return self.method.exact

    def serving(self, state: PyTree, data: Data) -> Compressed:
        return replace(self, method=self.method.serving(state, data))

    def diagnostics(self, state: PyTree, updates: Sent, weights: Weights) -> Curves:
        return self.method.diagnostics(state, decoded(updates, weights.dtype), weights)


def compressed(method: Method, encoding: str) -> Method:
    return method if encoding == "exact" else Compressed(method, encoding)


def worthwhile(leaf: Array | jax.ShapeDtypeStruct) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating)) and leaf.size >= WORTHWHILE


def encode(values: Float[Array, "*rows n"], encoding: str) -> Code:
    scale = jnp.abs(values).max(-1, keepdims=True)
    parts = values / jnp.where(scale > 0, scale, 1)
    if encoding == "float16":
        return Code(parts.astype(jnp.float16), scale)
    return Code(jnp.round(parts * LEVELS).astype(jnp.int8), scale)


def decode(code: Code, dtype: jnp.dtype) -> Array:
    parts = code.codes.astype(dtype)
    return (parts / LEVELS if code.codes.dtype == jnp.int8 else parts) * code.scale


def decoded(updates: Sent, dtype: jnp.dtype) -> PyTree[Array]:
    """Return updates of any number of clients as their method knows them."""
    return jax.tree.map(
        lambda part: decode(part, dtype) if isinstance(part, Code) else part,
        updates,
        is_leaf=lambda part: isinstance(part, Code),
    )
