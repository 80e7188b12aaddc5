"""From a configuration to a method: what follows from its keys."""

from __future__ import annotations

import pytest

from pacpfl.config import Config, override
from pacpfl.methods.registry import build_pacpfl, temperatures
from pacpfl.types import Form


def test_beta_is_the_temperature_times_the_mean_number_of_samples() -> None:
    """tau = lambda / (lambda + beta n (n_2 + upsilon)) by hand: n = 3, n_2 = 1, mean m = 20."""
    form = Form(("x",), clients=3, sizes=(10, 20, 30), later=1)
    config = override(Config(), ["train.temperature=0.5", "train.lambda=6", "train.upsilon=0.5"])
    found = temperatures(config, form)
    assert (found["beta"], found["n_2"], found["lambda_condition"]) == (10.0, 1, True)
    assert found["tau"] == pytest.approx(6 / (6 + 10 * 3 * 1.5))
    method = build_pacpfl(config, form)
    assert (method.settings.temperature, method.tau) == (0.5, found["tau"])
    again = override(Config(), [f"train.tau={found['tau']}", "train.temperature=0.5"])
    again = override(again, ["train.upsilon=0.5"])
    assert temperatures(again, form)["lambda"] == pytest.approx(6)
