"""FedAvg, MTL and MAML: one network per client, trained by gradient descent.

    L_i(w) = 1/m_i sum_j -ln p(y_j | network_w(x_j))

is the loss of client i everywhere. With a Gaussian likelihood of noise s it is the mean squared
error divided by 2 s^2, up to a constant: s = 1 gives the usual one, and any other s scales the
learning rates. With a categorical likelihood it is the cross-entropy.

Open in the papers, which know point predictions only:
- Regression: the predictive distribution is N(network(x), s_i^2), where s_i^2 is the sum of squared
  residuals on the client's OWN training samples divided by m_i - 1 (residuals of samples learned by
  heart are too small, and the calibration error says so), and s_i at least `FLOOR` times the
  likelihood's noise.
- Classification: the softmax as it is, without temperature scaling.
- The optimiser of the local steps starts anew in every round: nothing of it is kept or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from pacpfl.errors import InputError
from pacpfl.likelihoods import Likelihood, log_likelihood
from pacpfl.methods.base import Curves, Method, Nothing, Predictor, Weights, mini_batch
from pacpfl.methods.settings import LocalTraining, MAMLSettings, MTLSettings
from pacpfl.priors.base import all_finite
from pacpfl.priors.networks import Network
from pacpfl.types import Data, Prediction, Probabilities

FLOOR = 0.01
AVERAGE, ADAM = optax.sgd(1.0), optax.adam(1e-3)
OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
}

Tree = TypeVar("Tree")  # of arrays
Parameters = Float[Array, " size"]
Loss = Callable[[Parameters, Data], Float[Array, ""]]
Carry = tuple[Parameters, optax.OptState, Array]  # with the first step's loss


@dataclass(frozen=True)
class NetworkModel:
    """A network and what its outputs mean."""

    network: Network
    likelihood: Likelihood

    def initial(self, key: Array, example: Data) -> Parameters:
        """Where training starts, in the data's precision."""
        parameters = self.network.initial(key).astype(example.x.dtype)
        outputs = jax.eval_shape(self.network, parameters, example.x).shape[-1]
        if outputs != self.likelihood.outputs:
            raise InputError(
                f"The network has {outputs} outputs, but {self.likelihood} needs "
                f"{self.likelihood.outputs}; change the size of its last layer."
            )
        return parameters

    def log_likelihood(self, parameters: Parameters, data: Data) -> Float[Array, ""]:
        """Sum over the samples of ln p(y | network(x)). Padding has no part in it, whatever it holds."""
        data = _without_padding(data)
        return log_likelihood(self.likelihood, self.network(parameters, data.x), data)

    def loss(self, parameters: Parameters, data: Data) -> Float[Array, ""]:
        """Mean over the samples of -ln p(y | network(x))."""
        return -self.log_likelihood(parameters, data) / data.mask.sum()

    def predict(self, parameters: Parameters, x: Float[Array, "t d"]) -> Prediction | Probabilities:
        """As the likelihood has it, with its own noise."""
        return self.likelihood.predict(self.network(parameters, x)[None])

    def predictor(self, parameters: Parameters, data: Data) -> NetworkPredictor:
        """The client's own model, its spread from the client's own samples."""
        data = _without_padding(data)
        prediction = self.predict(parameters, data.x)
        if isinstance(prediction, Probabilities):
            return NetworkPredictor(self, parameters, None)
        residual = jnp.where(data.mask, data.y - prediction.means[0], 0)
        freedom = jnp.maximum(data.mask.sum() - 1, 1)
        return NetworkPredictor(self, parameters, jnp.sqrt(jnp.sum(residual**2) / freedom))


class NetworkPredictor(eqx.Module):
    """One client's network, and how far its samples lie from it (None for class labels)."""

    model: NetworkModel = eqx.field(static=True)
    parameters: Parameters
    residual_std: Float[Array, ""] | None

    def __call__(self, x: Float[Array, "t d"]) -> Prediction | Probabilities:
        prediction = self.model.predict(self.parameters, x)
        if isinstance(prediction, Probabilities) or self.residual_std is None:
            return prediction
        stds = jnp.maximum(self.residual_std, FLOOR * prediction.stds)
        return prediction._replace(stds=stds)


