r"""Particles of several families side by side: a hyper-posterior over families of priors.

Every particle has the parameters of one Gaussian process that has all parts of the mean, kernel and
noise. Those of a group are of a smaller family: the parts it lacks are off, and stay so, because its
hyper-prior has no spread there. So the hyper-prior is the mixture

$$P = \sum_g \frac{k_g}{k} P_g,$$

of the groups' own, in which each has as much weight as it has particles, and a client's model, in which
particles weigh alike, is a mixture of families. Only particles of one group push each other apart, and
each group has its own tau, rate and rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from pacpfl import hyper, svgd
from pacpfl.errors import InputError, explained
from pacpfl.hyper import Block, HyperPrior
from pacpfl.methods.pacpfl import PACPFL, State, optimizer_with
from pacpfl.methods.settings import TrainSettings
from pacpfl.priors.gp import GPPrior, GPSettings

OFF = -20.0  # ln of the scale of a kernel that is off: its variance is 4e-18

PRIOR = {"mean": str, "kernel": str, "output_scale": str, "noise_model": str} | dict.fromkeys(
    ("noise", "noise_spread"), float
)
TRAIN = {"particles": int, "rounds": int} | dict.fromkeys(
    ("tau", "hyper_std", "learning_rate"), float
)


class Group(NamedTuple):
    """Particles of one family, and how they are trained."""

    prior: GPSettings
    train: TrainSettings

    def __str__(self) -> str:
        said = [f"{name}={getattr(self.train, name)}" for name in TRAIN]
        return " ".join([*said, *(f"{name}={getattr(self.prior, name)}" for name in PRIOR)])

    @classmethod
    def read(cls, text: str, prior: GPSettings, train: TrainSettings) -> Group:
        """Read what `str` wrote; what it does not say is as given. An InputError names what is wrong."""
        remedy = f"write names of {', '.join(TRAIN | PRIOR)}, such as particles=4 kernel=linear"
        said: dict[str, dict[str, Any]] = {"prior": {}, "train": {}}
        with explained(
            f"train.blend: {text!r} is no group of particles", remedy, ValueError, KeyError
        ):
            for word in text.split():
                name, _, value = word.partition("=")
                section = "prior" if name in PRIOR else "train"
                said[section][name] = (TRAIN | PRIOR)[name](value)
        return cls(replace(prior, **said["prior"]), replace(train, **said["train"]))


def hyper_prior_of(whole: GPPrior, group: Group, dtype: Any = jnp.float32) -> HyperPrior:
    """Return a group's hyper-prior of the whole family's parameters; of what is off the std is 0.

    The group's mean, kernel and noise must be parts of the whole's, whose scales are learned if a
    kernel is off.
    """
    own = {block.name: block for block in GPPrior(whole.features, group.prior).blocks}
    kernels = group.prior.kernel.split("+")
    learned = 0.5 if group.prior.output_scale == "learned" else 0.0
    blocks = []
    for block in _single(whole):
        kind, _, name = block.name.partition("scale.")
        if kind == "kernel.":
            on = name in kernels
            blocks.append(block._replace(mean=0.0 if on else OFF, std=learned if on else 0.0))
        else:
            blocks.append(own.get(block.name, block._replace(std=0.0)))
    known = {block.name for block in blocks} | {"kernel.scale"}
    everything = whole.settings.kernel.split("+")
    off = len(kernels) < len(everything) and whole.settings.output_scale == "fixed"
    if off or not own.keys() <= known or not set(kernels) <= set(everything):
        raise InputError(
            f"train.blend: {group} is no part of mean {whole.settings.mean}, kernel "
            f"{whole.settings.kernel}, noise {whole.settings.noise_model} with scales "
            f"{whole.settings.output_scale}; widen [prior]."
        )
    return hyper.hyper_prior(blocks, group.train.hyper_std, dtype)


def _single(whole: GPPrior) -> Iterator[Block]:
    """Yield the blocks, that of the kernels' scales kernel by kernel."""
    for block in whole.blocks:
        if block.name != "kernel.scale":
            yield block
            continue
        for name in whole.settings.kernel.split("+"):
            yield block._replace(name=f"kernel.scale.{name}", size=1)


@dataclass(frozen=True)
class Blend(PACPFL):
    """PAC-PFL whose particles come in groups."""

    whole: GPPrior = field(kw_only=True)
    groups: tuple[Group, ...] = field(kw_only=True)

    @classmethod
    def of(cls, method: PACPFL, prior: GPPrior) -> Blend:
        """Read the groups that the settings name; an InputError where they do not fit the prior."""
        train = method.settings
        groups = tuple(Group.read(text, prior.settings, train) for text in train.blend)
        if sum(group.train.particles for group in groups) != train.particles:
            raise InputError(
                f"train.blend: the groups do not have {train.particles} particles together; set "
                "train.particles to how many they have."
            )
        for group in groups:
            hyper_prior_of(prior, group)
        return cls(
            **{f.name: getattr(method, f.name) for f in fields(method)}, whole=prior, groups=groups
        )

    def _each(self, name: str) -> Float[Array, " k"]:
        """Return a number of every particle."""
        return jnp.array(
            [float(getattr(g.train, name)) for g in self.groups for _ in range(g.train.particles)]
        )

    @property
    def tau(self) -> Any:
        return self._each("tau")[:, None]

    def hyper_prior(self, dtype: Any) -> HyperPrior:
        each = [
            hyper_prior_of(self.whole, group, dtype)
            for group in self.groups
            for _ in range(group.train.particles)
        ]
        return jax.tree.map(lambda *rows: jnp.stack(rows), *each)

    def direction(self, state: State, scores: Array, finite: Bool[Array, " k"]) -> Array:
        ends = list(accumulate(group.train.particles for group in self.groups))
        steps = []
        for start, end in pairwise([0, *ends]):
            own = slice(start, end)
            features = self.kernel or self.settings.svgd_kernel, self.fingerprint(state)
            steps.append(svgd.direction(state.particles[own], scores[own], *features, finite[own]))
        return jnp.concatenate(steps)

    def advance(self, step: Array, state: State) -> tuple[Array, optax.OptState]:
        """Take a step of each particle's own rate, which falls to 0 in the last fifth of its rounds."""

        def one(step: Array, memory: Any, phi: Array, rate: Array, rounds: Array) -> Any:
            def schedule(count: Array) -> Array:
                return rate * jnp.clip((rounds - count) / jnp.ceil(rounds / 5), 0, 1)

            return optimizer_with(self.settings, schedule).update(step, memory, phi)

        numbers = self._each("learning_rate"), self._each("rounds")
        return jax.vmap(one)(step, state.optimizer, state.particles, *numbers)
