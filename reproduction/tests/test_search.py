"""The search for the privacy study's settings: the same proposals for every mode, the best kept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pacpfl.config import Config, load, override
from pacpfl.errors import InputError
from reproduction import search
from reproduction.study import base_config, read_study

BASES = {name: base_config(data) for name, data in read_study("privacy").datasets.items()}


def test_every_mode_tries_the_same_proposals() -> None:
    def tried(mode: str, epsilon: float | None) -> list[Any]:
        drawn = search.proposals("polynomial")
        tasks = list(search.tasks("polynomial", mode, epsilon, drawn, [100, 101]))
        assert len(tasks) == 2 * len(drawn)
        configs = [task.cell.config for task in tasks]
        assert {(c.privacy.mode, c.privacy.epsilon) for c in configs} == {(mode, epsilon)}
        return [(c.seed, c.train, c.prior, c.privacy.clip) for c in configs]

    assert tried("gaussian", 8.0) == tried("paper", 8.0) == tried("none", None)


@pytest.mark.parametrize("dataset", list(search.GRIDS))
def test_proposals_are_possible_and_all_different(dataset: str) -> None:
    found = search.proposals(dataset)
    configs = [override(BASES[dataset], search.settings(proposal)) for proposal in found]
    assert len(set(configs)) == len(configs) == math.prod(map(len, search.GRIDS[dataset]))


def _has(config: Config, proposal: search.Proposal) -> bool:
    return config == override(config, search.settings(proposal))


def test_the_best_few_are_tried_on_further_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number 1 wins on the first seed, and number 3 in the final; number 0 is not in it."""
    first = {0: 0.9, 1: 0.1, 2: 0.3, 3: 0.2}
    final = {1: 0.8, 2: 0.6, 3: 0.1}
    drawn = search.proposals("polynomial")[:4]
    asked = []

    def measured(task: search.Task, stop: Any) -> float:
        settings = task.cell.config
        number = next(n for n, one in enumerate(drawn) if _has(settings, one))
        asked.append((number, settings.seed))
        return first[number] if settings.seed == 100 else final[number]

    monkeypatch.setattr(search, "measure", measured)
    monkeypatch.setattr(search, "proposals", lambda dataset: drawn)
    monkeypatch.setattr(search, "FINALISTS", 3)
    found = search.best_first("polynomial", "gaussian", 8.0, [100], [101, 102])
    assert [one.proposal for one in found] == [drawn[3], drawn[2], drawn[1]]
    assert found[0].score == pytest.approx((0.2 + 2 * 0.1) / 3)
    assert sorted(asked) == sorted(
        [(n, 100) for n in range(4)] + [(n, seed) for n in (1, 2, 3) for seed in (101, 102)]
    )


def test_search_keeps_the_best_mean_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {(0, 100): 0.1, (0, 101): 0.9, (1, 100): 0.4, (1, 101): 0.4, (2, 100): 0.0}

    def measured(task: search.Task, stop: Any) -> float:
        if (task.number, task.cell.config.seed) == (2, 101):
            raise InputError("broken")
        return scores[task.number, task.cell.config.seed]

    drawn, base = search.proposals("polynomial")[:3], BASES["polynomial"]
    monkeypatch.setattr(search, "measure", measured)
    monkeypatch.setattr(search, "proposals", lambda dataset: drawn)
    found = search.best_first("polynomial", "gaussian", 8.0, [100, 101])
    assert [one.proposal for one in found] == [drawn[1], drawn[0], drawn[2]]
    assert found[0].score == pytest.approx(0.4)
    assert found[-1].failures == 1
    text = search.as_toml(found[0], 3, [100, 101], "the command")
    assert load(text, "settings", base) == override(base, search.settings(drawn[1]))
    assert "the command" in text and "seeds 100 to 101" in text
    with pytest.raises(InputError, match="from 100 on"):
        search.best_first("polynomial", "gaussian", 8.0, [99])
