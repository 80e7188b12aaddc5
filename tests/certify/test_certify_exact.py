"""Certificates of clients against oracles: textbook Gaussians, draws, optimisers, and the future."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from coverage_of_bounds import assert_bounds_hold
from scipy import stats
from scipy.optimize import minimize
from scipy.special import softmax

from pacpfl import hyper, predictive
from pacpfl.bounds import (
    gaussian_process_kl,
    kl_inverse,
    particle_cloud_kl,
    privacy_cost,
    sampling_epsilon,
)
from pacpfl.build import build_federation
from pacpfl.certify import gaussian_processes as tempered
from pacpfl.certify.average import certify_average
from pacpfl.certify.certificate import REFUTABLE
from pacpfl.certify.clients import (
    NATS,
    ClientCertificate,
    Posteriors,
    beta_grid,
    certify_clients,
)
from pacpfl.certify.gaussian_processes import TEMPERATURES, Loss, build_loss, family
from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.methods.registry import build_pacpfl
from pacpfl.personal import PersonalSettings
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.run import Trained
from pacpfl.types import Client, Data, Federation, Samples

pytestmark = pytest.mark.usefixtures("x64")
DELTA = 0.05
CONFIG = Config(
    seed=3,
    data=DataSettings(clients=4, new_clients=3, samples=12, test_samples=30),
    prior=GPSettings(mean="linear", kernel="ard", noise=0.3, noise_model="linear"),
    train=TrainSettings(rounds=1, particles=2, tau=0.05),
    personal=PersonalSettings(weights="evidence"),
    run=RunSettings(precision="float64"),
)


def make(config: Config = CONFIG, federation: Federation | None = None) -> Trained:
    """A run as if it had ended with particles near the hyper-prior's mean."""
    federation = build_federation(config) if federation is None else federation
    method = build_pacpfl(config, federation.form)
    prior = method.hyper_prior(np.float64)
    drawn = hyper.sample(jax.random.key(1), prior, method.settings.particles)
    particles = prior.means + 0.4 * (drawn - prior.means)
    example = Data(jnp.zeros((1, 1)), jnp.zeros(1), jnp.ones(1, bool))
    state = method.init(jax.random.key(1), example)._replace(particles=particles)
    return Trained(config, {}, federation, method, state)


@pytest.fixture(scope="module")
def trained(x64: None) -> Trained:
    return make()


@pytest.fixture(scope="module", params=["clipped-nll", "clipped-squared"])
def loss(request: pytest.FixtureRequest) -> Loss:
    return build_loss(request.param)


def law(
    oracle: SimpleNamespace, prior: Any, phi: Any, client: Client, t: float, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of h at `at`, conditioned on the client's samples."""
    x, y = client.personal.x, client.personal.y
    noise = np.diag(oracle.noise(prior, phi, x) ** 2 / t)
    cross = oracle.kernel(prior, phi, at, x)
    gain = np.linalg.solve(oracle.kernel(prior, phi, x, x) + noise, cross.T).T
    mean = oracle.mean(prior, phi, at) + gain @ (y - oracle.mean(prior, phi, x))
    return mean, oracle.kernel(prior, phi, at, at) - gain @ cross.T


def divergence(kernel: np.ndarray, residual: np.ndarray, noise: np.ndarray, t: float) -> float:
    """KL(posterior || prior). It does not depend on units: here each value's unit is its noise."""
    scaled = kernel / np.outer(noise, noise)
    return float(gaussian_process_kl(scaled, residual / noise, 1.0, t))


NORMAL = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None]


def judged(
    oracle: SimpleNamespace, prior: Any, phi: Any, client: Client, t: float, loss: Loss, on: Samples
) -> tuple[float, float]:
    """Divergence of one particle's posterior, and its risk on some samples: over quantiles of h."""
    x, y = client.personal.x, client.personal.y
    residual = y - oracle.mean(prior, phi, x)
    kl = divergence(oracle.kernel(prior, phi, x, x), residual, oracle.noise(prior, phi, x), t)
    mean, covariance = law(oracle, prior, phi, client, t, on.x)
    h = mean + np.sqrt(np.diag(covariance)) * NORMAL
    if loss.kind == "clipped-squared":
        return kl, float(np.minimum((h - on.y) ** 2, loss.range.b).mean())
    density = stats.norm.logpdf(on.y, h, oracle.noise(prior, phi, on.x))
    return kl, float(np.clip(-density, loss.range.a, loss.range.b).mean())


