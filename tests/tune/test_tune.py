"""A search proposes what the space allows, counts what it should, goes on, and keeps the best."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from patience import patience

from pacpfl import config as configuration
from pacpfl.config import Config, override
from pacpfl.data.settings import DataSettings
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.methods.registry import build_method, named
from pacpfl.tune import search as tune
from pacpfl.tune import spaces
from pacpfl.tune.crossval import Score
from pacpfl.tune.spaces import SPACES, Choice, Range, Widths
from pacpfl.tune.workers import Ended, shares, work

BASES = {
    "polynomial": Config(),
    "houses": override(
        Config(), ["data.name=pv", "data.clients=24", "data.samples=150", "standardize=client"]
    ),
}
BASE = Config(seed=3, data=DataSettings(clients=3, new_clients=0), train=TrainSettings(tau=0.5))
RATES: spaces.Space = {
    "train.learning_rate": Range(1e-3, 1e-1),
    "prior.mean": Choice(("mlp", "linear")),
    "prior.mean_widths": Widths((4, 32), (2,)),
}


class Proposer:
    """In place of a trial: the first, the last or the middle of everything, and what was asked for."""

    def __init__(self, which: float) -> None:
        self.which, self.asked = which, dict[str, Any]()

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        value = self.asked[name] = choices[round(self.which * (len(choices) - 1))]
        return value

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        value = self.asked[name] = round(low + self.which * (high - low))
        return value

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        value = self.asked[name] = low + self.which * (high - low)
        return value


def test_every_space_is_that_of_a_method():
    assert set(SPACES) <= set(named())
    assert {name for name, space in SPACES.items() if not space} == {"ridge", "ard"}


@pytest.mark.parametrize("which", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("method", [name for name, space in SPACES.items() if space])
def test_every_proposal_is_a_configuration_that_can_be_built(method, which):
    for base in BASES.values():
        proposer = Proposer(which)
        proposed = spaces.suggest(proposer, method, SPACES[method], base)
        assert proposed != base and proposer.asked
        assert (proposed.data, proposed.pv, proposed.seed) == (base.data, base.pv, base.seed)
        few = override(proposed, ["data.clients=2", "data.new_clients=0", "data.name=polynomial"])
        build_method(method, few, tune._federation(Config(data=few.data)).form)


def test_the_networks_of_the_paper_are_searched():
    widths = [d for space in SPACES.values() for d in space.values() if isinstance(d, Widths)]
    assert widths
    for each in widths:
        assert each.neurons == tuple(2**n for n in range(1, 7)) and each.layers == (2, 4)
    proposed = spaces.suggest(Proposer(1.0), "mtl", SPACES["mtl"], Config())
    assert proposed.network.widths == (64, 64, 64, 64)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (["prior.mean=zero", "prior.kernel=ard"], set()),
        (["prior.mean=mlp", "prior.kernel=ard"], {"prior.mean_widths", "prior.mean"}),
        (["prior.mean=zero", "prior.kernel=deep+ard"], {"prior.kernel_widths"}),
    ],
)
def test_networks_that_are_not_there_are_not_searched_and_a_mean_of_zero_stays(settings, asked):
    widths = {"prior.mean_widths": Widths(), "prior.kernel_widths": Widths()}
    proposer = Proposer(0.0)
    space = widths | {"prior.mean": Choice(("mlp", "linear"))}
    spaces.suggest(proposer, "pacpfl", space, override(Config(), settings))
    assert {re.sub(r"\.(neurons|layers)$", "", name) for name in proposer.asked} == asked


@pytest.mark.parametrize("dataset", BASES)
def test_tau_stays_above_the_limit_of_the_theorem(dataset):
    base = BASES[dataset]
    limit = 1 / (1 + base.data.clients * base.data.samples)
    proposed = spaces.suggest(Proposer(0.0), "pacpfl", SPACES["pacpfl"], base)
    assert limit < proposed.train.tau
    assert spaces.tau_limit(override(base, ["temperature=0.5"])) == 2 / (1 + 1 / limit)
    narrow = {"train.tau": Range(limit / 10, limit / 5)}
    assert spaces.suggest(Proposer(1.0), "pacpfl", narrow, base).train.tau > limit


def test_a_new_client_of_mtl_trains_as_long_as_the_others():
    base = override(Config(), ["rounds=70", "local.steps=3"])
    assert spaces.suggest(Proposer(1.0), "mtl", {}, base).mtl.personal_steps == 210
    proposed = spaces.suggest(Proposer(1.0), "mtl", {"local.steps": Range(1, 4)}, base)
    assert (proposed.local.steps, proposed.mtl.personal_steps) == (4, 280)


@pytest.mark.parametrize("method", [name for name, space in SPACES.items() if space])
def test_the_start_of_a_search_is_the_configuration_itself(method):
    optuna = pytest.importorskip("optuna")
    base = spaces.suggest(Proposer(1.0), method, {}, BASES["polynomial"])
    begin = spaces.start(SPACES[method], base)
    fixed = optuna.trial.FixedTrial(begin)
    known = {key: d for key, d in SPACES[method].items() if any(n.startswith(key) for n in begin)}
    assert known
    assert spaces.suggest(fixed, method, known, base) == base


@pytest.mark.parametrize("method", [name for name, space in SPACES.items() if space])
def test_what_is_tuned_is_what_a_run_of_the_method_trains(method, measured, tmp_path):
    """Vanilla once meant another model here than in a run."""
    found = tune.tune(tune.Search(method, BASE, SPACES[method], 2), tmp_path / "j")
    assert {task.method for task in measured} == {method}
    text = tune.tuned_toml(tune.Search(method, BASE, {}, 2), found, "")
    assert configuration.load(text, "x") == found.config
    allowed = {*SPACES[method]} | ({"mtl.personal_steps"} if method == "mtl" else set())
    for task in measured:
        for section in configuration.SECTIONS:
            here, base = vars(getattr(task.config, section)), vars(getattr(BASE, section))
            assert {f"{section}.{name}" for name in here if here[name] != base[name]} <= allowed


def test_what_the_space_does_not_hold_is_no_start():
    base = override(Config(), ["prior.mean_widths=[3, 3]", "tau=0.5", "learning_rate=7.0"])
    space = {**RATES, "train.tau": Range(0.1, 1.0), "train.lambda": Range(1.0, 2.0)}
    assert spaces.start(space, base) == {"prior.mean": "mlp", "train.tau": 0.5}


def test_a_file_of_spaces(tmp_path):
    path = tmp_path / "spaces.toml"
    path.write_text(
        """
        [pacpfl]
        "prior.mean" = ["mlp", "linear"]
        "prior.mean_widths" = { neurons = [16, 32], layers = [2] }
        "train.tau" = { low = 1e-3, high = 1.0 }
        "alone.steps" = { low = 10, high = 20, log = false }
        """
    )
    found = spaces.read_spaces(path)
    assert found["pacpfl"] == {
        "prior.mean": Choice(("mlp", "linear")),
        "prior.mean_widths": Widths((16, 32), (2,)),
        "train.tau": Range(1e-3, 1.0, True),
        "alone.steps": Range(10, 20, False),
    }
    assert found["mtl"] == SPACES["mtl"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[pacpfl]\n"prior.maen" = ["mlp"]', "prior.maen"),
        ('[pacpfl]\n"prior.kernel" = ["deep", "flat"]', "flat"),
        ('[pacpfl]\n"tau" = [0.1]', "section"),
        ('[pacpfl]\n"train.tau" = 0.1', "low, high"),
        ('[pacpfl]\n"train.tau" = { low = 0.0, high = 1.0 }', "low, high"),
        ('[pacpfl]\n"train.tau" = { low = 2.0, high = 1.0 }', "low, high"),
        ('[pacpfl]\n"train.tau" = { low = 2.0, top = 1.0 }', "low, high"),
        ('[pacpfl]\n"prior.mean_widths" = { neurons = 4, layers = [2] }', "neurons"),
        ('[pacpfl]\n"prior.mean_widths" = { neurons = [0], layers = [2] }', "mean_widths"),
        ("[pacpf]", "pacpf"),
        ("[pacpfl", "spaces.toml"),
    ],
)
def test_bad_spaces_are_named(text, words, tmp_path):
    path = tmp_path / "spaces.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        spaces.read_spaces(path)


def search(trials: int, **more: Any) -> tune.Search:
    return tune.Search("pacpfl", BASE, RATES, trials, **more)


def bowl(config: Config) -> float:
    """Smallest at a learning rate of 0.02 with a linear mean."""
    return abs(math.log(config.train.learning_rate / 0.02)) + (config.prior.mean != "linear")


Measure = Callable[[tune.Task, Callable[[], bool]], Any]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tune.Task]:
    """Trials are not trained but looked up; the tasks that were asked for."""
    tasks: list[tune.Task] = []

    def measure(task: tune.Task, stop: Callable[[], bool]) -> Score:
        tasks.append(task)
        return Score(bowl(task.config), 0.1, 1.5)

    monkeypatch.setattr(tune, "measure", measure)
    return tasks


def test_a_search_finds_the_bottom_of_a_bowl(measured, tmp_path):
    told: list[tune.Found] = []
    found = tune.tune(search(40), tmp_path / "j", progress=told.append)
    assert found is not None and len(measured) == found.trials == 40 and found.failed == 0
    assert found.score.rsmse == min(bowl(task.config) for task in measured) < 0.25
    assert found.config in [task.config for task in measured]
    assert bowl(found.config) == found.score.rsmse
    best_so_far = list(itertools.accumulate((bowl(t.config) for t in measured), min))
    assert [now.score.rsmse for now in told] == best_so_far
    assert measured[0] == tune.Task(0, "pacpfl", BASE, 5, None)


def test_the_same_search_gives_the_same_proposals(measured, tmp_path):
    for name in ("one", "two"):
        tune.tune(search(15), tmp_path / name)
    assert [t.config for t in measured[:15]] == [t.config for t in measured[15:]]


def test_a_search_goes_on_where_it_stopped(measured, tmp_path):
    journal = tmp_path / "deep" / "journal"
    assert tune.tune(search(3), journal).trials == 3
    assert tune.tune(search(9), journal).trials == 9
    assert len(measured) == 9
    assert len({t.config for t in measured}) == 9, "proposals are not repeated"
    again = tune.tune(search(9), journal)
    assert len(measured) == 9 and again.trials == 9
    assert again.score.rsmse == min(bowl(t.config) for t in measured)


def test_other_problems_need_another_journal_and_other_rows_do_not(measured, tmp_path):
    journal = tmp_path / "journal"
    tune.tune(search(1), journal)
    for other in (
        search(1, folds=3),
        search(1, used_folds=2),
        tune.Search("pacpfl", override(BASE, ["seed=4"]), RATES, 1),
        tune.Search("pacpfl", override(BASE, ["weights=stacking"]), RATES, 1),
        tune.Search("pacpfl", BASE, {**RATES, "train.tau": Range(0.1, 1.0)}, 1),
    ):
        with pytest.raises(InputError, match="--study"):
            tune.tune(other, journal)
    assert len(measured) == 1
    assert tune.tune(tune.Search("pfedgp", BASE, RATES, 2), journal).trials == 2


def test_failed_trials_count_and_are_not_chosen(monkeypatch, tmp_path):
    def measure(task: tune.Task, stop: Callable[[], bool]) -> Score:
        if task.number % 3 == 0:
            raise ValueError("out of luck")
        return Score(math.nan if task.number % 3 == 1 else 1.0 + task.number, 0.1, 0.1)

    monkeypatch.setattr(tune, "measure", measure)
    found = tune.tune(search(8), tmp_path / "j")
    assert (found.score.rsmse, found.trials, found.failed) == (3.0, 8, 6)
    trials = tune.open_study(search(8), tmp_path / "j").trials
    reasons = [trial.user_attrs.get("failure") for trial in trials]
    assert reasons[:3] == ["ValueError: out of luck", "the RSMSE is nan", None]


def test_a_search_in_which_all_fails_says_why(monkeypatch, tmp_path):
    def measure(task: tune.Task, stop: Callable[[], bool]) -> Score:
        raise InputError("There is no sun.")

    monkeypatch.setattr(tune, "measure", measure)
    with pytest.raises(InputError, match=r"All 3 trials failed.*There is no sun"):
        tune.tune(search(3), tmp_path / "j")


def test_a_trial_that_was_stopped_does_not_count(monkeypatch, tmp_path):
    stopping = False

    def measure(task: tune.Task, stop: Callable[[], bool]) -> Score:
        nonlocal stopping
        if len(seen) == 2:
            stopping = True
        seen.append(task)
        if stop():
            raise RuntimeError("interrupted")
        return Score(bowl(task.config), 0.1, 0.1)

    seen: list[tune.Task] = []
    monkeypatch.setattr(tune, "measure", measure)
    found = tune.tune(search(6), tmp_path / "j", stop=lambda: stopping)
    assert (len(seen), found.trials) == (3, 2)
    stopping = False
    seen[:] = [seen[0]] * 5
    assert tune.tune(search(6), tmp_path / "j").trials == 6
    assert len(seen) == 5 + 4


def test_a_trial_that_was_cut_off_by_a_crash_does_not_count(measured, tmp_path):
    study = tune.open_study(search(2), tmp_path / "j")
    study.ask()  # and nobody ever tells what came of it
    assert tune.tune(search(2), tmp_path / "j").trials == 2
    assert len(measured) == 2


def test_time_that_is_over_ends_the_search(measured, tmp_path):
    assert tune.tune(search(5), tmp_path / "j", seconds=0.0) is None
    assert measured == []


def test_a_fault_of_the_journal_shows_at_once(measured, tmp_path):
    with pytest.raises(InputError, match="--study"):
        tune.tune(search(2), tmp_path)  # a folder is no journal
    assert measured == []


def test_without_optuna_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install pacpfl\[study\]"):
        tune.tune(search(1), tmp_path / "j")


def test_the_file_says_how_it_was_found_and_gives_the_configuration_back(measured, tmp_path):
    plan = search(12, used_folds=2)
    found = tune.tune(plan, tmp_path / "j")
    text = tune.tuned_toml(plan, found._replace(failed=1), "pacpfl tune x --method pacpfl")
    assert configuration.load(text, "x.toml") == found.config
    told = "\n".join(line for line in text.splitlines() if line.startswith("# "))
    for word in (
        "pacpfl tune x --method pacpfl", "12 trials (1 failed)", "2 of 5 folds", "training",
        f"RSMSE {found.score.rsmse:.4f}, CE 0.1000, NLL 1.5000", time.strftime("%Y-"), "cores",
    ):  # fmt: skip
        assert word in told
    assert "particles =" not in text, "what is as by default is left out"
    assert "all 5 folds" in tune.tuned_toml(search(12), found, "x")


def job(task: str, stop: Callable[[], bool]) -> str:
    """Module level: workers import it by name."""
    if task.startswith("die"):
        os._exit(3)
    if task == "fail":
        raise InputError("This cannot be.")
    if task == "wait":
        time.sleep(600)
    return f"{task} in {os.getpid()} on {sorted(os.sched_getaffinity(0))}"


def test_processes_do_the_work_and_survive_what_happens_to_them():
    began = time.monotonic()
    given: list[str] = []

    def tasks():
        for task in ("die", "die too", "fail", "a", "b", "wait", "never"):
            given.append(task)
            yield task

    ended: dict[str, Ended] = {}
    awaited = {"a", "b", "fail", "die", "die too"}
    for each in work(job, tasks(), 2, stop=lambda: awaited <= ended.keys()):
        ended[each.task] = each
    assert ended["die"].failure == ended["die too"].failure == "its process ended unexpectedly"
    assert ended["fail"].failure == "This cannot be."
    for task in ("a", "b"):
        word, _, process, _, cores = ended[task].result.split(" ", 4)
        assert word == task and int(process) != os.getpid()
        assert json.loads(cores) in shares(2)
    assert ended["wait"] == Ended("wait")
    assert len(given) - len(ended) <= 1 and time.monotonic() - began < patience(300)


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1, 2, 7, 9})
    assert shares(2) == [[1, 2, 3], [7, 9]]
    assert shares(5) == [[1], [2], [3], [7], [9]]
    assert shares(7) == [[1], [2], [3], [7], [9], [1], [2]]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert shares(2) == [[], []]
