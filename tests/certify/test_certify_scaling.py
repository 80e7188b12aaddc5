"""Certificates of runs whose samples were scaled or filled in by what samples say."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pacpfl.bounds.losses import LossRange
from pacpfl.certify.certificate import Candidate, Certificate, Privacy, certify_client
from pacpfl.certify.document import UNSCALED, scaling_condition
from pacpfl.certify.gaussian_processes import Views
from pacpfl.config import Config, override
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Samples

TABLES = ["data.name=tables", "tables.source=-", "tables.target=y"]


def certificate() -> Certificate:
    """Of a client who took no part: every premise holds before anything is scaled."""
    privacy = Privacy("independent", "the client took no part")
    loss = LossRange("zero-one", 0.0, 1.0)
    return certify_client(
        "anna", loss, [Candidate(20.0, 0.1, 0.5)], m=100, privacy=privacy, delta=0.05
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
        after = certificate().under(found)
        assert after.proved == (wanted in (None, "holds"))
        assert (after.verdict == "not valid") == (wanted == "does not hold")
        assert [c.name for c in after.conditions].count(UNSCALED) == (wanted is not None)
        assert after.bound == certificate().bound


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
        own, others = (
            Samples(random.normal(size=(rows, 2)), random.normal(size=rows)) for rows in (3, 4)
        )
        exact = Views(prior, 3, 4, np.float64).inputs(particles, own, others)
        padded = Views(prior, 6, 9, np.float64).inputs(particles, own, others)
        for a, b in zip(exact, padded, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
            assert a.shape == b.shape