def descend(
    local: LocalTraining,
    loss: Loss,
    start: Parameters,
    data: Data,
    key: Array,
    steps: int | Int[Array, ""] | None = None,
    before: Callable[[Parameters], Parameters] = lambda parameters: parameters,
) -> tuple[Parameters, Float[Array, ""]]:
    """Parameters after `steps` (default: `local.steps`) of the optimiser on the loss, and the first
    step's loss. `before` moves the parameters ahead of each step."""
    optimizer = OPTIMIZERS[local.optimizer](local.learning_rate)

    def step(index: Array, carry: Carry) -> Carry:
        parameters, memory, first = carry
        parameters = before(parameters)
        batch = mini_batch(jax.random.fold_in(key, index), data, local.batch)
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        change, memory = optimizer.update(gradient, memory, parameters)
        return parameters + change, memory, jnp.where(index == 0, value, first)

    begin = (start, optimizer.init(start), jnp.zeros((), start.dtype))
    count = local.steps if steps is None else steps
    parameters, _, first = jax.lax.fori_loop(0, count, step, begin)
    return parameters, first


def finite_or(new: Tree, old: Tree) -> Tree:
    """Training that diverged is undone: one entry that is not finite brings all the old ones back."""
    return jax.tree.map(partial(jnp.where, all_finite(new)), new, old)


def _without_padding(data: Data) -> Data:
    """Zeros in place of padding: a NaN there times a gradient of 0 would still be NaN."""
    return Data(
        jnp.where(data.mask[:, None], data.x, 0), jnp.where(data.mask, data.y, 0), data.mask
    )


class State(NamedTuple):
    """Of a server that moves one network by an optimiser."""

    parameters: Parameters
    optimizer: optax.OptState
    skipped: Int[Array, ""]  # clients' updates that were left out because they were not finite


class Combined(NamedTuple):
    """What the server makes of its clients' vectors."""

    mean: Parameters  # 0 where nobody's can be used
    used: Int[Array, ""]  # how many went into it
    skipped: Int[Array, ""]  # how many came and were not finite


def combine(
    values: Float[Array, "c size"], weights: Weights, sizes: Float[Array, " c"] | float = 1.0
) -> Combined:
    """sum_i w_i s_i v_i / sum_i w_i s_i over the clients who are present (w_i > 0) and finite."""
    present = weights > 0
    weights = weights * sizes
    usable = present & jnp.isfinite(weights) & jnp.isfinite(values).all(1)
    weights = jnp.where(usable, weights, 0)
    # Multiply and add, not a matrix product: those lose digits on GPUs, and would copy the values.
    total = jnp.sum(weights[:, None] * jnp.where(usable[:, None], values, 0), axis=0)
    scale = weights.sum()
    mean = total / jnp.where(scale > 0, scale, 1)
    return Combined(mean, usable.sum(), (present & ~usable).sum())


def server_step(optimizer: optax.GradientTransformation, state: State, gradient: Combined) -> State:
    """One step of the optimiser with the clients' mean gradient; none, optimiser state included, without
    a client or towards infinity."""
    change, memory = optimizer.update(gradient.mean, state.optimizer, state.parameters)
    moved = state.parameters + change
    taken = (gradient.used > 0) & all_finite(moved)
    skipped = gradient.skipped + jnp.where(taken, 0, gradient.used)
    parameters, memory = jax.tree.map(partial(jnp.where, taken), (moved, memory), state[:2])
    return State(parameters, memory, state.skipped + skipped.astype(jnp.int32))


class Watched(Method[PyTree, PyTree, PyTree]):
    """A method that is watched by a number which its clients send."""

    watched: ClassVar[str] = "loss"  # of the clients' networks

    def diagnostics(self, state: PyTree, updates: PyTree, weights: Weights) -> Curves:
        """The mean over the clients who are present and have one."""
        return {self.watched: combine(updates.value[:, None], weights).mean[0]}


class Update(NamedTuple):
    gradient: Parameters  # downhill is against it
    value: Float[Array, ""]  # of what the client moves along: for the progress bar only


