"""The folder of a run (docs/run-folder.md), and what is written into it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pacpfl import config as configuration
from pacpfl import excerpts, files, metrics
from pacpfl.config import Config
from pacpfl.engine import runtime
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.methods.registry import entries
from pacpfl.privacy.ledger import FILE as LEDGER
from pacpfl.privacy.ledger import start_over
from pacpfl.types import Client, Federation
from pacpfl.version import __version__

METRICS = ("rsmse", "ce", "nll", *(f"{a}_{b}" for b in (50, 90, 95) for a in ("coverage", "width")))
CLASS_METRICS = ("accuracy", "ce_own", "nll", "brier")
FILES = (
    *("config.toml", "run.json", "checkpoint.safetensors", "metrics.json", "clients.csv"),
    *("arrays.safetensors", "certificates.json", "report.html"),
)
AGAIN = "start the same run again, it goes on where it stopped"
REMEDY = f"give the folder of a complete run, or {AGAIN}"


@dataclass(frozen=True)
class MethodResult:
    """What one method did: its entry in run.json, its curves, and its evaluations by group."""

    about: dict[str, Any]
    history: dict[str, np.ndarray]
    groups: dict[str, Evaluation]
    extra: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFolder:
    """The files of one run (docs/run-folder.md): begun, filled, read back, forgotten."""

    path: Path

    def checkpoint(self, method: str) -> Path:
        """Return where a method's checkpoint is: PAC-PFL's has no name in it."""
        suffix = "" if method == "pacpfl" else f"-{method}"
        return self.path / f"checkpoint{suffix}.safetensors"

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    def clear(self) -> None:
        """Forget the run in this folder.

        Files that no run writes stay, and so does the privacy ledger: what was released of the data
        stays released.
        """
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        for method in entries():
            self.checkpoint(method).unlink(missing_ok=True)
        start_over(self.ledger)

    def prepare(self, config: Config) -> None:
        """Make the folder, unless it belongs to another run; what training depends on must agree."""
        path = self.path / "config.toml"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be created ({error.strerror}); choose another --out."
            ) from error
        if path.exists():
            before = configuration.load_file(path)
            if configuration.identity(before) != configuration.identity(config):
                raise InputError(
                    f"{self.path} holds a run with another configuration; choose another folder with "
                    "--out, or start over with --fresh."
                )
        files.write(path, configuration.dump(config).encode())

    def write(
        self,
        config: Config,
        federation: Federation,
        results: dict[str, MethodResult],
        started: datetime,
    ) -> None:
        """Write metrics.json, clients.csv, arrays.safetensors, and last run.json, which is the proof
        that the run is complete."""
        out = self.path
        summary = {name: summarise(result.groups) for name, result in results.items()}
        files.write_json(out / "metrics.json", summary)
        files.write(out / "clients.csv", client_rows(federation, results).encode())
        files.write(out / "arrays.safetensors", save(figure_arrays(federation, results)))
        samples = [len(client.train) for client in federation.existing]
        record = {
            "dataset": config.data.name,
            "status": "complete",
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "pacpfl": __version__,
            "versions": runtime.versions(),
            "machine": runtime.machine(),
            "devices": jax.device_count(),
            "seed": config.seed,
            "precision": config.run.precision,
            "clients": {
                "existing": len(federation.existing),
                "new": len(federation.new),
                "features": list(federation.features),
                "target": federation.target,
                "samples": {
                    "min": min(samples),
                    "median": float(np.median(samples)),
                    "max": max(samples),
                },
            },
            "methods": {name: result.about for name, result in results.items()},
        }
        files.write_json(out / "run.json", record)

    def config(self) -> Config:
        """Return the configuration of the run."""
        path = self.path / "config.toml"
        self._check_it_is_there()
        if not path.is_file():
            raise InputError(f"{self.path} holds no config.toml, so it is no run folder; give one.")
        return configuration.load_file(path)

    def record(self) -> dict[str, Any]:
        """Return what run.json says."""
        self._check_it_is_there()
        return files.read_json(self.path / "run.json", REMEDY)

    def metrics(self) -> dict[str, Any]:
        """Return metrics.json: method -> group -> metric -> mean, half width, number of clients."""
        return files.read_json(self.path / "metrics.json", REMEDY)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what the figures are drawn from; nothing where it was not kept."""
        path = self.path / "arrays.safetensors"
        try:
            return load_file(path) if path.is_file() else {}
        except SafetensorError as error:
            raise files.damaged(path, error, AGAIN) from None

    def _check_it_is_there(self) -> None:
        if not self.path.is_dir():
            raise InputError(f"There is no run folder {self.path}; give the folder of a run.")


