"""Particles of several families side by side: each group learns as its family alone would."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl import hyper
from pacpfl.bounds.divergences import diagonal_gaussian_kl
from pacpfl.config import Config, updated
from pacpfl.errors import InputError
from pacpfl.methods.blend import Blend, Group, hyper_prior_of
from pacpfl.methods.pacpfl import PACPFL, State
from pacpfl.methods.registry import build_pacpfl
from pacpfl.priors.gp import GPPrior
from pacpfl.types import Data, Form

FORM = Form(("a", "b"), clients=3, sizes=(6, 6, 6))
LINES = {
    "prior.mean": "linear", "prior.kernel": "linear", "prior.output_scale": "fixed",
    "prior.noise": 0.3, "prior.noise_spread": 0.5, "train.particles": 2, "train.tau": 0.7,
    "train.hyper_std": 0.4, "train.learning_rate": 0.05, "train.rounds": 10,
    "train.schedule": "cooldown",
}  # fmt: skip
CURVES = LINES | {
    "prior.mean": "linear+mlp", "prior.kernel": "ard+linear", "prior.output_scale": "learned",
    "prior.noise_model": "linear", "train.tau": 0.2, "train.rounds": 5,
}  # fmt: skip


def built(values: dict[str, object]) -> PACPFL:
    return build_pacpfl(updated(Config(), values, "a test"), FORM)


def group(method: PACPFL) -> Group:
    assert isinstance(method.prior, GPPrior)
    return Group(method.prior.settings, method.settings)


def blended(*methods: PACPFL) -> Blend:
    whole = {
        "prior.mean": "mlp+linear", "prior.kernel": "deep+linear+ard",
        "prior.output_scale": "learned", "prior.noise_model": "linear",
    }  # fmt: skip
    numbers = {
        "train.rounds": 10,
        "train.schedule": "cooldown",
        "train.particles": 2 * len(methods),
    }
    blend = tuple(str(group(method)) for method in methods)
    method = built(whole | numbers | {"train.blend": blend})
    assert isinstance(method, Blend)
    return method


def within(blend: Blend, method: PACPFL, particles: jax.Array) -> jax.Array:
    """A family's particles as ones of the whole, by the names of their blocks."""
    whole, own = blend.prior, method.prior
    assert isinstance(whole, GPPrior) and isinstance(own, GPPrior)
    around = hyper_prior_of(whole, group(method), particles.dtype).means

    def one(phi: jax.Array) -> jax.Array:
        mine, pieces = own.split(phi), whole.split(around)
        for name in pieces:
            if name == "kernel.scale" and name in mine:
                order = whole.settings.kernel.split("+")
                for part, value in zip(own.settings.kernel.split("+"), mine[name], strict=True):
                    pieces[name] = pieces[name].at[order.index(part)].set(value)
            elif name in mine:
                pieces[name] = mine[name]
        return jnp.concatenate(list(pieces.values()))

    return jax.vmap(one)(particles)


def test_every_group_learns_as_its_family_alone() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 6, 2))
    data = Data(*map(jnp.asarray, (x, x.sum(-1), np.ones((3, 6), bool))))
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, data._replace(x=x, y=np.sin(x.sum(-1))))
        methods = built(LINES), built(CURVES)
        example = jax.tree.map(lambda a: a[0], data)
        states = [m.init(jax.random.key(i), example) for i, m in enumerate(methods)]
        blend = blended(*methods)
        start = blend.init(jax.random.key(2), example)
        together = start._replace(particles=jnp.concatenate([
            within(blend, method, state.particles)
            for method, state in zip(methods, states, strict=True)
        ]))  # fmt: skip

        def play(method: PACPFL, state: State) -> State:
            keys = jax.random.split(jax.random.key(3), 3)
            updates, _ = jax.vmap(method.client_update, in_axes=(None, None, 0, 0))(
                state, (), data, keys
            )
            return jax.jit(method.server_update)(state, updates, jnp.ones(3), keys[0])

        for number in range(10):
            together = play(blend, together)
            rest = blend.settings.rounds  # a family that has had its rounds stays where it is
            states = [
                play(method, state) if number < min(rest, method.settings.rounds) else state
                for method, state in zip(methods, states, strict=True)
            ]
        expected = [
            within(blend, method, state.particles)
            for method, state in zip(methods, states, strict=True)
        ]
        np.testing.assert_allclose(together.particles, jnp.concatenate(expected), atol=1e-8)
        own = methods[0].personalize(states[0], (), example, jax.random.key(0))
        ours = blend.personalize(together, (), example, jax.random.key(0))
        np.testing.assert_allclose(ours(data.x[1]).means[:2], own(data.x[1]).means, atol=1e-8)
        np.testing.assert_allclose(ours(data.x[1]).stds[:2], own(data.x[1]).stds, atol=1e-8)


def test_what_is_off_is_drawn_nowhere_else_and_costs_no_divergence() -> None:
    method = built(LINES)
    blend = blended(method, built(CURVES))
    around = blend.hyper_prior(jnp.float32)
    drawn = hyper.sample(jax.random.key(0), around, 6)
    assert (np.asarray(around.stds)[:2] > 0).sum(1).tolist() == [method.prior.size] * 2
    still = np.asarray(around.stds)[[0, 1, 2, 3, 0, 1]] == 0
    means = np.asarray(around.means)[[0, 1, 2, 3, 0, 1]]
    np.testing.assert_array_equal(np.asarray(drawn)[still], means[still])
    free = np.asarray(around.stds[0]) > 0
    kl = diagonal_gaussian_kl(
        drawn[:1], np.where(free, 0.1 * around.stds[0], 1.0), means[:1],
        np.where(free, around.stds[0], 1.0),
    )  # fmt: skip
    family = method.hyper_prior(jnp.float32)
    own = diagonal_gaussian_kl(drawn[:1, free], 0.1 * family.stds, family.means, family.stds)
    np.testing.assert_allclose(kl, own, rtol=1e-5)


def test_groups_are_read_as_they_are_written() -> None:
    one = group(built(CURVES))
    assert Group.read(str(one), one.prior, one.train) == one
    other = Group.read("kernel=linear tau=0.1", one.prior, one.train)
    assert other == Group(replace(one.prior, kernel="linear"), replace(one.train, tau=0.1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train.blend": ("particles=2 kernel=ard",)}, "no part of mean"),
        ({"train.blend": ("particles=2 mean=zero",)}, "no part of mean"),
        ({"train.blend": ("particles=1",)}, "2 particles together"),
        ({"train.blend": ("particles=two",)}, "no group of particles"),
        ({"train.blend": ("speed=2",)}, "no group of particles"),
        ({"train.blend": ("particles=2",), "prior.members": 2}, "one Gaussian process"),
    ],
)
def test_a_blend_that_does_not_fit_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        built(LINES | values)
