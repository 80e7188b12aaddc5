"""Reading a run folder (docs/run-folder.md) into one record, and telling what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pacpfl import files, metrics
from pacpfl.errors import InputError
from pacpfl.folder import AGAIN, CLASS_METRICS, METRICS, REMEDY, RunFolder, main_method
from pacpfl.methods.registry import named
from pacpfl.report.measures import BOXED, CLASS_BOXED, CLASS_MEASURES, MEASURES, Measure

Facts = Mapping[str, Any]  # an object of run.json or certificates.json
GROUPS = ("existing", "new")
REQUIRED = ("method", "group", "client", "samples", "test")
TEXTS = ("method", "group", "client", "kind")
NUMBERS = tuple(dict.fromkeys(("samples", "later", "test", *METRICS, *CLASS_METRICS)))


@dataclass(frozen=True)
class Run:
    """A run folder in memory.

    `clients` has one row per client and method with every column of the contract (a column
    that was not written is all NaN); `arrays` holds what the figures are drawn from.
    """

    name: str
    record: Facts
    metrics: dict[str, dict[str, dict[str, dict[str, float]]]]
    clients: pd.DataFrame
    arrays: dict[str, np.ndarray]
    config: str
    certificates: Facts | None = None

    @property
    def methods(self) -> Mapping[str, Facts]:
        """Return what run.json says about each method."""
        methods: Mapping[str, Facts] = self.record["methods"]
        return methods

    @property
    def titles(self) -> dict[str, str]:
        """Return the methods of the run in their order, each with the name that people read."""
        return {name: str(entry.get("title", name)) for name, entry in self.methods.items()}

    @property
    def main(self) -> str:
        """Return the method the run is about: the first that learned particles, else the first."""
        return main_method(self.methods)

    @cached_property
    def alone(self) -> str | None:
        """Return the method to compare with: of those that go alone, the best over all clients.

        The best on average, not the best for each client: that would compare with a choice nobody
        can make beforehand.
        """
        lead = self.measures[0]
        others = [m for m in self.titles if m in named(learns="alone") and m != self.main]
        means = {m: metrics.interval(lead.distance(self.rows(m)[lead.key]))[0] for m in others}
        finite = [method for method in others if np.isfinite(means[method])]
        return min(finite, key=means.__getitem__, default=None)

    @cached_property
    def classification(self) -> bool:
        """Tell whether the targets are classes, so that there are accuracies to show."""
        return bool(self.clients["accuracy"].notna().any())

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Return the columns of the table of methods; the first is what they are ranked by."""
        return CLASS_MEASURES if self.classification else MEASURES

    @property
    def boxed(self) -> tuple[Measure, ...]:
        """Return the measures that every client has a value of, and that are worth a box."""
        return CLASS_BOXED if self.classification else BOXED

    @property
    def groups(self) -> list[str]:
        """Return the groups that have clients, existing ones first."""
        return [group for group in GROUPS if self.places[group]]

    @cached_property
    def places(self) -> dict[str, dict[str, int]]:
        """Return by group the place that each client has in the arrays."""
        group, client = self.clients["group"], self.clients["client"]
        return {g: {n: i for i, n in enumerate(client[group == g].unique())} for g in GROUPS}

    def names(self, group: str) -> list[str]:
        """Return the clients of a group, in the order in which the arrays list them."""
        return list(self.places[group])

    def rows(self, method: str | None, group: str | None = None) -> pd.DataFrame:
        """Return the clients (of one group) as a method served them, in the order of the file."""
        table = self.clients[self.clients["method"] == method]
        return table if group is None else table[table["group"] == group]

    def mean(self, method: str, group: str, key: str, part: str = "mean") -> float:
        """Return a mean of metrics.json, or half its interval; NaN where it was not measured."""
        value = self.metrics.get(method, {}).get(group, {}).get(key, {}).get(part)
        return float("nan") if value is None else float(value)

    def count(self, group: str) -> int:
        """Count the clients of a group; a strictly private run lists none of those it learned from."""
        return int(self.record.get("clients", {}).get(group, len(self.places[group])))

    def kinds(self, group: str) -> list[str]:
        """Return the true kind of each client of a group; empty where it is not known."""
        table = self.clients[self.clients["group"] == group].drop_duplicates("client")
        return list(table["kind"])

    def per_client(self, key: str, group: str) -> np.ndarray | None:
        """Return the array `key/group`, one row per client of the group; None where it was not written."""
        values = self.arrays.get(f"{key}/{group}")
        if values is not None:
            self._check(f"{key}/{group}", len(values), group)
        return values

    def of_client(self, key: str, group: str, client: str) -> np.ndarray | None:
        """Return the row of one client of the array `key/group`; None where it was not written."""
        values = self.per_client(key, group)
        return None if values is None else values[self.places[group][client]]

    def predictions(self, group: str) -> dict[str, dict[str, np.ndarray]]:
        """Return for each client what was kept of its samples and predictions, as `panels/GROUP` names it.

        A client of which nothing was kept has an empty entry.
        """
        above = f"panels/{group}/"
        kept = {k.removeprefix(above): v for k, v in self.arrays.items() if k.startswith(above)}
        ends = {key: kept.pop(key) for key in ("offsets", "train_offsets") if key in kept}
        for key, values in ends.items():
            self._check(above + key, len(values) - 1, group)
        found: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.places[group]}
        for place, name in enumerate(found if ends else ()):
            parts = {key: slice(*values[place : place + 2]) for key, values in ends.items()}
            own = {
                key: values[..., parts["train_offsets" if key.startswith("train_") else "offsets"]]
                for key, values in kept.items()
            }
            found[name] = own if own["y"].size else {}
        return found

    def _check(self, key: str, clients: int, group: str) -> None:
        listed = len(self.places[group])
        if clients != listed:
            raise InputError(
                f"{self.name}/arrays.safetensors has {clients} clients in {key} but clients.csv lists "
                f"{listed} {group} clients; {AGAIN}."
            )