def test_one_decomposition_gives_the_textbook_posterior_at_every_temperature() -> None:
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(9, 1)), rng.normal(size=(4, 1))
    kernel = np.stack([np.exp(-0.5 * (x - x.T) ** 2 / c) for c in (1.0, 0.2)])
    cross = np.stack([np.exp(-0.5 * (at - x.T) ** 2 / c) for c in (1.0, 0.2)])
    mean, y, noise = rng.normal(size=(2, 9)), rng.normal(size=9), rng.uniform(0.3, 0.7, (2, 9))
    spectrum = tempered.decompose(kernel, mean, y, noise)
    inputs = tempered.Inputs(rng.normal(size=(2, 4)), cross, np.ones((2, 4)), np.ones((2, 4)))
    powers = np.array([0.1, 1.0, 2.0])
    kls = tempered.divergence(spectrum, powers)
    own, other = tempered.at_samples(spectrum, powers), tempered.at_inputs(spectrum, inputs, powers)
    for i, t in enumerate(powers):
        for c in range(2):
            total = kernel[c] + np.diag(noise[c] ** 2 / t)
            gain = np.linalg.solve(total, kernel[c]).T
            posterior = kernel[c] - gain @ kernel[c]
            centre = gain @ (y - mean[c])
            assert own[0][i, c] == pytest.approx(mean[c] + centre, abs=1e-9)
            assert own[1][i, c] == pytest.approx(np.diag(posterior), abs=1e-9)
            gain = np.linalg.solve(total, cross[c].T).T
            assert other[0][i, c] == pytest.approx(inputs.mean[c] + gain @ (y - mean[c]), abs=1e-9)
            assert other[1][i, c] == pytest.approx(1 - np.sum(gain * cross[c], 1), abs=1e-9)
            expected = divergence(kernel[c], y - mean[c], noise[c], float(t))
            assert kls[i, c] == pytest.approx(expected, rel=1e-9)


def test_the_tightest_posterior_cannot_be_improved() -> None:
    rng = np.random.default_rng(4)
    prior, risk, kl = rng.dirichlet(np.ones(3)), rng.uniform(0, 1, (5, 3)), rng.gamma(2, 2, (5, 3))
    posteriors = Posteriors(prior[None], risk, kl)
    betas = np.array([3.0, 20.0])
    for beta, choice in zip(betas, posteriors.tightest(betas), strict=True):

        def value(logits: np.ndarray, t: int, beta: float = beta) -> float:
            q = softmax(logits)
            return float(q @ (beta * risk[t] + kl[t]) + stats.entropy(q, prior))

        found = min(minimize(value, np.zeros(3), args=(t,)).fun for t in range(5))
        assert -choice.log_evidence == pytest.approx(found, abs=1e-4)
        t, q = choice.row, choice.weights
        assert posteriors.risk_of(choice) == pytest.approx(q @ risk[t])
        assert posteriors.divergence(choice) == pytest.approx(q @ kl[t] + stats.entropy(q, prior))
        assert value(np.log(q), t) == pytest.approx(found, abs=1e-4)


