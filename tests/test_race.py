"""The race of settings: what is held out, how candidates are judged, and who wins."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm

from pacpfl import race
from pacpfl.config import Config, updated
from pacpfl.data.prepare import fit_scaler
from pacpfl.defaults import defaults
from pacpfl.methods.blend import Blend
from pacpfl.methods.registry import build_pacpfl
from pacpfl.race import FOLDS, LEGS, Entrant, Race, choose, make_field
from pacpfl.report import sentences
from pacpfl.types import Form, Samples

SMALL = {
    "prior.mean": "linear",
    "prior.kernel": "ard",
    "prior.output_scale": "learned",
    "train.particles": 2,
}


def lines(clients: int = 8, rows: int = 12, noise: float = 0.1) -> list[Samples]:
    """Clients with a line of their own."""
    rng = np.random.default_rng(3)
    parts = []
    for _ in range(clients):
        x = rng.normal(2, 3, (rows, 2))
        slope = np.array([1.0, -2.0]) + 0.2 * rng.normal(size=2)
        parts.append(Samples(x, 5 + x @ slope + noise * rng.normal(size=rows)))
    return parts


def form_of(parts: list[Samples], classes: int | None = None) -> Form:
    sizes = tuple(map(len, parts))
    return Form(("a", "b"), classes=classes, clients=len(parts), sizes=sizes)


def small_race(parts: list[Samples], **more: object) -> Race:
    form = form_of(parts)
    base = updated(defaults(form), SMALL | more, "a test")
    return Race(base, make_field(parts, form, None, 0), ())


def test_nothing_that_is_asked_is_given() -> None:
    parts = lines(rows=13)
    field = make_field(parts, form_of(parts), None, 0)
    assert field.new.sum(0).tolist() == [1] * 8  # everybody is new once
    for fold, new in zip(field.given, field.new, strict=True):
        for mask, joins in zip(fold, new, strict=True):
            count = 4 if joins else 9  # a third, and seven tenths, of 13
            assert mask.tolist() == [True] * count + [False] * (13 - count)
    fold = field.folds("global")
    train, asked = (np.asarray(part.mask).sum(-1) for part in (fold.train, fold.asked))
    assert (train + asked == 13).all() and (asked == field.asked).all()


def test_units_come_from_given_rows_of_clients_who_take_part() -> None:
    """What is asked, and what new clients hold, may be anything: others' rows look the same."""
    parts = lines()
    field = make_field(parts, form_of(parts), None, 0)
    for how in ("global", "client"):
        first = field.folds(how)
        changed = []
        for part, given, new in zip(field.parts, field.given[0], field.new[0], strict=True):
            hidden = ~given | new
            x = np.where(hidden[:, None], 1e3, part.x)
            changed.append(Samples(x, np.where(hidden, -1e4, part.y)))
        second = replace(field, parts=tuple(changed)).folds(how)
        old = np.flatnonzero(~field.new[0])
        np.testing.assert_array_equal(first.train.x[0, old], second.train.x[0, old])
        np.testing.assert_array_equal(first.log_scale[0, old], second.log_scale[0, old])
    scaler = fit_scaler([
        Samples(p.x[g], p.y[g])
        for p, g, n in zip(field.parts, field.given[0], field.new[0], strict=True)
        if not n
    ])  # fmt: skip
    np.testing.assert_allclose(field.folds("global").log_scale[0], np.log(scaler.y_std), rtol=1e-6)


@pytest.mark.parametrize("clients", [1, 2])
def test_of_one_client_every_fold_asks_for_other_rows(clients: int) -> None:
    parts = lines(clients, rows=40)
    field = make_field(parts, form_of(parts), None, 0)
    asked = np.array([[~mask for mask in fold] for fold in field.given])
    assert not field.new.any() and (asked.sum(0) == 1).all()


