"""The folder of a run (docs/run-folder.md): what is written into it, and read back.

`arrays.safetensors` holds what the page draws. Clients stand one after the other in long arrays;
`offsets` says where each one begins. A client keeps at most POINTS of its test samples, fewer where
there are many clients, so that neither the folder nor the page grows without end.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pacpfl import config as configuration
from pacpfl import files, metrics
from pacpfl.config import Config
from pacpfl.engine import runtime
from pacpfl.engine.measure import Evaluation
from pacpfl.errors import InputError, explained
from pacpfl.files import Facts
from pacpfl.methods.registry import entries, named
from pacpfl.privacy.ledger import FILE as LEDGER
from pacpfl.privacy.ledger import start_over
from pacpfl.types import Client, Federation
from pacpfl.version import __version__

COLUMNS = ("method", "group", "client", "kind", "samples", "later", "test")
COVERAGES = (f"{a}_{b}" for b in (50, 90, 95) for a in ("coverage", "width"))
METRICS = ("rsmse", "ce", "nll", "crps", *COVERAGES)
CLASS_METRICS = ("accuracy", "ce_own", "nll", "brier")
RACE, UNITS = "race.json", "units.csv"  # of runs on tables,
SHARED, MODELS = "prior.safetensors", "models.safetensors"  # and what becomes of them
FILES = (
    *("config.toml", "run.json", "checkpoint.safetensors", "metrics.json", "clients.csv"),
    *("arrays.safetensors", "certificates.json", "report.html", RACE, UNITS, SHARED, MODELS),
)
AGAIN = "start the same run again, it goes on where it stopped"
REMEDY = f"give the folder of a complete run, or {AGAIN}"

POINTS = 120  # test samples kept of one client,
FEWEST = 16  # of each client however many there are,
BUDGET = 100_000  # and of all clients together
CLIENTS = 5_000  # of a group; later ones keep their row in clients.csv and no predictions
ERRORS = 4  # images of wrong answers kept of one client,
PIXELS = 1_000_000  # and pixels of all such images together
EACH = 4  # single test samples shown of each kind of answer
SURE, DOUBTED, WRONG = range(3)  # kinds of answers

OF_ROWS = ("panels/", "examples/")  # arrays with samples in them

Arrays = dict[str, np.ndarray]
Groups = Mapping[str, Evaluation]


@dataclass(frozen=True)
class MethodResult:
    """What one method did: its entry in run.json, its curves, and its evaluations by group."""

    about: Facts
    history: Arrays
    groups: dict[str, Evaluation]
    extra: Arrays = field(default_factory=dict)


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
        from pacpfl.engine.training import before

        for method in entries():
            own = self.checkpoint(method)
            for path in (own, before(own), own.with_suffix(".damaged")):
                path.unlink(missing_ok=True)
        start_over(self.ledger)

    def prepare(self, config: Config) -> None:
        """Make the folder, unless it belongs to another run; what training depends on must agree."""
        path = self.path / "config.toml"
        make_folder(self.path)
        if path.exists():
            earlier = configuration.load_file(path)
            if configuration.identity(earlier) != configuration.identity(config):
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
        about: Facts | None = None,
    ) -> None:
        """Write metrics.json, clients.csv, arrays.safetensors, and last run.json, which is the proof
        that the run is complete."""
        out = self.path
        summary = {name: summarise(result.groups) for name, result in results.items()}
        files.write_json(out / "metrics.json", summary)
        files.write(out / "clients.csv", client_rows(federation, results).encode())
        arrays = figure_arrays(federation, results, rows=not config.privacy.sealed)
        whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        files.write(out / "arrays.safetensors", save(whole), private=True)
        samples = [len(client.train) for client in federation.existing]
        record = {
            "dataset": config.data.name,
            "status": "complete",
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "pacpfl": __version__,
            "versions": runtime.versions(),
            "machine": runtime.machine(),
            "devices": runtime.devices(),
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
            **(about or {}),
        }
        files.write_json(out / "run.json", record)

    def config(self) -> Config:
        """Return the configuration of the run."""
        path = self.path / "config.toml"
        self._check_it_is_there()
        if not path.is_file():
            raise InputError(f"{self.path} holds no config.toml, so it is no run folder; give one.")
        return configuration.load_file(path)

    def record(self) -> Facts:
        """Return what run.json says."""
        self._check_it_is_there()
        return files.read_json(self.path / "run.json", REMEDY)

    def metrics(self) -> Facts:
        """Return metrics.json: method -> group -> metric -> mean, half width, number of clients."""
        return files.read_json(self.path / "metrics.json", REMEDY)

    def arrays(self) -> Arrays:
        """Return what the figures are drawn from; nothing where it was not kept."""
        path = self.path / "arrays.safetensors"
        with explained(f"{path} is damaged", AGAIN, SafetensorError):
            return load_file(path) if path.is_file() else {}

    def _check_it_is_there(self) -> None:
        if not self.path.is_dir():
            raise InputError(f"There is no run folder {self.path}; give the folder of a run.")


def make_folder(path: Path) -> None:
    with explained(f"{path} cannot be created", "choose another --out", OSError):
        path.mkdir(parents=True, exist_ok=True)


def main_method(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the method that a run is about, given what run.json says of each: the first one with
    particles, else the first."""
    return next((name for name in methods if "particles" in methods[name]), next(iter(methods)))


