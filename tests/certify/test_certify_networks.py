"""Certificates of networks against oracles: a classifier with two weights has everything exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from coverage_of_bounds import assert_bounds_hold
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logsumexp

from pacpfl.bounds import betting_bound, kl_inverse, losses, privacy_cost
from pacpfl.certify import networks
from pacpfl.certify.certificate import Privacy
from pacpfl.certify.clients import (
    Choice,
    ClientBounds,
    ClientCertificate,
    Posteriors,
    certify_clients,
)
from pacpfl.certify.networks import (
    Gaussian,
    build_class_loss,
    drawn_risks,
    family,
    fit,
    search,
    variational,
)
from pacpfl.config import Config, RunSettings
from pacpfl.data.store import from_samples
from pacpfl.likelihoods import Categorical
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference
from pacpfl.priors.networks import MLP
from pacpfl.run import Trained
from pacpfl.types import Client, Data, Federation, Samples

pytestmark = pytest.mark.usefixtures("x64")
DELTA = 0.05
ZERO_ONE = build_class_loss("zero-one", None, 2)
PHI = np.array([[1.0, -0.4, np.log(0.8), np.log(0.6)], [-0.5, 0.3, np.log(1.5), np.log(0.3)]])
KEY = jax.random.key(0)
STEPS = 60
FEW = {
    "networks.DRAWS": 400,
    "networks.DRAWS_ALONE": 2,
    "networks.MOST_CLIENTS": 5,
    "networks.STEPS": STEPS,
    "networks.PILOT_DRAWS": 32,
}


@dataclass(frozen=True)
class TwoWeights:
    """Logits (w_0 x, w_1): class 0 where w_0 x > w_1, so that the 0-1 risk is Gaussian."""

    size = 2

    def initial(self, key: jax.Array) -> jax.Array:
        return jnp.array([0.3, -0.2])

    def __call__(self, parameters: jax.Array, x: jax.Array) -> jax.Array:
        constant = jnp.full((x.shape[0], 1), parameters[1])
        return jnp.concatenate([parameters[0] * x, constant], 1)


def small_prior(kind: str = "variational") -> BNNPrior:
    """With svgd every client draws with a key of its own."""
    noise = "own" if kind == "svgd" else "shared"
    inference = Inference(kind, networks=3, adapt="all", steps=4, learning_rate=0.2)
    return BNNPrior(TwoWeights(), Categorical(2), BNNSettings(noise=noise), inference=inference)


PRIOR = small_prior()
FAMILY = replace(PRIOR, inference=replace(variational(PRIOR).inference, steps=STEPS))


def exact_risk(phi: np.ndarray, mean: Any, std: Any, x: np.ndarray, y: np.ndarray) -> float:
    """E of the 0-1 loss for z ~ N(mean, std^2) and weights mu + sigma z, with scipy's normal."""
    mu, sigma = phi[:2], np.exp(phi[2:])
    centre, spread = mu + sigma * np.asarray(mean), sigma * np.asarray(std)
    margin = x * centre[0] - centre[1]
    width = np.sqrt(x**2 * spread[0] ** 2 + spread[1] ** 2)
    says_one = stats.norm.cdf(-margin / width)
    return float(np.mean(np.where(y == 1, 1 - says_one, says_one)))


def make_client(name: str, samples: int, seed: int) -> Client:
    """Labels that mostly follow a threshold of the client's own."""
    rng = np.random.default_rng([9, seed])
    shift = rng.normal(0.3, 0.4)

    def draw(count: int) -> Samples:
        x = rng.normal(size=(count, 1))
        y = (rng.random(count) < expit(-6 * (x[:, 0] - shift))).astype(float)
        return Samples(x, 1 - y)

    return Client(name, draw(samples), test=draw(60))


@cache
def make_method(kind: str) -> PACPFL:
    """One object of each kind, so that its programs are compiled once."""
    return PACPFL(small_prior(kind), 2, optax.adam(0.1), TrainSettings(particles=2, tau=0.05))


def make(new: int = 3, kind: str = "variational") -> Trained:
    """A run as if it had ended with the particles PHI."""
    existing = tuple(make_client(f"existing-{i}", m, i) for i, m in enumerate((20, 25)))
    others = tuple(make_client(f"new-{i}", 20, 50 + i) for i in range(new))
    federation = Federation("small", existing, others, classes=2)
    method = make_method(kind)
    example = jax.tree.map(jnp.asarray, Data(existing[0].train.x, existing[0].train.y, None))  # type: ignore[arg-type]
    state = method.init(KEY, example)._replace(particles=jnp.asarray(PHI))
    train, run = TrainSettings(particles=2, tau=0.05), RunSettings(precision="float64")
    config = Config(seed=3, train=train, run=run)
    return Trained(config, {}, federation, method, state)