def metric_names(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what each client is measured by, which depends on the task."""
    return CLASS_METRICS if evaluation.log_probabilities else METRICS


def summarise(groups: dict[str, Evaluation]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean of each metric and half the width of its 95% interval over clients, by group.

    Classification has one more: `ce`, the calibration error of all clients' predictions together.
    One client's few test samples, dealt to twenty bins, say little about calibration (`ce_own`).
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for group, evaluation in groups.items():
        table[group] = {}
        for metric in metric_names(evaluation):
            values = np.array([row[metric] for row in evaluation.rows])
            mean, half = metrics.interval(values)
            table[group][metric] = {"mean": mean, "ci95": half, "n": len(values)}
        if evaluation.log_probabilities:
            together = metrics.reliability_error(evaluation.calibration.sum(0))
            count = len(evaluation.rows)
            table[group]["ce"] = {"mean": together, "ci95": float("nan"), "n": count}
    return table


def client_rows(federation: Federation, results: dict[str, MethodResult]) -> str:
    """Return the text of clients.csv: one row per client and method."""
    members = max(
        (
            0 if e.responsibilities is None else e.responsibilities.shape[1]
            for result in results.values()
            for e in result.groups.values()
        ),
        default=0,
    )
    names = [f"responsibility_{j}" for j in range(members)]
    measured = METRICS if federation.classes is None else CLASS_METRICS
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        ["method", "group", "client", "kind", "samples", "later", "test", *measured, *names]
    )
    groups = federation.groups()
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            for index, (client, row) in enumerate(zip(groups[group], evaluation.rows, strict=True)):
                shares = evaluation.responsibilities
                more = [""] * members if shares is None else [float(s) for s in shares[index]]
                writer.writerow(
                    [
                        *(name, group, client.name),
                        "" if client.kind is None else client.kind,
                        len(client.train),
                        0 if client.later is None else len(client.later),
                        0 if client.test is None else len(client.test),
                        *(row[metric] for metric in measured),
                        *more,
                    ]
                )
    return text.getvalue()


def main_method(results: dict[str, MethodResult]) -> MethodResult:
    """Return the method the run is about: the first with particles, else the first."""
    everything = list(results.values())
    return next((r for r in everything if "particles" in r.about), everything[0])


def figure_arrays(
    federation: Federation, results: dict[str, MethodResult]
) -> dict[str, np.ndarray]:
    """Return what the report draws; bands only of the best, middle and worst clients of a group."""
    arrays: dict[str, np.ndarray] = {"calibration/levels": metrics.calibration_levels()}
    lead = main_method(results)
    learner = lead if lead.history else next((r for r in results.values() if r.history), lead)
    arrays |= {f"curve/{name}": values for name, values in learner.history.items()}
    arrays |= lead.extra
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            arrays[f"calibration/{name}/{group}"] = evaluation.calibration
    for group, evaluation in lead.groups.items():
        if evaluation.weights is not None:
            arrays[f"weights/{group}"] = evaluation.weights
        if evaluation.responsibilities is not None:
            arrays[f"responsibilities/{group}"] = evaluation.responsibilities
        arrays |= single_clients(federation, results, group)
        if evaluation.log_probabilities:
            clients, shape = federation.groups()[group], federation.shape
            arrays |= excerpts.examples(group, clients, evaluation, shape or ())
            continue
        order = np.argsort([row["rsmse"] for row in evaluation.rows])
        places = np.unique(np.linspace(0, len(order) - 1, 4).round().astype(int))
        for index in order[places]:
            client = federation.groups()[group][index]
            others = {n: r.groups[group].means[index] for n, r in results.items() if r is not lead}
            arrays |= band(group, client, evaluation, int(index), others)
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}


def single_clients(
    federation: Federation, results: dict[str, MethodResult], group: str
) -> dict[str, np.ndarray]:
    """Return what the page shows of each client of a group, and what the main method saves it."""
    lead = main_method(results)
    main, clients = lead.groups[group], federation.groups()[group]
    count = sum(len(federation.groups()[name]) for name in lead.groups)
    alone = excerpts.alone_evaluations(
        {n: r.groups for n, r in results.items() if r is not lead}, group
    )
    arrays = {
        f"gain/{name}/{group}": table
        for name, table in excerpts.gains(clients, main, alone).items()
    }
    if main.log_probabilities:
        shown = excerpts.class_panels(group, clients, main, federation.shape or (), count)
    else:
        shown = excerpts.number_panels(group, clients, main, alone, excerpts.points_each(count))
    return arrays | shown


def band(
    group: str,
    client: Client,
    evaluation: Evaluation,
    index: int,
    others: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    assert client.test is not None
    x = client.test.x
    order = np.argsort(x[:, 0]) if x.shape[1] == 1 else np.arange(len(x))
    place = f"bands/{group}/{client.name}"
    return {
        f"{place}/x": x[order],
        f"{place}/y": client.test.y[order],
        f"{place}/mean": evaluation.means[index][order],
        f"{place}/std": evaluation.stds[index][order],
        f"{place}/quantiles": evaluation.quantiles[index][:, order],
        f"{place}/train_x": client.personal.x,
        f"{place}/train_y": client.personal.y,
        **{f"{place}/{name}/mean": mean[order] for name, mean in others.items()},
    }
