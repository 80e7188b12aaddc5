"""The simulator of private runs: who takes part, whence the noise comes, and when it ends."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from toys import Toy, ToyState, assert_same_tree, make_store

from pacpfl.engine import rounds, simulate, training
from pacpfl.engine.simulate import Trained, train
from pacpfl.engine.training import Saving, Secrecy
from pacpfl.errors import InputError
from pacpfl.privacy.accounting import Plan
from pacpfl.privacy.ledger import open_ledger, read_ledger
from pacpfl.types import Data

CLIENTS = 9
PLAN = Plan("gaussian", "poisson", CLIENTS, 3, 5.0, 1e-5, 4.0, 30)
STORE = make_store(tuple(range(1, CLIENTS + 1)))


@dataclass(frozen=True)
class Cohorts(Toy):
    """Its curves tell who took part: client i sends 2^i. Its value is a draw of the server's key."""

    def init_client(self, state: ToyState, data: Data, key: jax.Array) -> tuple[()]:  # type: ignore[override]
        return ()

    def client_update(self, state: ToyState, client_state: Any, data: Data, key: jax.Array) -> Any:
        return 2.0 ** (data.mask.sum() - 1), ()

    def server_update(self, state: ToyState, updates: Any, weights: Any, key: Any) -> ToyState:
        return ToyState(jax.random.normal(key, state.value.shape), state.rounds + 1)

    def diagnostics(self, state: ToyState, updates: Any, weights: Any) -> dict[str, jax.Array]:
        return {"who": jnp.where(weights > 0, updates, 0).sum(), "value": state.value[0]}


def run(number: int, secrecy: Secrecy | None = None, **more: Any) -> Trained:
    return train(Cohorts(), STORE, rounds=number, seed=1, secrecy=secrecy, **more)


def members(trained: Trained) -> np.ndarray:
    """[rounds, clients]: who took part."""
    return (trained.history["who"].astype(int)[:, None] >> np.arange(CLIENTS)) & 1


def test_poisson_cohorts_are_independent_coins_and_may_be_empty() -> None:
    plan = replace(PLAN, rounds=None)
    trained = run(600, Secrecy(plan, noise_seed=3))
    chosen = members(trained)
    counts = np.bincount(chosen.sum(1), minlength=CLIENTS + 1)
    assert counts[0] > 0, "an empty round is a round"
    expected = 600 * stats.binom.pmf(np.arange(CLIENTS + 1), CLIENTS, 1 / 3)
    few = counts[:7], expected[:7] * counts[:7].sum() / expected[:7].sum()
    assert stats.chisquare(*few).pvalue > 0.01
    assert np.abs(chosen.mean(0) - 1 / 3).max() < 0.08
    correlation = np.corrcoef(chosen.T) - np.eye(CLIENTS)
    assert np.abs(correlation).max() < 0.15


def test_cohorts_larger_than_their_slots_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = members(run(30, Secrecy(PLAN, noise_seed=3)))
    monkeypatch.setattr(rounds, "OVERFLOW", 0.5)
    assert rounds.poisson_slots(CLIENTS, 1 / 3) < whole.sum(1).max()
    np.testing.assert_array_equal(members(run(30, Secrecy(PLAN, noise_seed=3))), whole)


def test_slots_leave_one_round_in_a_million_millions() -> None:
    for n, rate in ((9, 1 / 3), (1000, 0.01), (5000, 0.5)):
        slots = rounds.poisson_slots(n, rate)
        assert slots <= n
        assert stats.binom.sf(slots, n, rate) <= 1e-12
        assert slots == n or stats.binom.sf(slots - 1, n, rate) > 1e-12