@pytest.fixture(scope="module")
def trained(x64: None) -> Trained:
    return make()


@pytest.fixture(scope="module")
def certified(trained: Trained, few_draws: None) -> dict[str, ClientCertificate]:
    return {c.client: c for c in certify_clients(family(trained, ZERO_ONE), DELTA)[0]}


def batch(clients: tuple[Client, ...]) -> Data:
    """Samples of clients of different sizes, padded."""
    store = from_samples([client.personal for client in clients])
    return Data(*map(jnp.asarray, store.gather(np.arange(len(clients)), np.float64)))


@pytest.mark.parametrize("kind", ["zero-one", "brier", "clipped-nll"])
def test_losses_are_those_of_the_library(kind: str) -> None:
    rng = np.random.default_rng(0)
    outputs, y = 3 * rng.normal(size=(2, 30, 4)), rng.integers(4, size=(2, 30))
    loss = build_class_loss(kind, None, 4)
    values = np.asarray(loss(jnp.asarray(outputs), jnp.asarray(y, float)))
    log_probabilities = log_softmax(outputs, -1)
    expected = {
        "zero-one": losses.zero_one(outputs.argmax(-1), y),
        "brier": losses.brier(np.exp(log_probabilities), y),
        "clipped-nll": losses.clipped_nll(
            np.take_along_axis(log_probabilities, y[..., None], -1)[..., 0], 0.0, math.log(4)
        ),
    }[kind]
    assert values == pytest.approx(expected, abs=1e-12)
    assert (loss.range.a, loss.range.b) == (0, {"zero-one": 1, "brier": 2}.get(kind, math.log(4)))
    broken = jnp.array([[np.nan, 0.0, 0.0, 0.0], [np.inf, 0.0, 0.0, 0.0]])
    assert np.asarray(loss(broken, jnp.zeros(2))) == pytest.approx([loss.range.b] * 2)
    limit = 0.7 if kind == "clipped-nll" else None
    width = build_class_loss(kind, limit, 4).training_range.width
    assert width == pytest.approx(limit or math.log(4))


def test_drawn_risks_are_right_on_average_and_their_upper_bound_as_often_as_stated() -> None:
    clients = (make_client("a", 7, 1), make_client("b", 11, 2))
    data = batch(clients)
    rng = np.random.default_rng(3)
    posteriors = Gaussian(jnp.asarray(rng.normal(size=(2, 2, 2))), jnp.full((2, 2, 2), -0.3))
    keys = jax.random.split(jax.random.key(5), 20_000)
    (risks,) = drawn_risks(FAMILY, ZERO_ONE, jnp.asarray(PHI[0]), posteriors, (data,), keys)
    values = np.asarray(risks)
    assert values.shape == (20_000, 2, 2)
    for r in range(2):
        for c, client in enumerate(clients):
            x, y = client.train.x[:, 0], client.train.y
            truth = exact_risk(PHI[0], posteriors.mean[r, c], math.exp(-0.3), x, y)
            drawn = values[:, r, c]
            assert abs(drawn.mean() - truth) < 5 * drawn.std() / math.sqrt(len(drawn))
            # 400 upper bounds from 50 draws each, wrong with probability at most 0.1.
            uppers = [betting_bound(d, 0.0, 1.0, 0.1) for d in drawn.reshape(400, 50)]
            wrong = sum(upper < truth for upper in uppers)
            assert stats.beta.ppf(0.001, wrong, 401 - wrong) <= 0.1
            assert truth < betting_bound(drawn, 0.0, 1.0, 1e-6) < truth + 0.02


