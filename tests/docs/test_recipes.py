"""CONTRIBUTING's recipes run as they stand there, in a package that is not ours."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import with_settings
from patience import patience
from recipes import install
from scipy.stats import multivariate_normal

from pacpfl.priors.kernels import KERNELS
from pacpfl.types import Data


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recipes in a folder that Python imports from."""
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


def test_a_method_and_a_prior_family_run_beside_ours(theirs: Path) -> None:
    settings = ["data.clients=3", "data.new_clients=2", "train.rounds=5", "test_samples=4",
                "personal.weights=stacking", 'methods=["mean", "constants", "ridge"]']  # fmt: skip
    words = with_settings(*settings)
    paths = [str(theirs), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pacpfl", "run", "polynomial", "--out", "out", *words],
        capture_output=True, text=True, timeout=patience(100), cwd=theirs,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    methods = json.loads((theirs / "out" / "run.json").read_text())["methods"]
    assert methods["mean"]["title"] == "Mean of all" and methods["mean"]["rounds"] == 5
    assert methods["constants"]["title"] == "PAC-PFL with constants"
    assert "Mean of all" in (theirs / "out" / "report.html").read_text()


def test_the_prior_family_is_right(theirs: Path) -> None:
    """Its evidence is that of correlated Gaussians, and padding changes nothing."""
    prior: ModuleType = import_module("their_prior").Constants()
    phi, y = jnp.array([0.3, -0.5, -1.0]), np.array([0.4, 1.1, -0.2])
    spread, noise = np.exp(phi[1:])
    covariance = spread**2 + noise**2 * np.eye(3)
    rows = [Data(jnp.zeros((3, 1)), jnp.asarray(y), jnp.ones(3, bool)),
            Data(jnp.zeros((4, 1)), jnp.append(y, 9.0), jnp.arange(4) < 3)]  # fmt: skip
    wanted = multivariate_normal.logpdf(y, np.full(3, 0.3), covariance)
    for data in rows:
        posterior = prior.posterior(phi, data)
        assert float(prior.log_evidence(phi, data)) == pytest.approx(wanted, rel=1e-5)
        left = prior.leave_one_out(phi, posterior)
        rest = multivariate_normal.logpdf(y[1:], np.full(2, 0.3), covariance[1:, 1:])
        assert float(left.evidence[0]) == pytest.approx(wanted - rest, rel=1e-4)
        assert float(left.density[0]) == pytest.approx(wanted - rest, rel=1e-4)
    assert jax.grad(prior.log_evidence)(phi, rows[1]).shape == (prior.size,)


def test_the_kernel_is_part_of_a_prior(theirs: Path) -> None:
    try:
        prior = import_module("their_kernel").prior
        data = Data(jnp.array([[0.5, 1.0], [-1.0, 0.3]]), jnp.ones(2), jnp.ones(2, bool))
        evidence = jax.jit(prior.log_evidence)(jnp.full(prior.size, 0.1), data)
    finally:
        KERNELS.pop("cosine", None)
    x, noise = np.exp(0.1) * data.x.sum(1), np.log1p(np.exp(0.1))
    squares = np.sum((data.x[0] - data.x[1]) ** 2) * np.exp(-0.2)
    covariance = np.cos(x[:, None] - x) + np.exp(-squares / 2 * (1 - np.eye(2)))
    wanted = multivariate_normal.logpdf(data.y, np.zeros(2), covariance + noise**2 * np.eye(2))
    assert float(evidence) == pytest.approx(wanted, rel=1e-5)


def test_the_data_set_is_trained_on(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(theirs / "their_data.py"))
    assert 0 < float(capsys.readouterr().out) < 1
