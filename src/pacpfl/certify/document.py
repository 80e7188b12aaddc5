"""`pacpfl certify`: from a run folder to `certificates.json` (docs/certificates.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from pacpfl import files
from pacpfl.bounds.client import Unit
from pacpfl.bounds.conditions import not_negative, probability
from pacpfl.certify import gaussian_processes, networks
from pacpfl.certify.average import AverageCertificate, certify_average
from pacpfl.certify.certificate import REFUTABLE, Certificate
from pacpfl.certify.clients import ClientCertificate, Family, certify_clients
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.run import Trained, load_run

FILE = "certificates.json"
# What of the records is written as it is.
CERTIFICATE = "subject posterior delta proved empirical_risk bound vacuous verdict"
CLIENT = "client group samples later fitted judged test_risk temperature kl"


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
    not_negative(0.0 if epsilon is None else epsilon, "--epsilon")
    if unit not in ("client", "sample"):
        raise InputError(f"--unit is {unit!r}, but it is client or sample.")
    trained = load_run(folder)
    family = family_of(trained, loss, limit)
    clients, newcomers = certify_clients(family, delta, epsilon, unit, progress)
    progress("the average")
    document = describe(trained, clients, certify_average(family, delta), newcomers)
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


def describe(
    trained: Trained,
    clients: list[ClientCertificate],
    averages: AverageCertificate,
    newcomers: Certificate | None,
) -> Facts:
    """Return everything as plain values; `finished` names the run these certificates belong to."""
    return {
        "dataset": trained.federation.name,
        "finished": trained.record.get("finished"),
        "delta": averages.federation.delta,
        "loss": asdict(averages.federation.loss),
        "groups": {
            group: summarise([client for client in clients if client.group == group])
            for group, members in trained.federation.groups().items()
            if members
        },
        "federation": _plain(averages.federation),
        "newcomers": newcomers and _plain(newcomers),
        "estimators": {
            "kl": {"value": averages.kl, "error_at_most": math.log(len(trained.particles))},
            "log_evidence": {"value": averages.mean, "standard_error": averages.standard_error},
            "noise": averages.bandwidth,
        },
        "clients": [_client(client) for client in clients],
    }


def summarise(clients: list[ClientCertificate]) -> Facts:
    """Return the counts and medians of a group of clients."""
    certificates = [client.averaged for client in clients]
    risks = [client.test_risk for client in clients]
    tested = [(c, risk) for c, risk in zip(certificates, risks, strict=True) if risk is not None]
    refuted = [c for one in certificates for c in one.conditions if c.status == "contradicted"]
    return {
        "clients": len(clients),
        "below": sum(not certificate.vacuous for certificate in certificates),
        "proved": sum(certificate.proved for certificate in certificates),
        "contradicted": sum(certificate.contradicted for certificate in certificates),
        "refuted": sum(condition.name == REFUTABLE for condition in refuted),
        "against": sorted({c.reason for c in refuted if c.name != REFUTABLE}),
        "empirical_risk": median(certificate.empirical_risk for certificate in certificates),
        "bound": median(certificate.bound for certificate in certificates),
        "bound_drawn": median(client.drawn.bound for client in clients),
        "test_risk": _median(risks),
        "tested": len(tested),
        "covered": sum(certificate.bound >= risk for certificate, risk in tested),
        "helped": sum(client.margin >= 0 for client in clients),
    }


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _client(client: ClientCertificate) -> Facts:
    margin = {"margin": client.margin, "standard_error": client.margin_error}
    return {
        **_values(client, CLIENT),
        "privacy": asdict(client.privacy),
        **_plain(client.averaged),
        "drawn": _plain(client.drawn) | {"test_risk": client.drawn_test_risk},
        "pac_bayes": _plain(client.posterior),
        "participation": margin | asdict(client.participation),
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