@pytest.mark.parametrize("adapt", ["last", "all"])
def test_a_drawn_network_again_in_numpy(adapt: str) -> None:
    """Bodies are shared, heads are each client's own, and padding counts for nothing."""
    network = MLP((2, 3, 2))
    prior = BNNPrior(network, Categorical(2), inference=Inference(adapt=adapt))
    rng = np.random.default_rng(2)
    means, std = rng.normal(size=network.size), np.exp(rng.normal(-1, 0.2, network.size))
    adapted = 8 if adapt == "last" else network.size
    mean, log_std = rng.normal(size=(2, 3, adapted)), rng.normal(size=(2, 3, adapted))
    x, y, sizes = rng.normal(size=(3, 6, 2)), rng.integers(2, size=(3, 6)), np.array([6, 2, 4])
    data = Data(*map(jnp.asarray, (x, y.astype(float), np.arange(6) < sizes[:, None])))
    nothing = data._replace(mask=jnp.zeros((3, 6), bool))
    keys = jax.random.split(KEY, 4)
    phi = jnp.concatenate([jnp.asarray(means), jnp.log(jnp.asarray(std))])
    loss = build_class_loss("brier", None, 2)
    own, other = drawn_risks(
        variational(prior), loss, phi, Gaussian(jnp.asarray(mean), jnp.asarray(log_std)),
        (data, nothing), keys,
    )  # fmt: skip
    assert np.all(np.asarray(other) == 0)
    for n, key in enumerate(keys):
        z = np.tile(np.asarray(jax.random.normal(key, (network.size,))), (2, 3, 1))
        z[..., -adapted:] = mean + np.exp(log_std) * z[..., -adapted:]
        for r in range(2):
            for c, m in enumerate(sizes):
                w = means + std * z[r, c]
                hidden = np.tanh(x[c, :m] @ w[:6].reshape(2, 3) + w[6:9])
                logits = hidden @ w[9:15].reshape(3, 2) + w[15:]
                values = losses.brier(np.exp(log_softmax(logits, -1)), y[c, :m])
                assert float(own[n, r, c]) == pytest.approx(values.mean(), abs=1e-10)


def test_the_fitted_posterior_is_nearly_the_best_gaussian() -> None:
    """The prior at temperature 0; at others scipy's optimum of the quadrature's ELBO."""
    client = make_client("a", 12, 4)
    temperatures = (0.0, 0.5, 2.0)
    longer = replace(FAMILY, inference=replace(FAMILY.inference, steps=150))  # as certify does it
    found = fit(longer, jnp.asarray(PHI[0]), batch((client,)), jnp.asarray(temperatures), KEY)
    divergence = found.divergence()[:, 0]
    assert divergence[0] == 0 and np.all(np.diff(divergence) > 0)
    nodes, masses = np.polynomial.hermite_e.hermegauss(20)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    mass = np.outer(masses, masses).reshape(-1) / masses.sum() ** 2
    x, y = client.train.x[:, 0], client.train.y.astype(int)

    def negative_elbo(q: np.ndarray, t: float) -> float:
        w = PHI[0, :2] + np.exp(PHI[0, 2:]) * (q[:2] + np.exp(q[2:]) * grid)
        logits = np.stack([w[:, :1] * x, np.broadcast_to(w[:, 1:], (len(w), len(x)))], -1)
        likelihood = log_softmax(logits, -1)[:, np.arange(len(x)), y].sum(1)
        kl = 0.5 * np.sum(np.exp(2 * q[2:]) + q[:2] ** 2 - 1) - q[2:].sum()
        return float(kl - t * mass @ likelihood)

    for place, t in list(enumerate(temperatures))[1:]:
        best = minimize(negative_elbo, np.zeros(4), (t,)).fun
        q = np.concatenate([np.asarray(part[place, 0]) for part in found])
        assert best - 1e-6 <= negative_elbo(q, t) < best + 0.05 < negative_elbo(np.zeros(4), t)


def test_the_chosen_posterior_is_the_best_of_all_tried() -> None:
    rng = np.random.default_rng(6)
    risk, kl = rng.uniform(0, 0.6, (4, 3)), rng.uniform(0, 6, (4, 3))
    client = make_client("a", 25, 1)
    privacy = Privacy("assumed", "a test", 0.3, "sample")
    bounds = ClientBounds(client, "existing", ZERO_ONE.range, privacy, DELTA)
    found = bounds.best(Posteriors(np.ones((3, 1)), risk, kl))

    def bound(row: int, q: np.ndarray) -> float:
        nats = q @ kl[row] + stats.entropy(q, np.full(3, 1 / 3))
        nats += privacy_cost(0.3, 25, DELTA) + seeger(25, DELTA)
        return kl_inverse(q @ risk[row], nats / 25)

    reached = bound(found.row, found.weights)
    for row in range(4):
        for q in rng.dirichlet(np.ones(3), 300):  # the grid of betas is not all temperatures
            assert reached <= bound(row, q) + 0.004


def seeger(m: int, delta: float) -> float:
    """ln(xi(m) / delta), xi summed term by term."""
    terms = (math.comb(m, k) * (k / m) ** k * (1 - k / m) ** (m - k) for k in range(m + 1))
    return math.log(sum(terms) / delta)


