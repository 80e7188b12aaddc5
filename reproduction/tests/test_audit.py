"""The attack on the mechanism: it respects honest builds and exposes broken ones."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pacpfl.errors import InputError
from pacpfl.privacy import mechanisms
from pacpfl.privacy.accounting import ORDER, Plan, plan_for
from reproduction import audit
from reproduction.audit import Build, audit_mechanism
from reproduction.audit_statistics import gaussian_epsilon


def planned(mode: Any, epsilon: float, rounds: int = 1, sampling: Any = "all", q: int = 10) -> Plan:
    return plan_for(epsilon, 1e-5, rounds, mode=mode, sampling=sampling, clients=10, cohort=q)


def halved(key: Any, total: Any, scale: Any, kind: Any) -> Any:
    return mechanisms.add_noise(key, total, scale / 2, kind)


def unclipped(update: Any, *limits: Any) -> Any:
    return update


HALF_NOISE = Build(add_noise=halved)
NO_CLIP = Build(clip=unclipped)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_gaussian_is_below_its_exact_epsilon_and_close(epsilon: float) -> None:
    plan = planned("gaussian", epsilon)
    found = audit_mechanism(plan, dimension=2)
    exact = gaussian_epsilon(1 / plan.multiplier, 1e-5)
    assert 0.75 * exact <= found.bound.epsilon <= exact
    assert found.claimed == pytest.approx(exact, rel=0.01)
    assert not found.exposed
    assert found.adjacency == "add-remove"


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_laplace_is_below_its_epsilon_and_close(epsilon: float) -> None:
    found = audit_mechanism(planned("laplace", epsilon), dimension=2)
    assert 0.75 * epsilon <= found.bound.epsilon <= found.claimed
    assert found.claimed == pytest.approx(epsilon)
    assert found.bound.delta == 0


@pytest.mark.parametrize("mode", ["gaussian", "laplace"])
@pytest.mark.parametrize("build", [HALF_NOISE, NO_CLIP], ids=["half the noise", "no clip"])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_broken_builds_are_exposed(mode: str, build: Build, epsilon: float) -> None:
    found = audit_mechanism(planned(mode, epsilon), dimension=2, build=build)
    assert found.exposed
    assert found.bound.epsilon > 1.5 * found.claimed


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_the_printed_claim_is_exposed_in_a_hundred_dimensions(epsilon: float) -> None:
    found = audit_mechanism(planned("paper", epsilon), dimension=100, trials=20_000)
    assert found.claimed == epsilon
    assert not found.guaranteed
    assert found.exposed


def test_the_printed_claim_holds_in_one_dimension() -> None:
    """There L1 and L2 are the same: it is the dimension that the attack exposes."""
    found = audit_mechanism(planned("paper", 2.0), dimension=1)
    assert 1.5 <= found.bound.epsilon <= 2.0


@pytest.mark.parametrize("mode", ["gaussian", "laplace"])
def test_several_rounds_with_sampling(mode: str) -> None:
    plan = planned(mode, 4.0, rounds=4, sampling="poisson", q=5)
    honest = audit_mechanism(plan, 4, dimension=1, trials=20_000)
    assert 0.5 < honest.bound.epsilon <= honest.claimed
    assert honest.bound.how == "Clopper-Pearson"
    assert audit_mechanism(plan, 4, dimension=1, trials=20_000, build=NO_CLIP).exposed


@pytest.mark.parametrize("mode", ["gaussian", "laplace"])
def test_one_client_replaced_by_another(mode: str) -> None:
    """Twice the change of the sum: with the noise for one client more or less it would be exposed."""
    plan = planned(mode, 2.0, sampling="fixed")
    assert plan.adjacency == "replace"
    found = audit_mechanism(plan, dimension=2)
    assert 0.75 * 2.0 <= found.bound.epsilon <= found.claimed
    assert audit_mechanism(plan, dimension=2, build=HALF_NOISE).exposed


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_ratio_is_that_of_the_densities(kind: str, rate: float) -> None:
    rng = np.random.default_rng(0)
    seen, canary, scale = rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 3)), 0.7
    density = stats.laplace if kind == "laplace" else stats.norm
    without = density.pdf(seen, scale=scale).prod((1, 2))
    with_ = density.pdf(seen - canary, scale=scale).prod((1, 2))
    expected = np.log(((1 - rate) * without + rate * with_) / without).sum()
    with jax.enable_x64(True):
        found = audit.ratio(jnp.asarray(seen), jnp.asarray(canary), scale, kind, rate)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_worst_directions_have_the_norm_that_is_clipped() -> None:
    for mode, order in ORDER.items():
        direction = audit.worst_direction(mode, 100)
        assert float(mechanisms.norm(direction, order)) == pytest.approx(1.0, rel=1e-5)
    # In L1, which Laplace noise hides by, the printed clip lets ten times as much through.
    printed = float(mechanisms.norm(audit.worst_direction("paper", 100), 1))
    assert printed == pytest.approx(10.0, rel=1e-5)


def test_the_last_bits_do_not_decide() -> None:
    """Released values that differ by less than a thousandth of the noise look the same."""
    seen = jnp.array([0.1, 0.1 + 1e-6, -3.0])
    coarse = audit.coarse(seen, 0.5)
    assert float(coarse[0]) == float(coarse[1])
    assert float(jnp.abs(coarse - seen).max()) <= 0.5 * 0.5 * audit.GRID * (1 + 1e-3)


def test_one_run_stays_below_and_sees_missing_noise() -> None:
    plan = planned("gaussian", 1.0)
    honest = audit.audit_one_run(plan, canaries=400, guesses=60)
    assert honest.bound.epsilon <= honest.claimed
    broken = Build(add_noise=lambda key, total, scale, kind: halved(key, total, scale / 3, kind))
    assert audit.audit_one_run(plan, canaries=400, guesses=60, build=broken).exposed


def test_what_cannot_be_audited_is_said() -> None:
    with pytest.raises(InputError, match="at least 20"):
        audit_mechanism(planned("laplace", 1.0), trials=5)
    with pytest.raises(InputError, match="claims nothing"):
        audit.claimed_epsilon(Plan("paper", "all", 5, 5, 1.0), 1)
    with pytest.raises(InputError, match="one client more or less"):
        audit.audit_one_run(planned("laplace", 1.0, sampling="fixed"))


def test_the_claim_of_fewer_rounds_than_planned() -> None:
    plan = planned("paper", 8.0, rounds=4)
    assert audit.claimed_epsilon(plan, 1) == pytest.approx(2.0)
    laplace = planned("laplace", 8.0, rounds=4)
    assert audit.claimed_epsilon(laplace, 1) == pytest.approx(2.0)
    assert math.isfinite(audit.claimed_epsilon(planned("gaussian", 8.0, rounds=4), 1))
