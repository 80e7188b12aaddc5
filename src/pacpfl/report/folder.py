"""Reading a run folder (docs/run-folder.md) into one record, and telling what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.folder import AGAIN, REMEDY, RunFolder
from pacpfl.report.measures import CLASS_MEASURES, MEASURES, Measure

GROUPS = ("existing", "new")
TEXT_COLUMNS = ("method", "group", "client", "kind")
REQUIRED_COLUMNS = ("method", "group", "client", "samples", "test")
OPTIONAL_COLUMNS = (
    "later", "rsmse", "ce", "nll", "coverage_50", "coverage_90", "coverage_95",
    "width_50", "width_90", "width_95", "accuracy", "ce_own", "brier",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run folder in memory.

    `clients` has one row per client and method with every column of the contract (a column
    that was not written is all NaN); `arrays` holds what the figures are drawn from.
    """

    name: str
    record: dict[str, Any]
    metrics: dict[str, dict[str, dict[str, dict[str, float]]]]
    clients: pd.DataFrame
    arrays: dict[str, np.ndarray]
    config: str

    @property
    def titles(self) -> dict[str, str]:
        """Return the methods of the run in their order, each with the name that people read."""
        return {name: str(entry.get("title", name)) for name, entry in self.methods.items()}

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Return what run.json says about each method."""
        return dict(self.record["methods"])

    @property
    def main(self) -> str:
        """Return the method the run is about: the first that learned particles, else the first."""
        with_particles = [name for name, entry in self.methods.items() if "particles" in entry]
        return with_particles[0] if with_particles else next(iter(self.methods))

    @cached_property
    def classification(self) -> bool:
        """Tell whether the targets are classes, so that there are accuracies to show."""
        return bool(self.clients["accuracy"].notna().any())

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Return the columns of the table of methods; the first is what they are ranked by."""
        return CLASS_MEASURES if self.classification else MEASURES

    @property
    def groups(self) -> list[str]:
        """Return the groups that have clients, existing ones first."""
        present = set(self.clients["group"])
        return [group for group in GROUPS if group in present]

    def rows(self, method: str, group: str) -> pd.DataFrame:
        """Return the clients of one group as one method served them, in the order of the file."""
        table = self.clients
        return table[(table["method"] == method) & (table["group"] == group)]

    def names(self, group: str) -> list[str]:
        """Return the clients of a group, in the order in which the arrays list them."""
        table = self.clients
        return list(dict.fromkeys(table.loc[table["group"] == group, "client"]))

    def count(self, group: str) -> int:
        """Count the clients of a group; a strictly private run lists none of those it learned from."""
        recorded = self.record.get("clients", {}).get(group)
        return len(self.names(group)) if recorded is None else int(recorded)

    def kinds(self, group: str) -> list[str]:
        """Return the true kind of each client of a group; empty where it is not known."""
        table = self.clients[self.clients["group"] == group].drop_duplicates("client")
        return list(table["kind"])

    def per_client(self, key: str, group: str) -> np.ndarray | None:
        """Return the array `key/group`, one row per client of the group; None where it was not written."""
        values = self.arrays.get(f"{key}/{group}")
        if values is None:
            return None
        clients = len(self.names(group))
        if len(values) != clients:
            raise InputError(
                f"{self.name}/arrays.safetensors has {len(values)} rows in {key}/{group} but "
                f"clients.csv lists {clients} {group} clients; {AGAIN}."
            )
        return values


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
    config = path / "config.toml"
    return Run(
        name=path.resolve().name,
        record=record,
        metrics=folder.metrics(),
        clients=clients,
        arrays=folder.arrays(),
        config=config.read_text(encoding="utf-8") if config.is_file() else "",
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
    missing = [column for column in (*REQUIRED_COLUMNS, lead) if column not in table]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}; {AGAIN}.")
    if "kind" not in table:
        table["kind"] = ""
    for column in OPTIONAL_COLUMNS:
        if column not in table:
            table[column] = ""
    for column in [column for column in table if column not in TEXT_COLUMNS]:
        try:
            table[column] = [float(cell) if cell else np.nan for cell in table[column]]
        except ValueError as error:
            raise InputError(
                f"{path} has a cell in column {column!r} that is no number ({error}); {AGAIN}."
            ) from None
    return table