class Again(NamedTuple):
    """What certify finds for the clients of a run, found again outside of it."""

    choices: list[Choice]
    posteriors: list[Gaussian]  # of each particle, [rows, clients, p]


@pytest.fixture(scope="module")
def again(trained: Trained, few_draws: None) -> Again:
    everyone = trained.federation.existing + trained.federation.new
    data = batch(everyone)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), 3), 4)
    rows = (*networks.TEMPERATURES, 1.0)
    found = search(FAMILY, ZERO_ONE, trained.particles, data, rows, (keys[0], keys[1]))
    assumed = Privacy("assumed", "Q*", 4 * 0.05 * math.log(2))
    privacies = [assumed] * 2 + [Privacy("independent", "")] * (len(everyone) - 2)
    choices = []
    for i, (client, privacy) in enumerate(zip(everyone, privacies, strict=True)):
        bounds = ClientBounds(client, "", ZERO_ONE.range, privacy, DELTA)
        choices.append(bounds.best(found.of(i)))
    return Again(choices, found.posteriors)


def test_a_certificate_worked_from_scratch(
    trained: Trained, certified: dict[str, ClientCertificate], again: Again
) -> None:
    """Risks by the normal's CDF, divergences by hand, and from them the bounds."""
    everyone = trained.federation.existing + trained.federation.new
    assert list(certified) == [client.name for client in everyone]
    for place, client in enumerate(everyone):
        given, m = certified[client.name], len(client.train)
        assert given.group == ("existing" if place < 2 else "new") and client.test is not None
        choice, certificate = again.choices[place], given.posterior
        assert given.temperature == (*networks.TEMPERATURES, 1.0)[choice.row]
        exact, tests, kls = [], [], []
        for j, phi in enumerate(PHI):
            mean, log_std = (np.asarray(p[choice.row, place]) for p in again.posteriors[j])
            std = np.exp(log_std)
            exact.append(exact_risk(phi, mean, std, client.train.x[:, 0], client.train.y))
            tests.append(exact_risk(phi, mean, std, client.test.x[:, 0], client.test.y))
            kls.append(0.5 * np.sum(std**2 + mean**2 - 1 - np.log(std**2)))
        q = choice.weights
        assert given.kl == pytest.approx(q @ kls + stats.entropy(q, [0.5, 0.5]), rel=1e-9)
        assert certificate.empirical_risk == pytest.approx(q @ exact, abs=0.02)
        assert given.posterior_test_risk == pytest.approx(q @ tests, abs=0.02)
        epsilon = 0.0 if given.group == "new" else 2 * 2 * 0.05 * math.log(2)
        assert given.privacy.epsilon == pytest.approx(epsilon)
        nats = given.kl + privacy_cost(epsilon, m, 0.8 * DELTA) + seeger(m, 0.8 * DELTA)
        upper = certificate.empirical_risk + certificate.terms["draws"]
        assert certificate.bound == pytest.approx(kl_inverse(upper, nats / m), rel=1e-9)
        # Hoeffding for 400 draws is not far below what is paid for them.
        most = math.sqrt(math.log(1 / (0.2 * DELTA)) / (2 * 400))
        assert 0 < certificate.terms["draws"] <= 1.2 * most
        assert upper > q @ exact
        assert certificate.delta_split == pytest.approx({"bound": 0.04, "draws": 0.01})
        assert certificate.proved == (given.group == "new")