def test_a_certificate_worked_from_scratch(
    trained: Trained, loss: Loss, oracle: SimpleNamespace
) -> None:
    """Everything again with the oracle's law of h, risks by its quantiles, and the bound by hand."""
    prior, particles = trained.method.prior, np.asarray(trained.particles)
    found = {c.client: c for c in certify_clients(family(trained, loss), DELTA)[0]}
    for client, group in (
        (trained.federation.existing[1], "existing"),
        (trained.federation.new[0], "new"),
    ):
        given = found[client.name]
        certificate, t, m = given.posterior, given.temperature, 12
        assert given.group == group and client.test is not None
        own, test = (
            np.array([judged(oracle, prior, phi, client, t, loss, on) for phi in particles])
            for on in (client.personal, client.test)
        )
        kls, risks = own.T
        epsilon, width = 0.0, loss.range.width
        if group == "existing":
            spread = 3.0 if loss.kind == "clipped-nll" else 1 / (
                2 * min(np.log1p(np.exp(phi[-1])) for phi in particles) ** 2
                / np.exp(3.0)  # of the noise where it is smallest
            )  # fmt: skip
            epsilon = 2 * 2 * 0.05 * spread  # k draws, beta = m
            assert given.privacy.epsilon == pytest.approx(epsilon)
        terms = (math.comb(m, k) * (k / m) ** k * (1 - k / m) ** (m - k) for k in range(m + 1))
        cost = privacy_cost(epsilon, m, DELTA) + math.log(sum(terms) / DELTA)
        options = []
        for beta in beta_grid(m, width):
            q = softmax(-beta * risks - kls)
            kl, risk = q @ kls + stats.entropy(q, [0.5, 0.5]), (q @ risks - loss.range.a) / width
            options.append((kl_inverse(risk, (kl + cost) / m), kl, risk, q))
        bound, kl, risk, q = min(options, key=lambda option: option[0])
        assert given.kl == pytest.approx(kl, rel=1e-5)
        assert certificate.empirical_risk == pytest.approx(loss.range.a + width * risk, abs=1e-4)
        assert certificate.bound == pytest.approx(loss.range.a + width * bound, abs=1e-4)
        assert given.posterior_test_risk == pytest.approx(q @ test[:, 1], abs=1e-4)


@pytest.mark.parametrize("t", [1.0, 0.6])  # the second is none of those a certificate chooses from
@pytest.mark.parametrize("rows", [0, 6, 12])
@pytest.mark.parametrize("rule", ["evidence", "stacking"])
def test_the_rows_judge_the_run_s_own_predictor(t: float, rows: int, rule: str, x64: None) -> None:
    """Averaged: against the predictive density and mean of the client's model. Drawn: by quantiles of h."""
    config = replace(CONFIG, train=replace(CONFIG.train, temperature=t))
    trained = make(replace(config, personal=PersonalSettings(weights=rule)))
    client = trained.federation.new[1]
    fit, test = client.train.rows(slice(rows)), client.test
    assert test is not None
    x = np.zeros((12, 1))
    x[:rows] = fit.x
    data = jax.tree.map(
        jnp.asarray,
        Data(x, np.pad(fit.y, (0, 12 - rows)), np.arange(12) < rows),  # type: ignore[arg-type]
    )
    state = SimpleNamespace(particles=trained.particles)
    model = trained.method.personalize(state, (), data, jax.random.key(0))  # type: ignore[arg-type]
    prediction = model(jnp.asarray(test.x))
    for kind in ("clipped-nll", "clipped-squared"):
        judging = family(trained, build_loss(kind))
        (found,) = judging.rows(np.array([5]), [fit], [test])
        if kind == "clipped-nll":
            density = np.asarray(predictive.log_density(prediction, jnp.asarray(test.y)))
            assert found.averaged == pytest.approx(np.clip(-density, -1, 2), abs=1e-9)
        else:
            error = (np.asarray(predictive.mean(prediction)) - test.y) ** 2
            assert found.averaged == pytest.approx(np.minimum(error, 1), abs=1e-9)
            noise = np.stack(
                [trained.method.prior.noise_std(phi, test.x) for phi in trained.particles]  # type: ignore[attr-defined]
            )
            spread = np.sqrt(np.asarray(prediction.stds) ** 2 - noise**2)
            h = np.asarray(prediction.means) + spread * NORMAL[:, None]
            drawn = np.minimum((h - test.y) ** 2, 1).mean(0)
            assert found.drawn == pytest.approx(np.asarray(prediction.weights) @ drawn, abs=1e-4)


def test_mixture_priors_pay_for_the_choice_of_a_member(x64: None) -> None:
    """Two equal members are one prior: nothing may change."""
    single = make(replace(CONFIG, train=replace(CONFIG.train, particles=1)))
    double = make(replace(single.config, prior=replace(CONFIG.prior, members=2)))
    phi = single.particles[0]
    both = jnp.concatenate([jnp.zeros(2), phi, phi])[None]

    def certified(trained: Trained, particles: jax.Array) -> list[ClientCertificate]:
        state = trained.state._replace(particles=particles)
        run = replace(trained, state=state)
        return certify_clients(family(run, build_loss("clipped-nll")), DELTA)[0]

    one, two = certified(single, single.particles), certified(double, both)
    for first, second in zip(one, two, strict=True):
        assert second.posterior.bound == pytest.approx(first.posterior.bound, rel=1e-9)
        assert second.averaged.bound == pytest.approx(first.averaged.bound, rel=1e-9)
        assert second.test_risk == pytest.approx(first.test_risk, rel=1e-9)
    uneven = both.at[0, :2].set(jnp.array([3.0, 0.0])).at[0, 2].add(1.0)
    pairs = zip(certified(double, uneven), two, strict=True)
    assert any(abs(a.averaged.bound - b.averaged.bound) > 1e-3 for a, b in pairs)