class Downhill(Watched):
    """A method with one vector for all, moved by an optimiser against the clients' mean gradient."""

    model: NetworkModel
    optimizer: optax.GradientTransformation

    def init(self, key: Array, example: Data) -> State:
        return self.begin(self.model.initial(key, example))

    def begin(self, parameters: Parameters) -> State:
        return State(parameters, self.optimizer.init(parameters), jnp.zeros((), jnp.int32))

    def server_update(self, state: State, updates: PyTree, weights: Weights, key: Array) -> State:
        return server_step(self.optimizer, state, combine(updates.gradient, weights))


class SizedUpdate(NamedTuple):
    gradient: Parameters  # w - w_i
    value: Float[Array, ""]  # loss of the server's network
    samples: Float[Array, ""]  # m_i


@dataclass(frozen=True)
class FedAvg(Downhill):
    """FedAvg (McMahan et al. 2017): one network for all, trained by steps at the clients, then averaged.

        client:  w_i = w after E steps of SGD on L_i, from the server's w
        server:  w <- w + sum_i m_i (w_i - w) / sum_i m_i

    Open in the paper, settled here:
    - The number of local steps E is the same for all clients (the paper counts epochs, so that clients
      with more samples would take more of them); the clients' weights m_i are the paper's.
    - Personalisation: none, the same network for everyone.
    """

    model: NetworkModel
    local: LocalTraining

    optimizer = AVERAGE

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[SizedUpdate, Nothing]:
        trained, loss = descend(self.local, self.model.loss, state.parameters, data, key)
        samples = data.mask.sum().astype(trained.dtype)
        return SizedUpdate(state.parameters - trained, loss, samples), ()

    def server_update(
        self, state: State, updates: SizedUpdate, weights: Weights, key: Array
    ) -> State:
        combined = combine(updates.gradient, weights, updates.samples)
        return server_step(self.optimizer, state, combined)

    def personalize(self, state: State, client_state: Nothing, data: Data, key: Array) -> Predictor:
        return self.model.predictor(state.parameters, data)


@dataclass(frozen=True)
class MAML(Downhill):
    """MAML (Finn et al. 2017), federated as Per-FedAvg (Fallah et al. 2020): a start to adapt from.

        minimise over w:   F(w) = 1/n sum_i F_i(w),   F_i(w) = L_i(U_i(w)),
        U_i(w):            `inner_steps` gradient steps on L_i from w, with `inner_learning_rate`

        client:  gradient of F_i, through the inner steps: J_U(w)^T grad L_i(U_i(w))
        server:  one step of its optimiser with the mean over the clients
        personal model:  U_i with `personal_steps`, on all of the client's samples

    Open in the papers, settled here:
    - Batches: U_i sees one mini-batch of `batch` samples in all inner steps, the outer loss
      another, as in Per-FedAvg; second derivatives are those of the first, while Per-FedAvg draws a
      third for them.
    - A client sends the gradient of F_i, once in a round: Per-FedAvg is SGD with it at the server.
    - `first_order=True` takes J_U for the identity (FO-MAML): grad L_i at U_i(w).
    - Clients count alike, as in Per-FedAvg, however many samples they have.
    """

    model: NetworkModel
    settings: MAMLSettings = MAMLSettings()
    batch: int | None = None
    optimizer: optax.GradientTransformation = ADAM

    def adapt(self, parameters: Parameters, data: Data, steps: int) -> Parameters:
        """U: gradient steps from `parameters`."""

        def step(_: int, adapted: Parameters) -> Parameters:
            gradient = jax.grad(self.model.loss)(adapted, data)
            if self.settings.first_order:
                gradient = jax.lax.stop_gradient(gradient)
            return adapted - self.settings.inner_learning_rate * gradient

        return jax.lax.fori_loop(0, steps, step, parameters)

    def adapted_loss(self, parameters: Parameters, data: Data, key: Array) -> Float[Array, ""]:
        """F_i, estimated from two batches."""
        inner, outer = (mini_batch(own, data, self.batch) for own in jax.random.split(key))
        return self.model.loss(self.adapt(parameters, inner, self.settings.inner_steps), outer)

    def client_update(
        self, state: State, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Update, Nothing]:
        loss, gradient = jax.value_and_grad(self.adapted_loss)(
            state.parameters, data, jax.random.fold_in(key, 0)
        )
        return Update(gradient, loss), ()

    def personalize(self, state: State, client_state: Nothing, data: Data, key: Array) -> Predictor:
        adapted = self.adapt(state.parameters, data, self.settings.personal_steps)
        return self.model.predictor(finite_or(adapted, state.parameters), data)