def test_certified_risks_come_from_draws_that_chose_nothing(
    trained: Trained, again: Again, certified: dict[str, ClientCertificate]
) -> None:
    """Draws that chose a posterior make it look better than it is: they do not judge it."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), 3), 4)
    data = batch(trained.federation.existing + trained.federation.new)

    def risk(key: jax.Array) -> np.ndarray:
        total, clients = 0.0, np.arange(len(again.choices))
        rows = np.array([choice.row for choice in again.choices])[None]
        for j, phi in enumerate(trained.particles):
            used = Gaussian(*(part[rows, clients] for part in again.posteriors[j]))
            draws = jax.random.split(jax.random.fold_in(key, j), 400)
            (values,) = drawn_risks(FAMILY, ZERO_ONE, phi, used, (data,), draws)
            weights = np.array([choice.weights[j] for choice in again.choices])
            total = total + weights * np.asarray(values).mean(0)[0]
        return np.asarray(total)

    found = np.array([given.posterior.empirical_risk for given in certified.values()])
    assert found == pytest.approx(risk(keys[2]), abs=1e-9)
    assert np.max(np.abs(found - risk(keys[1]))) > 1e-3


@pytest.mark.parametrize("kind", ["svgd", "variational"])
def test_the_rows_judge_the_networks_in_use(kind: str) -> None:
    """As engine.evaluate has them: keys by the client's place within its group; one client has no rows."""
    run = make(kind=kind)
    everyone = run.federation.existing + run.federation.new
    places = jnp.array([0, 1, 0, 1, 2])
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(3), 2)))(places)
    fits = [client.train for client in everyone[:-1]] + [everyone[-1].train.rows(slice(0))]
    asked = [client.test for client in everyone if client.test is not None]
    found = family(run, ZERO_ONE).rows(np.arange(5), fits, asked)

    @jax.jit
    @jax.vmap
    def personalize(data: Data, key: jax.Array) -> jax.Array:
        return run.method.personalize(run.state, (), data, key).posteriors.head

    clients = [replace(client, train=fit) for client, fit in zip(everyone, fits, strict=True)]
    heads = np.asarray(personalize(batch(clients), keys))  # [clients, k, networks, 2]
    for head, test, given in zip(heads, asked, found, strict=True):
        w = head.reshape(-1, 2)
        logits = np.stack([w[:, :1] * test.x[:, 0], np.tile(w[:, 1:], (1, len(test)))], -1)
        wrong = logits.argmax(-1) != test.y
        assert given.drawn == pytest.approx(wrong.mean(0), abs=1e-6)
        averaged = np.exp(log_softmax(logits, -1)).mean(0).argmax(-1) != test.y
        assert given.averaged == pytest.approx(1.0 * averaged)


def test_bounds_hold_for_clients_yet_to_come() -> None:
    """100 new clients: certain to 99% that bounds fail less often than delta (Clopper-Pearson)."""
    found = certify_clients(family(make(new=100), ZERO_ONE), DELTA)[0]
    new = assert_bounds_hold(found, 100, DELTA, certain=0.99)
    assert [c.client for c in new] == [f"new-{number}" for number in range(100)]
    assert sum(not c.averaged.vacuous for c in new) > 75


def test_a_pair_of_prior_and_client_is_above_its_log_evidence(trained: Trained) -> None:
    """On average L^ + KL / beta is above -ln Z / beta, which is a sum over a fine grid, and below
    the risk of the prior; a dear posterior is not taken."""
    pairs = family(trained, ZERO_ONE)
    rng = np.random.default_rng(8)
    betas = np.array([0.5, 30.0])
    found = [pairs.judge_pair(PHI[1], 0, betas, rng) for _ in range(60)]
    values, risks = (np.array(part) for part in zip(*found, strict=True))
    assert np.all((values >= risks) & (values <= pairs.largest))
    client = trained.federation.existing[0]
    x, y = client.train.x[:, 0], client.train.y
    z = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    w = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    w = PHI[1, :2] + np.exp(PHI[1, 2:]) * w
    wrong = (np.where(w[:, :1] * x > w[:, 1:], 0, 1) != y).mean(1)
    prior_risk = exact_risk(PHI[1], np.zeros(2), np.ones(2), x, y)
    assert wrong.mean() == pytest.approx(prior_risk, abs=2e-3)
    for place, beta in enumerate(betas):
        least = -(logsumexp(-beta * wrong) - math.log(len(wrong))) / beta
        error = values[:, place].std() / math.sqrt(len(values))
        assert least - 4 * error < values[:, place].mean() < prior_risk + 4 * error
    # At beta = 0.5 one nat costs twice the width of the loss: the prior itself is the best.
    assert np.array_equal(values[:, 0], risks[:, 0])
    assert np.any(values[:, 1] > risks[:, 1]) and values[:, 1].mean() < values[:, 0].mean()


def test_the_dearest_posteriors_are_not_taken(trained: Trained) -> None:
    """Draws need a bound on their values, so that KL / beta is at most half of b - a, though a
    prior that is wrong nearly everywhere would have it otherwise."""
    wrong = np.array([3.0, -0.6, math.log(1.5), math.log(0.5)])
    pairs = family(trained, ZERO_ONE)
    betas = np.linspace(1.0, 20.0, 60)
    values, risks = pairs.judge_pair(wrong, 0, betas, np.random.default_rng(1))
    cost = values - risks
    assert np.all(cost <= 0.5 + 1e-9) and np.any(cost > 0.4) and pairs.largest == 1.5
    prior = networks.PAIR_TEMPERATURES[0]
    assert prior == 0.0 and np.all(cost[betas < 2] == 0)