def test_later_samples_count_but_the_prior_has_not_seen_them(trained: Trained) -> None:
    client = trained.federation.existing[0]
    more = replace(client, later=client.test, test=None)
    federation = replace(trained.federation, existing=(more, *trained.federation.existing[1:]))
    loss = build_loss("clipped-nll")
    found = certify_clients(family(replace(trained, federation=federation), loss), DELTA)[0][0]
    assert (found.samples, found.later, found.test_risk) == (12, 30, None)
    # The training never saw the rows that judge: no premise, whatever it was.
    assert found.averaged.proved and found.judged in (30, 15) and found.fitted in (12, 27)
    statuses = {c.name: c.status for c in found.averaged.conditions}
    assert statuses["prior independent of the client's data"] == "holds"
    assert not found.posterior.proved
    terms, cost = found.posterior.terms, privacy_cost(found.privacy.epsilon, 12, DELTA)
    assert found.privacy.epsilon == pytest.approx(
        float(sampling_epsilon([12.0], 0.05, 3.0, [12], 2)[0])
    )
    assert terms["privacy"] / terms["divergence"] == pytest.approx(cost / found.kl)


def test_taking_part_is_judged_against_priors_from_the_hyper_prior(trained: Trained) -> None:
    """Particles that know the answer help; particles that are far off do not."""
    loss = build_loss("clipped-squared")
    prior = trained.method.hyper_prior(np.float64)
    names = [block.name for block in trained.method.prior.blocks]
    assert names[0] == "mean.linear"
    x = np.concatenate([c.train.x for c in trained.federation.new])
    y = np.concatenate([c.train.y for c in trained.federation.new])
    slope, offset = np.polyfit(x[:, 0], y, 1)
    good = jnp.tile(prior.means.at[:2].set(jnp.array([slope, offset])), (2, 1))
    margins = {}
    for name, particles in {"good": good, "bad": good.at[:, 1].add(30.0)}.items():
        state = trained.state._replace(particles=particles)
        found = certify_clients(family(replace(trained, state=state), loss), DELTA)[0]
        margins[name] = [c.margin for c in found if c.group == "new"]
        for c in found:
            assert c.participation.status == ("holds" if c.margin >= 0 else "does not hold")
            assert c.margin_error > 0
    assert min(margins["good"]) > 0 > max(margins["bad"])


def test_bounds_hold_for_clients_yet_to_come(oracle: SimpleNamespace, x64: None) -> None:
    """200 new clients: certain to 99.9% that bounds fail less often than delta (Clopper-Pearson)."""
    data = DataSettings(clients=1, new_clients=200, samples=12, test_samples=300)
    trained = make(replace(CONFIG, data=data))
    found, newcomers = certify_clients(family(trained, build_loss("clipped-squared", 4.0)), DELTA)
    new = assert_bounds_hold(found, 200, DELTA, certain=0.999)
    assert all(c.averaged.proved and c.posterior.proved for c in new)
    # The average client yet to come, by its own formula: the better of two ways with half of delta each.
    truth = np.mean([c.test_risk for c in new])
    assert newcomers is not None and newcomers.proved and truth < newcomers.bound < truth + 0.5