class Memory(NamedTuple):
    forward: Parameters  # u_i
    steps: Int[Array, ""]  # local steps taken so far


@dataclass(frozen=True)
class MTL(Downhill):
    """Mean-regularised multi-task learning (Evgeniou & Pontil 2004), clients as tasks.

        minimise over w_1, ..., w_n:   sum_i L_i(w_i) + coupling / 2 |w_i - v|^2,   v = 1/n sum_i w_i

    Every client keeps a network of its own; the server keeps the mean v, which minimises the
    penalty, so that w_i and v may be improved in turns. A local step is one of forward-backward
    splitting, the penalty being implicit:

        backward:  w = (u + r v) / (1 + r),   r = learning rate * coupling
        forward:   u = w - learning rate * grad L_i(w)

    The client keeps u, the server v = mean of all u, and the client's network is the backward step of
    both. At a fixed point u = w + r (w - v) and mean u = v, hence mean w = v and grad L_i(w_i) +
    coupling (w_i - v) = 0: the minimiser, whatever the number of local steps. No coupling is too stiff:
    - coupling 0: u is trained locally, as if there were nobody else;
    - coupling infinity: w = v, and v moves by the mean of the clients' gradient steps, which is FedAvg
      with one local step (further ones repeat it) and equal weights.

    Open in the paper (written for kernel machines), settled here:
    - L_i is a mean over the client's samples, and clients count alike (Hanzely & Richtarik 2020).
      All networks start from the same initial values.
    - With momentum or Adam the optimiser takes the forward step. Both limits stay; in between, the
      coupling is weighed against the optimiser's steps and not against the loss's gradient.
    - Everyone ends with `personal_steps` steps in all, those taken in rounds counted: a new client
      starts from v and trains at home with the penalty towards it, and who was rarely chosen
      catches up.
    """

    model: NetworkModel
    clients: int  # n
    local: LocalTraining
    settings: MTLSettings = MTLSettings()

    optimizer = AVERAGE

    def init_client(self, state: State, data: Data, key: Array) -> Memory:
        return Memory(state.parameters, jnp.zeros((), jnp.int32))

    def backward(self, state: State) -> Callable[[Parameters], Parameters]:
        """u -> (u + r v) / (1 + r), the proximal step of the penalty; exact for r = 0 and infinity."""
        own = 1 / (1 + self.local.learning_rate * self.settings.coupling)
        return lambda forward: own * forward + (1 - own) * state.parameters

    def client_update(
        self, state: State, client_state: Memory, data: Data, key: Array
    ) -> tuple[Update, Memory]:
        old, steps = client_state
        new, loss = descend(
            self.local, self.model.loss, old, data, key, before=self.backward(state)
        )
        # What is not finite is sent, for the server to count, and not kept.
        kept = finite_or(Memory(new, steps + self.local.steps), client_state)
        return Update(old - new, loss), kept

    def server_update(self, state: State, updates: Update, weights: Weights, key: Array) -> State:
        """v moves by 1/n of each change: its state's parameters are the mean of all u."""
        combined = combine(updates.gradient, weights)
        share = combined.mean * combined.used / self.clients
        return server_step(self.optimizer, state, combined._replace(mean=share))

    def personalize(
        self, state: State, client_state: Memory | Nothing, data: Data, key: Array
    ) -> Predictor:
        """A client without a state is a new one."""
        if not isinstance(client_state, Memory):
            client_state = self.init_client(state, data, key)
        backward = self.backward(state)
        missing = jnp.maximum(self.settings.personal_steps - client_state.steps, 0)
        forward, _ = descend(
            self.local, self.model.loss, client_state.forward, data, key, missing, backward
        )
        own = backward(client_state.forward)
        return self.model.predictor(finite_or(backward(forward), own), data)
