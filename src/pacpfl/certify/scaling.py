"""What scaling, and filling in what is missing, do to certificates.

The theorems are for samples as they were drawn. A scale that is made from them ties them together, and it
is data that reach the model without noise: no epsilon covers it. A scale made from others' samples alone is
part of the prior, like the particles, and does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pacpfl.bounds import Condition
from pacpfl.certify.average import AverageCertificates
from pacpfl.certify.certificate import Certificate
from pacpfl.certify.clients import ClientCertificate
from pacpfl.config import Config

NAME = "samples not changed by their own statistics"


def scaling_condition(config: Config, group: str) -> Condition | None:
    """For the clients of a group, or for their average; None where nothing is scaled or filled in."""
    if config.data.standardize == "client":
        reason = (
            'data.standardize = "client" scales them by their own means and standard deviations'
        )
        return Condition(NAME, "does not hold", reason)
    learned = []
    if config.data.standardize == "global":
        learned.append('the means and standard deviations of data.standardize = "global"')
    if config.data.name == "tables" and config.tables.missing == "impute":
        learned.append('the medians of tables.missing = "impute"')
    if not learned:
        return None
    what = f"{' and '.join(learned)} come from the training samples of all existing clients"
    if group == "new":
        return Condition(NAME, "holds", f"{what}, and from none of this client's")
    return Condition(
        NAME, "does not hold", f"{what}, without noise; clients who join later are not affected"
    )


def scaled_clients(clients: Sequence[ClientCertificate], config: Config) -> list[ClientCertificate]:
    return [
        replace(
            client,
            certificate=with_condition(client.certificate, condition),
            in_use=with_condition(client.in_use, condition),
        )
        for client in clients
        for condition in [scaling_condition(config, client.group)]
    ]


def scaled_averages(averages: AverageCertificates, config: Config) -> AverageCertificates:
    """Also what is said of clients yet to come rests on the existing ones' samples."""
    condition = scaling_condition(config, "existing")
    return replace(
        averages,
        federation=with_condition(averages.federation, condition),
        newcomers=with_condition(averages.newcomers, condition),
    )


def with_condition(certificate: Certificate, condition: Condition | None) -> Certificate:
    """The certificate with one more premise, whose failure stands first in the verdict."""
    if condition is None:
        return certificate
    verdict = certificate.verdict
    if condition.status == "does not hold" and not verdict.startswith("No statement"):
        broken = f"{condition.name} ({condition.reason})"
        verdict = f"NOT VALID, because a premise does not hold: {broken}. {verdict}"
    return replace(certificate, conditions=(*certificate.conditions, condition), verdict=verdict)
