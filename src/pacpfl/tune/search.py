"""Choose settings by cross-validation on training data (`crossval`), with Optuna.

Appendix "Hyper-parameter tuning" of the paper: five folds, the same number of trials for every
method. Proposals come from the tree-structured Parzen estimator; the first is the configuration
itself. Every trial is kept in a journal, from which a search goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pacpfl import config as configuration
from pacpfl.build import raw_federation
from pacpfl.config import Config, method_identity
from pacpfl.data.tables.read import stamp
from pacpfl.engine import runtime
from pacpfl.errors import InputError, explained, imported
from pacpfl.methods.registry import entry
from pacpfl.tune import spaces
from pacpfl.tune.crossval import ClassScore, Score, cross_validate, folds
from pacpfl.tune.spaces import Space
from pacpfl.tune.workers import Ended, work
from pacpfl.types import Federation


@dataclass(frozen=True)
class Search:
    """A search: whose settings, where, and for how long."""

    method: str
    config: Config
    space: Space
    trials: int
    folds: int = 5
    used_folds: int | None = None

    @property
    def identity(self) -> str:
        """Trials can be compared where this is the same; there may be more of them."""
        space = [(key, repr(dimension)) for key, dimension in self.space.items()]
        files = stamp(self.config.tables) if self.config.data.name == "tables" else ()
        folds = (self.folds, self.used_folds)
        return method_identity(self.config, self.method, folds=folds, space=space, files=files)


class Task(NamedTuple):
    """One trial, as it travels to a worker."""

    number: int
    method: str
    config: Config
    folds: int
    used_folds: int | None


class Found(NamedTuple):
    """The best settings so far, and how much was tried for them."""

    config: Config
    score: Score | ClassScore
    trials: int  # that have ended, the failed ones included
    failed: int


def measure(task: Task, stop: Callable[[], bool]) -> Score | ClassScore:
    """Return the score of one proposal: the job of a worker."""
    config = task.config
    data = {name: getattr(config, name) for name in ("seed", *configuration.DATA)}
    federation = _federation(Config(**data))
    return cross_validate(task.method, config, federation, task.folds, task.used_folds, stop)


@cache
def _federation(config: Config) -> Federation:
    """Load the data once: all trials of a search have the same."""
    return raw_federation(config)


def tune(
    search: Search,
    journal: Path,
    workers: int = 1,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Found], None] = lambda found: None,
) -> Found | None:
    """Go on until `search.trials` trials have ended, the time is over, or `stop` says so.

    A trial that fails, or whose score is not finite, is kept as failed and counts. None: no trial
    has ended well so far.
    """
    title, known = entry(search.method).title, spaces.spaces_for(search.config)
    if search.method not in known:
        target = "classes" if known is spaces.CLASS_SPACES else "numbers"
        raise InputError(f"{title} is not tuned on {target}; these are: {', '.join(known)}.")
    if not search.space:
        raise InputError(
            f"{title} has nothing to tune: it makes its choices itself, from each client's training "
            "samples; use it as it is."
        )
    folds(raw_federation(search.config), search.folds)  # faults of the data show here
    study = open_study(search, journal)
    under_way: dict[int, Any] = {}

    def tasks() -> Iterator[Task]:
        while len(ended_trials(study)) + len(under_way) < search.trials:
            trial = study.ask()
            under_way[trial.number] = trial
            config = spaces.suggest(trial, search.method, search.space, search.config)
            yield Task(trial.number, search.method, config, search.folds, search.used_folds)

    for ended in work(measure, tasks(), workers, stop, seconds, search.config.run.precision):
        tell(study, under_way.pop(ended.task.number), ended)
        found = best(search, study)
        if found is not None:
            progress(found)
    failures = [trial.user_attrs["failure"] for trial in ended_trials(study) if trial.value is None]
    if len(failures) >= search.trials:
        raise InputError(f"All {len(failures)} trials failed; the last one because: {failures[-1]}")
    return best(search, study)


def open_study(search: Search, journal: Path) -> Any:
    """Open the search's study in the journal, new or as it was left, and give up what was under way."""
    optuna = require_optuna()
    state = optuna.trial.TrialState
    faults = (OSError, ValueError, KeyError)
    with explained(f"{journal} cannot be used as a journal", "name another with --study", *faults):
        journal.parent.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.create_study(storage=storage, study_name=search.method, load_if_exists=True)
    if study.user_attrs.setdefault("identity", search.identity) != search.identity:
        raise InputError(
            f"{journal} holds a search for {search.method} with other data, settings, folds or space; "
            "name another file with --study."
        )
    if not study.get_trials(deepcopy=False):
        study.set_user_attr("identity", search.identity)
        study.enqueue_trial(spaces.start(search.space, search.config))
    for left in study.get_trials(deepcopy=False, states=(state.RUNNING,)):
        study.tell(left.number, state=state.FAIL)
    # Not the same seed each time: a search that goes on would repeat its first proposals.
    seed = search.config.seed + len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed)
    return study


def tell(study: Any, trial: Any, ended: Ended) -> None:
    """Keep how a trial ended; one that was stopped carries no reason, and does not count."""
    state = require_optuna().trial.TrialState
    score: Score | ClassScore | None = ended.result
    if score is not None and math.isfinite(score[0]):
        for name, value in score._asdict().items():
            trial.set_user_attr(name, value)
        study.tell(trial, score[0])
        return
    failure = ended.failure if score is None else f"the {decides(score)} is {score[0]}"
    if failure is not None:
        trial.set_user_attr("failure", failure)
    study.tell(trial, state=state.FAIL)


def decides(score: Score | ClassScore) -> str:
    """Return the name of the number that settings are chosen by."""
    return score._fields[0].upper()


def ended_trials(study: Any) -> list[Any]:
    """Return the trials that count: with a score, or with a reason for having none."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.value is not None or "failure" in trial.user_attrs]


def best(search: Search, study: Any) -> Found | None:
    ended = ended_trials(study)
    scored = [trial for trial in ended if trial.value is not None]
    if not scored:
        return None
    winner = min(scored, key=lambda trial: trial.value)
    fixed = require_optuna().trial.FixedTrial(winner.params)
    kind: type[Score | ClassScore] = Score if "rsmse" in winner.user_attrs else ClassScore
    return Found(
        spaces.suggest(fixed, search.method, search.space, search.config),
        kind(*(winner.user_attrs[name] for name in kind._fields)),
        len(ended),
        len(ended) - len(scored),
    )


_TITLES = {"rsmse": "RSMSE", "ce": "CE", "nll": "NLL", "error": "share of errors"}


def tuned_toml(search: Search, found: Found, command: str) -> str:
    """Return the configuration, as far as it is not the default, below how it was found."""
    used = search.used_folds or search.folds
    which = f"all {used}" if used == search.folds else f"{used} of {search.folds}"
    numbers = [f"{_TITLES[n]} {value:.4f}" for n, value in found.score._asdict().items()]
    head = [
        f"# {entry(search.method).title}, found by:",
        f"#   {command}",
        f"# The best of {found.trials} trials ({found.failed} failed) by cross-validation on training "
        "data only,",
        f"# {which} folds: {', '.join(numbers)}.",
        f"# {datetime.now(UTC):%Y-%m-%d}, {runtime.machine()}.",
    ]
    return "\n".join(head) + "\n" + configuration.dump(found.config, Config())


def require_optuna() -> Any:
    """Return Optuna, silenced; it is needed here only, and comes with an extra."""
    optuna = imported("optuna", "Tuning", "pacpfl[study]")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