def read_run(path: Path) -> Run:
    """Return the run in a folder; `config.toml` and `arrays.safetensors` may be missing."""
    folder = RunFolder(path)
    record = folder.record()
    if not isinstance(record.get("methods"), dict) or not record["methods"]:
        raise InputError(f"{path / 'run.json'} names no methods; {AGAIN}.")
    clients = _read_clients(path / "clients.csv")
    unknown = sorted(set(clients["method"]) - set(record["methods"]))
    if unknown:
        raise InputError(
            f"{path / 'clients.csv'} has rows of method {unknown[0]!r}, which run.json does not name; "
            f"{AGAIN}."
        )
    config, certificates = path / "config.toml", {}
    if (path / "certificates.json").is_file():
        remedy = "delete it, or certify the run again"
        certificates = files.read_json(path / "certificates.json", remedy)
    current = certificates.get("finished") == record.get("finished")  # not of an earlier run
    return Run(
        name=path.resolve().name,
        record=record,
        metrics=folder.metrics(),
        clients=clients,
        arrays=folder.arrays(),
        config=config.read_text(encoding="utf-8") if config.is_file() else "",
        certificates=certificates if current and certificates.get("clients") else None,
    )


def _read_clients(path: Path) -> pd.DataFrame:
    """Read clients.csv, names as text: a client called "NA" or "007" keeps its name."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}; {REMEDY}.") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise files.damaged(path, error, AGAIN) from None
    lead = "accuracy" if "accuracy" in table else "rsmse"
    missing = [column for column in (*REQUIRED, lead) if column not in table]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}; {AGAIN}.")
    table = table.reindex(columns=[*TEXTS, *NUMBERS], fill_value="")
    for column in NUMBERS:
        try:
            table[column] = [float(cell) if cell else np.nan for cell in table[column]]
        except ValueError as error:
            raise InputError(
                f"{path} has a cell in column {column!r} that is no number ({error}); {AGAIN}."
            ) from None
    if unknown := set(table["group"]) - set(GROUPS):
        raise InputError(f"{path} names the group {min(unknown)!r}, which there is not; {AGAIN}.")
    counts = table[["samples", "later", "test"]].fillna(0)
    if not ((counts >= 0) & (counts < 2**53)).all(axis=None):
        raise InputError(f"{path} has a number of samples that cannot be; {AGAIN}.")
    return table
