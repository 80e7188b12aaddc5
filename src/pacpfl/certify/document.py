"""`pacpfl certify`: from a run folder to `certificates.json` (docs/certificates.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from pacpfl import files
from pacpfl.bounds import Condition
from pacpfl.bounds.client import Unit
from pacpfl.bounds.conditions import not_negative, probability
from pacpfl.certify import gaussian_processes, networks
from pacpfl.certify.average import AverageCertificates, certify_average
from pacpfl.certify.certificate import Certificate
from pacpfl.certify.clients import ClientCertificate, Family, certify_clients
from pacpfl.config import Config
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.run import Trained, load_run

FILE = "certificates.json"
# What of the records is written as it is.
IN_USE = "empirical_risk bound beta vacuous verdict"
CERTIFICATE = f"subject posterior delta proved {IN_USE}"
CLIENT = "client group samples later temperature kl test_risk networks_test_risk tolerated_epsilon"
UNSCALED = "samples not changed by their own statistics"


def certify(
    folder: Path,
    *,
    delta: float = 0.05,
    loss: str | None = None,
    limit: float | None = None,
    epsilon: float | None = None,
    unit: Unit = "client",
    progress: Callable[[str], None] = lambda text: None,
) -> Facts:
    """Certify every client and the federation, and write `certificates.json` into the run folder.

    Each certificate, of a client or of an average, fails with probability at most `delta`. `loss` is
    by default zero-one where the target is one of several classes, else clipped-nll. `epsilon` by
    hand replaces the premise about the existing clients' privacy.
    """
    probability(delta, "--delta")
    if epsilon is not None:
        not_negative(epsilon, "--epsilon")
    if unit not in ("client", "sample"):
        raise InputError(f"--unit is {unit!r}, but it is client or sample.")
    trained = load_run(folder)
    family = family_of(trained, loss, limit)
    clients = certify_clients(family, delta, epsilon, unit, progress)
    progress("the averages")
    averages = certify_average(family, delta)
    clients, averages = with_scaling(clients, averages, trained.config)
    document = describe(trained, clients, averages)
    files.write_json(folder / FILE, document)
    return document


def family_of(trained: Trained, loss: str | None, limit: float | None) -> Family:
    """Return the models of a run with the loss of this name; None: what suits the target."""
    classes = trained.federation.classes
    if classes is None:
        gaussian_processes.base_of(trained.method.prior)
        bounded = gaussian_processes.build_loss(loss or "clipped-nll", limit)
        return gaussian_processes.family(trained, bounded)
    return networks.family(trained, networks.build_class_loss(loss or "zero-one", limit, classes))


def scaling_condition(config: Config, group: str) -> Condition | None:
    """Return what scaling, and filling in what is missing, do to the certificates of a group.

    The theorems are for samples as they were drawn. A scale that is made from them ties them together,
    and it is data that reach the model without noise: no epsilon covers it. A scale made from others'
    samples alone is part of the prior, like the particles, and does no harm. None where nothing is
    scaled or filled in.
    """
    if config.data.standardize == "client":
        reason = (
            'data.standardize = "client" scales them by their own means and standard deviations'
        )
        return Condition(UNSCALED, "does not hold", reason)
    learned = []
    if config.data.standardize == "global":
        learned.append('the means and standard deviations of data.standardize = "global"')
    if config.data.name == "tables" and config.tables.missing == "impute":
        learned.append('the medians of tables.missing = "impute"')
    if not learned:
        return None
    what = f"{' and '.join(learned)} come from the training samples of all existing clients"
    if group == "new":
        return Condition(UNSCALED, "holds", f"{what}, and from none of this client's")
    return Condition(
        UNSCALED, "does not hold", f"{what}, without noise; clients who join later are not affected"
    )


def with_scaling(
    clients: Sequence[ClientCertificate], averages: AverageCertificates, config: Config
) -> tuple[list[ClientCertificate], AverageCertificates]:
    """Return all certificates with the premise about scaling, where there is one.

    Also what is said of clients yet to come rests on the existing ones' samples.
    """
    of = {group: scaling_condition(config, group) for group in ("existing", "new")}
    scaled = [
        replace(c, certificate=c.certificate.under(of[c.group]), in_use=c.in_use.under(of[c.group]))
        for c in clients
    ]
    federation, newcomers = averages.federation, averages.newcomers
    return scaled, replace(
        averages,
        federation=federation.under(of["existing"]),
        newcomers=newcomers.under(of["existing"]),
    )


def describe(
    trained: Trained, clients: list[ClientCertificate], averages: AverageCertificates
) -> Facts:
    """Return everything as plain values; `finished` names the run these certificates belong to."""
    loss = averages.federation.loss
    return {
        "dataset": trained.federation.name,
        "finished": trained.record.get("finished"),
        "delta": averages.federation.delta,
        "loss": {"name": loss.name, "a": loss.a, "b": loss.b},
        "groups": {
            group: summarise([client for client in clients if client.group == group])
            for group, members in trained.federation.groups().items()
            if members
        },
        "federation": _plain(averages.federation),
        "newcomers": _plain(averages.newcomers),
        "estimators": {
            "kl": {
                "value": averages.kl,
                "error_at_most": math.log(len(trained.particles)),
            },
            "log_evidence": {
                "value": averages.mean,
                "standard_error": averages.standard_error,
            },
            "noise": averages.bandwidth,
        },
        "clients": [_client(client) for client in clients],
    }


def summarise(clients: list[ClientCertificate]) -> Facts:
    """Return the counts and medians of a group of clients."""
    tested = [c for c in clients if c.test_risk is not None]
    networks = [c.networks_test_risk for c in tested if c.networks_test_risk is not None]
    return {
        "clients": len(clients),
        "below": sum(not c.certificate.vacuous for c in clients),
        "proved": sum(c.certificate.proved for c in clients),
        "empirical_risk": median(c.certificate.empirical_risk for c in clients),
        "bound": median(c.certificate.bound for c in clients),
        "bound_in_use": median(c.in_use.bound for c in clients),
        "test_risk": median(c.test_risk or 0.0 for c in tested) if tested else None,
        "networks_test_risk": median(networks) if networks else None,
        "tested": len(tested),
        "covered": sum(c.certificate.bound >= (c.test_risk or 0.0) for c in tested),
        "helped": sum(c.margin >= 0 for c in clients),
        "tolerated_epsilon": median(c.tolerated_epsilon for c in clients),
    }


def _client(client: ClientCertificate) -> Facts:
    return {
        **_values(client, CLIENT),
        "privacy": asdict(client.privacy),
        **_plain(client.certificate),
        "in_use": {
            **_values(client.in_use, IN_USE),
            "kl": client.in_use_kl,
            "test_risk": client.in_use_test_risk,
        },
        "participation": {
            "margin": client.margin,
            "standard_error": client.margin_error,
            **asdict(client.participation),
        },
    }


def _plain(certificate: Certificate) -> Facts:
    return {
        **_values(certificate, CERTIFICATE),
        "terms": dict(certificate.terms),
        "delta_split": dict(certificate.delta_split),
        "conditions": [asdict(condition) for condition in certificate.conditions],
    }


def _values(record: object, names: str) -> Facts:
    return {name: getattr(record, name) for name in names.split()}
