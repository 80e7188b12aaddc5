"""Whether bounds hold for clients who took no part in anything, as often as they are said to."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from pacpfl.certify.clients import ClientCertificate


def assert_bounds_hold(
    found: Sequence[ClientCertificate], clients: int, delta: float, certain: float
) -> list[ClientCertificate]:
    """Check that new clients' bounds do not fail above delta (Clopper-Pearson); return these clients."""
    new = [c for c in found if c.group == "new"]
    assert len(new) == clients
    pairs = [
        [
            (c.averaged, c.test_risk),
            (c.drawn, c.drawn_test_risk),
            (c.posterior, c.posterior_test_risk),
        ]
        for c in new
    ]
    for kind in zip(*pairs, strict=True):
        failed = sum(certificate.bound < (risk or 0.0) for certificate, risk in kind)
        assert failed == 0 or stats.beta.ppf(1 - certain, failed, clients + 1 - failed) <= delta
    # The risk on the own samples alone would not do.
    own = [(c.posterior.empirical_risk, c.posterior_test_risk or 0.0) for c in new]
    assert sum(risk < test for risk, test in own) > clients / 2
    return new