def test_a_leg_is_rounds_of_the_method_and_the_density_of_what_is_asked() -> None:
    """Played by the method's own functions with its numbers as constants, and measured by scipy."""
    parts = lines(clients=4)
    changes = {"train.tau": 0.7, "train.hyper_std": 0.6, "train.learning_rate": 0.05}
    runner = small_race(parts, **changes, **{"train.schedule": "constant", "train.rounds": 3})
    entrant = runner.enter([{}])[0]
    runner.play(entrant, 3)
    method = build_pacpfl(entrant.config, form_of(parts))
    folds = runner.field.folds(entrant.config.data.standardize)
    for number in (0, 3):
        fold = jax.tree.map(lambda a, number=number: jnp.asarray(a[number]), folds)
        key = runner.keys[number]
        state = method.init(key, jax.tree.map(lambda a: a[0], fold.train))
        for step in range(3):
            keys = jax.random.split(jax.random.fold_in(key, step), 5)
            mean = method.mean_update(state, fold.train, keys[1:], fold.trains)
            update = jax.tree.map(lambda a: a[None], mean)
            state = method.server_update(state, update, fold.trains.sum()[None], keys[0])
        assert entrant.state is not None
        np.testing.assert_allclose(
            entrant.state.particles[number], state.particles, rtol=1e-4, atol=1e-5
        )
        for client in range(4):
            known, asked = (
                jax.tree.map(lambda a, client=client: a[client], part)
                for part in (fold.known, fold.asked)
            )
            mixture = method.personalize(state, (), known, key)(asked.x)
            densities = norm.logpdf(asked.y, mixture.means, mixture.stds)
            each = logsumexp(densities, axis=0, b=np.asarray(mixture.weights)[:, None])
            rows = np.where(asked.mask, each - fold.log_scale[client], 0)
            np.testing.assert_allclose(entrant.rows[3][number, client], rows, rtol=2e-3, atol=2e-3)
            expected = float(rows.sum())
            assert entrant.worth[3][number, client] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_legs_of_all_candidates_of_a_family_are_one_program() -> None:
    runner = small_race(lines(clients=4, rows=9))
    for entrant in runner.enter([{}, {"train.tau": 0.7}, {"prior.noise": 0.2}]):
        for rounds in (1, 2, 4):
            runner.play(entrant, rounds)
    method, _ = runner._program(runner.base)
    assert race._start(method)._cache_size() == race._leg(method)._cache_size() == 1


def judged(field: race.Field, *worth: np.ndarray) -> tuple[Race, list[Entrant]]:
    """A race whose candidates have these scores after 25, 50, ... rounds."""
    base = updated(Config(), {"prior.members": 2}, "a test")  # of which one takes all
    runner = Race(base, field, ())
    entrants = []
    for number, scores in enumerate(worth):
        config = replace(base, seed=number)
        legs = dict(zip(LEGS, scores, strict=False))
        entrants.append(Entrant(config, {"seed": number}, legs))
    runner.entrants = entrants
    return runner, entrants


