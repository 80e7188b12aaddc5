"""What every prior family offers to the layers above."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from pacpfl import arrays
from pacpfl.hyper import Block, HyperPrior, sample
from pacpfl.types import Data, Mixture, Probabilities

if TYPE_CHECKING:
    import jax.numpy as jnp
    import optax
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from pacpfl.priors.bnn import BNNPrior
    from pacpfl.priors.gp import GPPrior

    Scalar = Float[Array, ""] | float
    Particle = Float[Array, " size"]  # phi
    Inputs = Float[Array, "t d"]  # of predictions, row by row
    Noise = Float[Array, "L w"] | tuple[()]  # of one estimate; () where nothing is estimated
    Posterior: TypeAlias = PyTree[Array]  # each family's own named tuple of arrays

Draws = Literal["", "shared", "own"]
Place = TypeVar("Place")  # a pytree of arrays, or one


class LeftOut(NamedTuple):
    """What every sample is to all others; 0 for padding."""

    density: Float[Array, " m"]  # ln p(y_j | S without j)
    evidence: Float[Array, " m"]  # ln Z(S) - ln Z(S without j): the same at temperature 1
    below: Float[Array, " m"] | None = None  # P(y <= y_j | S without j), where it is closed form


class Prior(Protocol):
    """A family P_phi of priors, phi in R^size. All functions are for one particle; vmap adds more.

    What is not left open here is so for one hypothesis with closed forms, which draws nothing: its
    noise is `()`, and it needs no key.
    """

    @property
    def together(self) -> bool:
        """Whether many particles and clients are fast side by side, as small matrices are. Where one
        client's samples fill a processor already, as with networks, each has its own turn."""
        return True

    @property
    def blocks(self) -> tuple[Block, ...]: ...

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def components(self) -> int:
        """The number of hypotheses that a prediction of one particle is a mixture of."""
        return 1

    @property
    def matrices(self) -> int:
        """The number of matrices of samples by samples that one particle holds for a client."""
        return self.components

    @property
    def draws(self) -> Draws:
        """What an estimate of the evidence draws: nothing, what all clients of a round share (the
        server sends a seed), or what each client draws by itself."""
        return ""

    @property
    def plain(self) -> bool:
        """Whether NumPy's arrays will do, all but for training: closed forms written by `arrays.of`."""
        return False

    @property
    def coupling(self) -> str:
        """Why the evidence is no sum over samples; empty where it is."""
        return "the evidence of a Gaussian process couples all samples through the kernel matrix"

    @property
    def gaussian(self) -> GPPrior | None:
        """The family whose members `parts` are, if these are Gaussian processes of the target."""
        return None

    @property
    def bayesian(self) -> BNNPrior | None:
        """The family itself, if it is one of Bayesian networks."""
        return None

    def parts(self, phi: Particle) -> tuple[Float[Array, " members"], Float[Array, "members base"]]:
        """The weights and the parameters of what the particle mixes."""
        return arrays.of(phi).ones(1, phi.dtype), phi[None]

    def start(
        self, key: Array, around: HyperPrior, count: int, spread: float = 1.0
    ) -> Float[Array, "count size"]:
        """Where training begins; `spread` scales how far draws lie from the hyper-prior's mean."""
        return sample(key, around, count, spread)

    def draw(self, key: Array, dtype: jnp.dtype | type) -> Noise:
        """What one estimate of the evidence needs, whatever the particle."""
        return ()

    def log_evidence(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, noise: Noise = ()
    ) -> Float[Array, ""]:
        """ln Z: the log expectation under P_phi of the likelihood to the power `temperature`.

        Given the `noise` of `draw` it is deterministic, so that it has a gradient.
        """
        ...

    def log_evidence_of(self, phi: Particle, posterior: Posterior) -> Float[Array, ""]:
        """ln Z of the data a posterior holds, from its factors."""
        ...

    def posterior(
        self, phi: Particle, data: Data, temperature: Scalar = 1.0, key: Array | None = None
    ) -> Posterior:
        """P_phi conditioned on the data; `key` is for families that draw."""
        ...

    def predict(self, phi: Particle, posterior: Posterior, x: Inputs) -> Mixture | Probabilities:
        """A `Mixture` (observation noise included), or `Probabilities` of classes."""
        ...

    def leave_one_out(self, phi: Particle, posterior: Posterior) -> LeftOut: ...

    def responsibilities(self, phi: Particle, posterior: Posterior) -> Float[Array, " components"]:
        """How much of the posterior each base prior carries (1 for a family that is no mixture)."""
        return arrays.of(phi).ones(1, phi.dtype)

    def extend(self, phi: Particle, posterior: Posterior, more: Data) -> Posterior:
        """The posterior with more samples, without starting over."""
        ...

    def fingerprint(self, phi: Particle, x: Float[Array, "r d"]) -> Float[Array, " f"]:
        """What the prior predicts at reference inputs: particles are compared by it."""
        ...


class Exact(Prior, Protocol):
    """A family with closed forms whose predictions mix Gaussians: it can be mixed and warped."""

    def predict(self, phi: Particle, posterior: Posterior, x: Inputs) -> Mixture: ...


def joined(data: Data, more: Data) -> Data:
    """The samples of both, those that came later behind the others."""
    xp = arrays.of(*data, *more)
    return Data(*(xp.concatenate(pair) for pair in zip(data, more, strict=True)))


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether every number of every array is finite."""
    import jax
    import jax.numpy as jnp

    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]))


def random_rows(key: Array, mask: Bool[Array, " m"], size: int) -> Int[Array, " size"]:
    """`size` rows without replacement; all that the mask allows, and padding, where there are fewer."""
    import jax
    import jax.numpy as jnp

    order = jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0)
    return jax.lax.top_k(-order, min(size, mask.shape[0]))[1]


def ascend(
    gradient: Callable[[Place, Array], Place],
    start: Place,
    optimizer: optax.GradientTransformation,
    steps: int,
) -> Place:
    """Steps of the optimiser along gradient(place, number of the step); one that is not finite is not
    taken."""

    import jax
    import jax.numpy as jnp
    import optax

    def step(number: Array, carry: tuple[Place, optax.OptState]) -> tuple[Place, optax.OptState]:
        place, memory = carry
        uphill = gradient(place, number)
        change, moved = optimizer.update(jax.tree.map(jnp.negative, uphill), memory)
        after = (optax.apply_updates(place, change), moved)
        return jax.tree.map(partial(jnp.where, all_finite(uphill)), after, carry)

    return jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))[0]
