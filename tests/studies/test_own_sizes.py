"""What `pacpfl init` chooses by size, and how long it says that takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pacpfl.config import Config
from pacpfl.studies.own_sizes import COMPILING, Sizes, expected_seconds, settings_for


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacpfl.studies.own_sizes.usable_cores", lambda: 2)


def test_a_model_for_each_client_alone_is_fitted_where_that_is_quick() -> None:
    """24 clients with 150 rows: 500 steps from 4 starts at 193 microseconds each are 9 s."""
    sizes = Sizes(24, np.full(24, 150), 15)
    config, words = settings_for(Config(), sizes)
    assert config.run.methods == ("pacpfl", "ridge", "vanilla")
    assert not any("left out of run.methods" in sentence for sentence in words)
    without = replace(config, run=replace(config.run, methods=("pacpfl", "ridge")))
    alone = expected_seconds(config, sizes) - expected_seconds(without, sizes)
    assert alone == pytest.approx(24 * 500 * 4 * 193e-6)


def test_and_left_out_where_it_would_take_most_of_the_time() -> None:
    """One client with 1,567 rows is enough: all are padded to the longest."""
    sizes = Sizes(29, np.array([1567] + [20] * 28), 8)
    config, words = settings_for(Config(), sizes)
    assert config.run.methods == ("pacpfl", "ridge")
    assert sum("left out of run.methods" in sentence for sentence in words) == 1
    assert COMPILING < expected_seconds(config, sizes) < 120
    asked = replace(config, run=replace(config.run, methods=("pacpfl", "vanilla")))
    assert expected_seconds(asked, sizes) > 1800