@pytest.mark.parametrize("resident", [True, False])
def test_other_samplings(resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not resident:
        monkeypatch.setattr(simulate, "RESIDENT_BYTES", 0)
    fixed = members(run(25, Secrecy(replace(PLAN, sampling="fixed"), noise_seed=3)))
    np.testing.assert_array_equal(fixed.sum(1), 3)
    assert len(np.unique(fixed, axis=0)) > 10
    everyone = replace(PLAN, sampling="all", cohort=CLIENTS)
    assert members(run(5, Secrecy(everyone, noise_seed=3))).all()
    poisson = members(run(25, Secrecy(PLAN, noise_seed=3)))
    assert len(np.unique(poisson.sum(1))) > 2


def test_nothing_secret_comes_from_the_seed_of_the_run() -> None:
    """Two runs with the same seed choose other clients and draw other noise; a noise_seed repeats."""
    one, two = (run(20, Secrecy(PLAN)) for _ in range(2))
    assert not np.array_equal(members(one), members(two))
    assert not np.any(np.isin(one.history["value"][1:], two.history["value"][1:]))
    assert len(np.unique(one.history["value"])) == 20
    again = [run(20, Secrecy(PLAN, noise_seed=8)) for _ in range(2)]
    assert_same_tree(again[0][:3], again[1][:3])


def private_run(folder: Path, number: int = 30, **more: Any) -> Trained:
    with closing(open_ledger(folder / "ledger", PLAN, "me", True)) as ledger:
        saving = Saving(folder / "checkpoint", "me")
        return run(number, Secrecy(PLAN, ledger), saving=saving, **more)


def released(folder: Path) -> int:
    return read_ledger(folder / "ledger")[-1].released


class Killed(Exception):
    pass


def killed_after(folder: Path, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst moment: the rounds are released, and their checkpoint is not written."""
    real, left = training.save_checkpoint, iter(range(calls))

    def save(*arguments: Any) -> None:
        if next(left, None) is None:
            raise Killed
        real(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training, "save_checkpoint", save)
        private_run(folder)


def test_a_whole_run_releases_every_round_once(tmp_path: Path) -> None:
    trained = private_run(tmp_path)
    (record,) = read_ledger(tmp_path / "ledger")
    assert trained.finished and not trained.out_of_budget
    assert record.released == 30 == trained.rounds
    assert record.releases[0] == (0, 1) and record.releases[-1][1] == 30
    again = private_run(tmp_path)  # started once more: nothing is left to do
    assert released(tmp_path) == 30
    assert_same_tree(again.state, trained.state)


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_lost_rounds_are_paid_for_and_the_budget_ends_the_run(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing was saved yet; and a run that goes on draws other noise."""
    killed_after(tmp_path, calls, monkeypatch)
    assert (tmp_path / "checkpoint").exists() == (calls > 0)
    before = read_ledger(tmp_path / "ledger")[0]
    saved = before.releases[calls - 1][1] if calls else 0
    lost = before.released - saved
    assert lost > 0
    trained = private_run(tmp_path)
    (record,) = read_ledger(tmp_path / "ledger")
    assert record.released == 30, "never more than the budget"
    assert trained.out_of_budget and trained.finished
    values = trained.history["value"]
    assert trained.rounds == 30 - lost == len(values) == len(np.unique(values))
    assert record.releases[len(before.releases)][0] == saved, "it goes on from the checkpoint"
    assert np.isfinite(np.asarray(trained.state.value)).all()
    assert private_run(tmp_path).out_of_budget and released(tmp_path) == 30


def test_a_checkpoint_without_its_ledger_stops_the_run(tmp_path: Path) -> None:
    """One that is shortened or gone; nor can a run without privacy be continued as a private one."""
    run(5, saving=Saving(tmp_path / "checkpoint", "me"))
    with pytest.raises(InputError, match="not the ledger"):
        private_run(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    private_run(tmp_path, 10)
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    for spoil in (lambda p: p.write_bytes(b"".join(lines[:-1])), lambda p: p.unlink()):
        spoil(tmp_path / "ledger")
        with pytest.raises(InputError, match="not the ledger"):
            private_run(tmp_path)


def test_the_release_is_written_before_the_rounds_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the very first compiled call comes after the ledger counted its round."""

    def call(*_: Any) -> Any:
        raise Killed

    monkeypatch.setattr(simulate, "make_call", lambda *arguments: call)
    with pytest.raises(Killed):
        private_run(tmp_path)
    assert read_ledger(tmp_path / "ledger")[0].releases == ((0, 1),)