# ---- Tables


def summarise(groups: Groups) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean of each metric and half the width of its 95% interval over clients, by group.

    Classification has one more: `ce`, the calibration error of all clients' predictions together.
    One client's few test samples, dealt to twenty bins, say little about calibration (`ce_own`).
    """
    table = {}
    for group, evaluation in groups.items():
        count, cells = len(evaluation.rows), {}
        for metric in evaluation.rows[0]:
            mean, half = metrics.interval(np.array([row[metric] for row in evaluation.rows]))
            cells[metric] = {"mean": mean, "ci95": half, "n": count}
        if evaluation.log_probabilities:
            together = metrics.reliability_error(evaluation.calibration.sum(0))
            cells["ce"] = {"mean": together, "ci95": float("nan"), "n": count}
        table[group] = cells
    return table


def client_rows(federation: Federation, results: Mapping[str, MethodResult]) -> str:
    """Return the text of clients.csv: one row per client and method."""
    measured = METRICS if federation.classes is None else CLASS_METRICS
    rows, columns = [], dict.fromkeys((*COLUMNS, *measured))
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            clients = federation.groups()[group]
            members = evaluation.responsibilities
            for index, (client, row) in enumerate(zip(clients, evaluation.rows, strict=True)):
                shares = () if members is None else members[index]
                sets = (client.train, client.later, client.test)
                sizes = (0 if samples is None else len(samples) for samples in sets)
                kind = "" if client.kind is None else client.kind
                rows.append(
                    dict(zip(COLUMNS, (name, group, client.name, kind, *sizes), strict=True))
                    | {metric: row[metric] for metric in measured}
                    | {f"responsibility_{j}": float(share) for j, share in enumerate(shares)}
                )
                columns |= dict.fromkeys(rows[-1])
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ---- Arrays


def figure_arrays(
    federation: Federation, results: Mapping[str, MethodResult], rows: bool = True
) -> Arrays:
    """Return what the page draws; without `rows` nothing that holds a row of anybody's."""
    main = main_method({name: result.about for name, result in results.items()})
    lead = results[main]
    learner = lead if lead.history else next((r for r in results.values() if r.history), lead)
    arrays: Arrays = {"calibration/levels": metrics.calibration_levels()}
    arrays |= {f"curve/{name}": values for name, values in learner.history.items()} | lead.extra
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            arrays[f"calibration/{name}/{group}"] = evaluation.calibration
    everyone = sum(len(evaluation.rows) for evaluation in lead.groups.values())
    for group, evaluation in lead.groups.items():
        others = {n: r.groups[group] for n, r in results.items() if n != main and group in r.groups}
        arrays |= dict(_of_group(federation, group, evaluation, others, everyone))
    kept = arrays if rows else (name for name in arrays if not name.startswith(OF_ROWS))
    return {name: arrays[name] for name in kept}


