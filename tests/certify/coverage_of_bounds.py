"""Whether bounds hold for clients who took no part in anything, as often as they are said to."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from pacpfl.certify.clients import ClientCertificate


def assert_bounds_hold(
    found: Sequence[ClientCertificate], clients: int, delta: float, certain: float
) -> list[ClientCertificate]:
    """Check that bounds of new clients fail less often than delta (Clopper-Pearson); return these."""
    new = [c for c in found if c.group == "new"]
    assert len(new) == clients
    failed = sum(c.certificate.bound < (c.test_risk or 0.0) for c in new)
    failed_in_use = sum(c.in_use.bound < (c.in_use_test_risk or 0.0) for c in new)
    for count in (failed, failed_in_use):
        assert stats.beta.ppf(certain, count + 1, clients - count) <= delta
    # The risk on the own samples alone would not do.
    assert sum(c.certificate.empirical_risk < (c.test_risk or 0.0) for c in new) > clients / 2
    return new