def test_the_averages_worked_by_hand(trained: Trained, loss: Loss) -> None:
    result = certify_average(family(trained, loss), DELTA)
    n, m, width = 4, 12, loss.range.width
    mean, std = trained.method.hyper_prior(np.float64)
    bracket = particle_cloud_kl(trained.particles, result.bandwidth * std, mean, std)
    assert result.kl == pytest.approx(bracket.upper)
    server = result.federation
    assert sum(server.delta_split.values()) == pytest.approx(DELTA) == server.delta
    share = 0.8 * DELTA / len(NATS)
    beta = result.kl / (n * server.terms["divergence"])
    assert np.min(np.abs(beta / beta_grid(m, width) - 1)) < 1e-9
    assert server.terms["confidence"] == pytest.approx(math.log(1 / share) / (n * beta))
    assert server.terms["deviation"] == pytest.approx(beta * width**2 / (8 * m))
    assert loss.range.a <= server.empirical_risk <= server.terms["empirical"] <= loss.range.b
    assert result.mean < server.terms["empirical"]
    assert server.proved and result.standard_error > 0


def test_the_drawn_average_is_that_of_the_noisy_particles(
    trained: Trained, oracle: SimpleNamespace
) -> None:
    """The empirical term is above -E ln Z / beta, which a second set of draws estimates."""
    loss = build_loss("clipped-squared")
    result = certify_average(family(trained, loss), DELTA)
    rng = np.random.default_rng(11)
    prior = trained.method.prior
    assert isinstance(prior, GPPrior)
    std = result.bandwidth * np.asarray(trained.method.hyper_prior(np.float64).stds)
    beta, values = result.kl / (4 * result.federation.terms["divergence"]), []
    for _ in range(300):
        client = trained.federation.existing[rng.integers(4)]
        phi = np.asarray(trained.particles)[rng.integers(2)] + std * rng.normal(size=std.size)
        pairs = (judged(oracle, prior, phi, client, t, loss, client.train) for t in TEMPERATURES)
        options = [risk + kl / beta for kl, risk in pairs]
        values.append(min(1.0, *options))
    error = np.std(values) / math.sqrt(len(values))
    assert result.mean == pytest.approx(np.mean(values), abs=4 * (error + result.standard_error))
    assert result.federation.terms["empirical"] > np.mean(values) - 3 * error


MILAN = Path(__file__).parents[3] / "shared" / "data" / "pvgis_milan_2018_2019.csv"


@pytest.mark.skipif(not MILAN.exists(), reason="the weather of Milan is not beside the repository")
@pytest.mark.parametrize("case", ["hours at random", "first hours of June", "dead panel"])
def test_what_the_sun_of_milan_contradicts(case: str, x64: None) -> None:
    """Twelve roofs, one sky: rows that are no draws from those to come are found out, and no others."""
    table = pd.read_csv(MILAN, skiprows=8, usecols=["time", "Gb(i)", "Gd(i)", "H_sun"]).dropna()
    times = pd.to_datetime(table.pop("time"), format="%Y%m%d:%H%M")
    table = table.astype(float).assign(month=times.dt.month, year=times.dt.year)
    table = table[table.H_sun > 5]
    sun = (table["Gb(i)"] + table["Gd(i)"]).to_numpy() / 400 - 1
    height = table["H_sun"].to_numpy() / 30 - 1
    june = np.flatnonzero((table.year == 2018) & (table.month == 6))[:100]
    december = np.flatnonzero((table.year == 2018) & (table.month == 12))
    clients = []
    for number in range(14):
        rng = np.random.default_rng(number)
        slope, noise = rng.uniform(0.8, 1.2), 0.1 * rng.normal(size=len(sun))
        y = slope * sun + noise
        mixed = rng.permutation(len(sun))
        train, test = june, december
        if case != "first hours of June":
            train, test = mixed[:100], mixed[100:400]
        truth = np.zeros(len(sun)) - 1.0 if case == "dead panel" else y
        clients.append(
            Client(
                f"roof-{number:02d}",
                Samples(height[train, None], y[train]),
                test=Samples(height[test, None], truth[test]),
            )
        )
    federation = Federation("milan", tuple(clients[:2]), tuple(clients[2:]), ("height",))
    found, _ = certify_clients(family(make(CONFIG, federation), build_loss("clipped-nll")), DELTA)
    new = [one.averaged for one in found if one.group == "new"]
    named = [{c.name for c in one.conditions if c.status == "contradicted"} for one in new]
    if case == "hours at random":
        assert all(one.proved for one in new) and not any(named)
    else:
        assert not any(one.proved for one in new)
        wanted = REFUTABLE if case == "dead panel" else "independent samples"
        assert sum(wanted in names for names in named) >= 10
        assert {one.verdict for one in new} == {"contradicted"}
