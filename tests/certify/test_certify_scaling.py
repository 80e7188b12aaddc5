"""Certificates of runs whose samples were scaled or filled in by what samples say."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pacpfl.bounds.losses import ZERO_ONE
from pacpfl.certify.certificate import Candidate, Privacy, certify_client
from pacpfl.certify.clients import UNSCALED, scaling_condition
from pacpfl.certify.gaussian_processes import inputs_of
from pacpfl.config import Config, override
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data

TABLES = ["data.name=tables", "tables.source=-", "tables.target=y"]


# Of a client who took no part: every premise holds before anything is scaled.
FRESH = Privacy("independent", "the client took no part")
BEFORE = certify_client(
    "anna", ZERO_ONE, [Candidate(20.0, 0.1, 0.5)], m=100, privacy=FRESH, delta=0.05
)


@pytest.mark.parametrize(
    ("settings", "new", "existing"),
    [
        ([], None, None),
        (["standardize=client"], "does not hold", "does not hold"),
        (["standardize=global"], "holds", "does not hold"),
        ([*TABLES, "tables.missing=impute"], "holds", "does not hold"),
        ([*TABLES, "tables.missing=impute", "standardize=client"], *["does not hold"] * 2),
        ([*TABLES, "tables.missing=drop"], None, None),
    ],
)
def test_whose_statistics_a_sample_was_changed_by(
    settings: list[str], new: str | None, existing: str | None
) -> None:
    config = override(Config(), settings)
    for group, wanted in (("new", new), ("existing", existing)):
        found = scaling_condition(config, group)
        assert (None if found is None else found.status) == wanted
        after = BEFORE.under(found)
        assert after.proved == (wanted in (None, "holds"))
        assert (after.verdict == "not valid") == (wanted == "does not hold")
        assert [c.name for c in after.conditions].count(UNSCALED) == (wanted is not None)
        assert after.bound == BEFORE.bound


def test_reasons_name_the_keys() -> None:
    config = override(Config(), [*TABLES, "tables.missing=impute", "standardize=global"])
    condition = scaling_condition(config, "existing")
    assert condition is not None
    for words in ('data.standardize = "global"', 'tables.missing = "impute"', "without noise"):
        assert words in condition.reason


def test_padding_changes_no_view_of_a_client() -> None:
    """Clients have different numbers of test samples, and all are padded to the largest."""
    random = np.random.default_rng(0)
    prior = GPPrior(2, GPSettings(mean="linear", kernel="ard"))
    with jax.enable_x64(True):
        particles = jax.numpy.asarray(0.3 * random.normal(size=(2, prior.size)))
        own, others = random.normal(size=(3, 2)), random.normal(size=(4, 2))

        def pad(x: np.ndarray, rows: int) -> Data:
            padded = jax.numpy.zeros((rows, 2)).at[: len(x)].set(x)
            return Data(padded, padded[:, 0], jax.numpy.arange(rows) < len(x))

        exact, padded = (
            inputs_of(prior, particles, pad(own, m), pad(others, t))[1] for m, t in ((3, 4), (6, 9))
        )
        for a, b in zip(exact, padded, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
            assert a.shape == b.shape