def test_groups_count_alike_and_rows_within_them() -> None:
    parts = lines(clients=4, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    worth = np.where(field.new, -2.0, -1.0) * field.asked
    runner, _ = judged(field, worth[None])
    assert runner.scores(worth) == {"existing": 1.0, "new": 2.0}
    assert runner.score(worth) == 1.5 and runner.score(worth * np.nan) == np.inf
    better = worth + 0.3 * field.asked  # the same for everybody: no noise
    gain, error = runner.gain(better, worth)
    assert gain == pytest.approx(0.3) and error == pytest.approx(0.0, abs=1e-12)
    uneven = worth + np.array([4.0, 0, 0, 0]) * field.asked
    gain, error = runner.gain(uneven, worth)
    # One in four has all of it, and tells for a nat.
    assert gain == pytest.approx(0.25) and error == pytest.approx(0.25)


def test_the_default_is_left_only_beyond_the_noise() -> None:
    parts = lines(clients=4, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    worth = -1.0 * field.asked
    lucky = (
        worth + np.array([4.0, -1.0, -1.0, -1.0]) * field.asked
    )  # better on average, by one client
    runner, _ = judged(field, worth[None], lucky[None])
    assert runner.outcome().config == runner.base
    runner, entrants = judged(field, worth[None], worth[None] + 0.3 * field.asked)
    chosen = runner.outcome()
    assert chosen.config.train.rounds == 31 and chosen.config.seed == entrants[1].config.seed
    assert [row["chosen"] for row in chosen.table] == [True, False]
    failing = worth + 0.2 * field.asked - np.array([100.0, 50.0, 200.0, 0]) * field.asked
    runner, _ = judged(field, failing[None], worth[None])  # a default that fails on three of four
    assert runner.outcome().config.seed == 1
    runner, _ = judged(field, worth[None] * np.nan, worth[None])  # a default that diverged
    assert runner.outcome().config.seed == 1
    runner, _ = judged(field, worth[None], worth[None] * np.nan)  # a candidate that did
    assert runner.outcome().config == runner.base


def test_shares_are_those_of_the_best_mixture() -> None:
    """Held against scipy's optimum on the simplex."""
    rng = np.random.default_rng(0)
    densities, weights = rng.normal(0, 1.5, (3, 200)), rng.uniform(0.5, 1.5, 200)

    def loss(logits: np.ndarray) -> float:
        shares = np.exp(logits - logsumexp(logits))
        mixed = logsumexp(densities, axis=0, b=shares[:, None])
        return float(-(weights @ mixed) - race.SHY / 3 * np.log(shares).sum())

    best = minimize(loss, np.zeros(3)).x
    expected = np.exp(best - logsumexp(best))
    np.testing.assert_allclose(race.stacked(densities, weights), expected, atol=2e-3)


def test_particles_are_shared_by_those_who_predict_best_together() -> None:
    """Two that are each right about half of the clients share; a copy and a bad one get nothing."""
    parts = lines(clients=8, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    there = np.arange(field.asked.max()) < field.asked[..., None]
    half = np.arange(8)[:, None] < 4
    given = [np.where(half, -1.0, -4.0), np.where(half, -4.0, -1.0), np.full((8, 1), -9.0)]
    runner = Race(defaults(form_of(parts)), field, ())
    for number, values in enumerate(given):
        entrant = runner.enter([{"train.tau": 0.1 + number, "data.standardize": "global"}])[0]
        entrant.rows[100] = np.where(there, values, 0.0)
        entrant.worth[100] = entrant.rows[100].sum(-1)
    assert [(m.entrant, m.particles) for m in runner.members()] == [
        (runner.entrants[0], 4), (runner.entrants[1], 4)
    ]  # fmt: skip
    outcome = runner.outcome()
    assert [row.get("particles") for row in outcome.table] == [4, 4, 0]
    blend = build_pacpfl(outcome.config, form_of(parts))
    assert isinstance(blend, Blend) and blend.tau[:, 0].tolist() == pytest.approx(
        [0.1] * 4 + [1.1] * 4
    )
    assert outcome.config.train.rounds == 125
    words = sentences.race(outcome.facts(runner.base))
    assert "4 of train.tau = 0.1" in words and "4 of train.tau = 1.1" in words


def test_logistic_regression_races_where_it_is_small_and_goes_with_what_is_fixed() -> None:
    parts = [Samples(part.x, (part.y > 5.0) * 1.0) for part in lines(clients=4)]
    form, fixed = form_of(parts, 2), ("network.widths", "posterior.adapt")
    field = make_field(parts, form, None, 0)

    def local(form: Form) -> int:
        tried = race.candidates(replace(field, form=form))
        return sum(changes["bnn.objective"] == "laplace" for changes in tried)

    assert local(form) == 3 and local(form._replace(features=("a",) * 40)) == 0
    wide = {"network.widths": (64, 64), "posterior.adapt": "all"}
    base = updated(defaults(form, given=wide), wide, "a test")
    runner = Race(base, field, fixed)
    runner.enter([{}, *race.candidates(field)])  # 4,482 weights that adapt have no Laplace evidence
    assert {e.config.bnn.objective for e in runner.entrants} == {"evidence"}


def test_a_default_that_stays_is_trained_for_as_long_as_served_it() -> None:
    parts = lines(clients=4, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    legs = np.array([-1.0, -0.8, -3.0])[:, None, None] * field.asked
    runner, _ = judged(field, legs, legs[:1] - 0.1 * field.asked)
    outcome = runner.outcome()
    assert [row["chosen"] for row in outcome.table if row["default"]] == [True]
    train = outcome.config.train
    assert (train.rounds, train.schedule, train.batch) == (62, "cooldown", None)


def test_more_rounds_are_taken_until_they_make_it_worse() -> None:
    parts = lines(clients=4, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    steps = [-1.0, -0.5, -0.51, -0.9]  # the third leg is as good as the second, the fourth is worse
    runner, (entrant,) = judged(field, np.array([step * field.asked for step in steps]))
    assert runner.best(entrant) == (pytest.approx(0.51), 100)


def test_a_race_finds_what_suits_and_leaves_what_is_fixed() -> None:
    """Lines with little noise: the default is far too cautious with twelve rows a client."""
    parts = lines(clients=10, rows=8)
    form = form_of(parts)
    base = updated(defaults(form), {"train.particles": 2}, "a test")
    counted: list[int] = []
    found = choose(
        base, parts, form, fixed=("train.hyper_std", "prior.mean", "prior.kernel"),
        progress=lambda done, total, words: counted.append(done),
    )  # fmt: skip
    assert counted == sorted(counted) and len(found.table) >= 8
    default = next(row for row in found.table if row["default"])
    best = found.table[0]
    assert best["new"] < default["new"] - 0.15
    assert sum(row["particles"] for row in found.table) == found.config.train.particles == 8
    assert found.config.train.hyper_std == base.train.hyper_std
    assert (found.config.prior.mean, found.config.prior.kernel) == ("linear", "ard+linear")
    assert all("train.hyper_std" not in row["changes"] for row in found.table)
    again = choose(base, parts, form, fixed=("train.hyper_std", "prior.mean", "prior.kernel"))
    assert again == found


def test_people_are_told_what_was_chosen_and_by_how_much() -> None:
    parts = lines(clients=4, rows=10)
    field = make_field(parts, form_of(parts), None, 0)
    worth = -1.0 * field.asked
    runner, entrants = judged(field, worth[None], worth[None] + 0.25 * field.asked)
    entrants[0].changes = {}
    facts = runner.outcome().facts(runner.base)
    assert facts["changes"] == {"train.rounds": 31, "train.schedule": "cooldown"}
    words = sentences.race(facts)
    assert "2 candidates" in words and "train.rounds = 31" in words
    assert words.index("0.750 (existing") < words.index("1.000 (existing")
    assert [text for _, text in sentences.candidates(facts["table"])] == [
        "0.750 (existing clients) and 0.750 (new clients) after 25 rounds, trained",
        "1.000 (existing clients) and 1.000 (new clients) after 25 rounds",
    ]
    runner, _ = judged(field, worth[None], worth[None] - 0.25 * field.asked)
    assert "none predicts held-out rows better" in sentences.race(
        runner.outcome().facts(runner.base)
    )
    assert sentences.race({}) == ""


def test_few_rows_have_no_race() -> None:
    parts = lines(clients=2, rows=4)
    base = defaults(form_of(parts))
    assert choose(base, parts, form_of(parts)) == race.Outcome(base)


@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_local_noise_is_what_lines_leave(noise: float) -> None:
    parts = lines(clients=20, rows=60, noise=noise)
    spread = np.concatenate([part.y for part in parts]).std()
    assert race.local_noise(parts) == pytest.approx(noise / spread, rel=0.15)
    assert FOLDS == 4