def _of_group(
    federation: Federation, group: str, main: Evaluation, others: Groups, everyone: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is kept of the clients of a group, and what the main method saves them."""
    clients, shape = federation.groups()[group], federation.shape or ()
    if main.weights is not None:
        yield f"weights/{group}", main.weights
    if main.responsibilities is not None:
        yield f"responsibilities/{group}", main.responsibilities
    alone = named(learns="alone")
    yield from (
        (f"gain/{n}/{group}", gains(clients, main, others[n])) for n in others if n in alone
    )
    if not main.log_probabilities:
        points = points_each(everyone)
        yield from _below(f"panels/{group}", number_panels(clients, main, others, points))
        return
    found = answered(clients, main)
    yield f"classes/{group}", class_counts(found, len(clients))
    yield from _below(f"panels/{group}/errors", wrong_answers(found, shape, everyone))
    yield from _below(f"examples/{group}", examples(found, shape))


def _below(place: str, arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    return ((f"{place}/{key}", values) for key, values in arrays.items())


def points_each(clients: int) -> int:
    """Return how many test samples a client keeps when there are so many clients in all."""
    return int(np.clip(BUDGET // max(clients, 1), FEWEST, POINTS))


def thinned(count: int, at_most: int) -> np.ndarray:
    """Return evenly spread places: all of them when there are few, the first and the last always."""
    if count <= at_most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, at_most).round().astype(int))


class Answered(NamedTuple):
    """The test samples of a group one after the other, and how they were classified."""

    x: np.ndarray
    labels: np.ndarray
    client: np.ndarray  # the place of the one each sample belongs to
    probabilities: np.ndarray

    @property
    def answers(self) -> np.ndarray:
        return self.probabilities.argmax(1)

    def shown(self, rows: np.ndarray, shape: tuple[int, ...]) -> Arrays:
        """Return the images of some samples, what is on them, and whose they are."""
        pixels = np.rint(255 * np.clip(self.x[rows], 0, 1)).astype(np.uint8)
        return {
            "images": pixels.reshape(-1, *shape),
            "labels": self.labels[rows].astype(np.int32),
            "client": self.client[rows].astype(np.int32),
        }


def answered(clients: Sequence[Client], main: Evaluation) -> Answered:
    """Put the test samples of all clients together."""
    tests = [client.test for client in clients if client.test is not None]
    return Answered(
        np.concatenate([test.x for test in tests]),
        np.concatenate([test.y for test in tests]).astype(int),
        np.repeat(np.arange(len(tests)), [len(test) for test in tests]),
        np.exp(np.concatenate(main.log_probabilities)),
    )


def losses(clients: Sequence[Client], evaluation: Evaluation) -> Iterator[np.ndarray]:
    """Yield each client's losses: squared errors, or whether each test sample is classified wrongly."""
    told = evaluation.log_probabilities or evaluation.means
    for client, values in zip(clients, told, strict=True):
        assert client.test is not None
        y, values = client.test.y, np.asarray(values, float)
        yield (values.argmax(1) != y).astype(float) if values.ndim == 2 else (values - y) ** 2


def gains(clients: Sequence[Client], main: Evaluation, other: Evaluation) -> np.ndarray:
    """Sum up what the main method saves each client on its test samples against another method.

    Saved is the loss of the other method less the loss of the main method on the same sample; n, sum
    and sum of squares are what a paired test needs.
    """
    pairs = zip(losses(clients, other), losses(clients, main), strict=True)
    saved = (theirs - own for theirs, own in pairs)
    return np.array([(len(each), each.sum(), (each**2).sum()) for each in saved])


def number_panels(
    clients: Sequence[Client], main: Evaluation, others: Groups, points: int
) -> Arrays:
    """Return the test samples that clients keep, what was predicted there, and with one feature also
    what they learned from."""
    kept = [
        _kept(client, main, others, index, points) for index, client in enumerate(clients[:CLIENTS])
    ]
    arrays = {
        key: np.concatenate([one[key] for one in kept], axis=-1).astype(np.float32)
        for key in kept[0]
    }
    for offsets, key in (("offsets", "y"), ("train_offsets", "train_y")):
        if key in arrays:
            sizes = [len(one[key]) for one in kept] + [0] * (len(clients) - len(kept))
            arrays[offsets] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return arrays


def _kept(client: Client, main: Evaluation, others: Groups, index: int, points: int) -> Arrays:
    """Return one client's samples. With one feature: evenly spread over it, and what it learned from.
    With several: the first ones in a row, for order may mean time, and others spread over all of them."""
    test, own, mean = client.test, client.personal, np.asarray(main.means[index])
    assert test is not None
    one_feature = test.x.shape[1] == 1
    even = thinned(len(test), points)
    shown = np.argsort(test.x[:, 0], kind="stable")[even] if one_feature else np.arange(len(even))
    found = {
        "y": test.y[shown],
        "mean": mean[shown],
        "quantiles": np.asarray(main.quantiles[index])[:, shown],
        **{f"{name}/mean": np.asarray(e.means[index])[shown] for name, e in others.items()},
    }
    if one_feature:
        learned = thinned(len(own), points)
        return found | {
            "x": test.x[shown, 0],
            "train_x": own.x[learned, 0],
            "train_y": own.y[learned],
        }
    return found | {"spread_y": test.y[even], "spread_mean": mean[even]}


def class_counts(found: Answered, clients: int) -> np.ndarray:
    """Count test samples of each client and class, and those that are classified correctly."""
    counts = np.zeros((clients, found.probabilities.shape[1], 2), np.int32)
    right = found.answers == found.labels
    np.add.at(counts, (found.client, found.labels), np.stack([np.ones_like(right), right], axis=1))
    return counts


def wrong_answers(found: Answered, shape: tuple[int, ...], everyone: int) -> Arrays:
    """Return each client's surest wrong answers, with their images."""
    each = min(ERRORS, PIXELS // (int(np.prod(shape)) * everyone)) if len(shape) == 2 else 0
    sure = found.probabilities.max(1)
    wrong = np.flatnonzero((found.answers != found.labels) & np.isfinite(sure))
    wrong = wrong[np.lexsort((-sure[wrong], found.client[wrong]))]
    owner = found.client[wrong]
    rows = wrong[np.arange(len(wrong)) - np.searchsorted(owner, owner) < each]
    if not len(rows):
        return {}
    return found.shown(rows, shape) | {
        "answers": found.answers[rows].astype(np.int32),
        "confidence": sure[rows].astype(np.float32),
    }


def examples(found: Answered, shape: tuple[int, ...], each: int = EACH) -> Arrays:
    """Choose the test samples that are shown singly.

    Of the answers that are right, some from the surer half and the least sure ones; of those that are
    wrong, the surest. No sample is shown twice, and one without finite probabilities never.
    """
    surest_first = np.argsort(-found.probabilities.max(1), kind="stable")
    surest_first = surest_first[np.isfinite(found.probabilities).all(1)[surest_first]]
    right = (found.answers == found.labels)[surest_first]
    rights, wrongs = surest_first[right], surest_first[~right]
    surer_half = np.linspace(0, max(len(rights) // 2 - 1, 0), each).astype(int)
    sure = rights[np.unique(surer_half)[: len(rights)]]
    rest = rights[~np.isin(rights, sure)]
    chosen = {SURE: sure, DOUBTED: rest[::-1][:each], WRONG: wrongs[:each]}
    rows = np.concatenate(list(chosen.values()))
    if len(shape) != 2 or not len(rows):
        return {}
    return found.shown(rows, shape) | {
        "probabilities": found.probabilities[rows].astype(np.float32),
        "kind": np.repeat(list(chosen), list(map(len, chosen.values()))).astype(np.int32),
    }
