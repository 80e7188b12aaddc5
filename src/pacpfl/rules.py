"""Rules of a configuration that involve several sections: each yields what is wrong, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pacpfl.data.settings import CLASSIFICATION
from pacpfl.methods.registry import entries, entry, named
from pacpfl.settings import nearest

if TYPE_CHECKING:
    from pacpfl.config import Config


def problems(config: Config) -> Iterator[str]:
    """Yield what no single section can tell."""
    yield from _clients(config)
    yield from _methods(config)
    if config.privacy.mode != "none":
        yield from _privacy(config)
        if config.privacy.strict:
            yield from _strict_privacy(config)


def _clients(config: Config) -> Iterator[str]:
    data, train, tables = config.data, config.train, config.tables
    if data.name == "tables":  # how many clients there are, the files tell
        if not (tables.source and tables.target):
            yield (
                "tables need a source (file or folder) and a target (column); pacpfl init FOLDER "
                "writes both."
            )
    elif (train.clients_per_round or 0) > data.clients:
        yield (
            f"clients_per_round = {train.clients_per_round} is more than the {data.clients} clients "
            "there are."
        )


def _methods(config: Config) -> Iterator[str]:
    if not config.run.methods:
        yield f"methods is empty; name at least one of {', '.join(entries())}."
    able = named("classes")
    for name in config.run.methods:
        if name not in entries():
            yield f"there is no method {name!r}{nearest(name, entries())}"
        elif config.data.name in CLASSIFICATION and name not in able:
            yield (
                f"{name} is not made for classes, which {config.data.name} has; choose among "
                f"{', '.join(able)}."
            )


def _privacy(config: Config) -> Iterator[str]:
    if "pacpfl" not in config.run.methods:
        yield (
            f"privacy.mode = {config.privacy.mode} is for the method pacpfl, which is not among the "
            "methods; add it."
        )
    if config.data.standardize == "global":
        yield (
            "standardize = global uses all clients' data without noise, which no budget covers; choose "
            "client or none."
        )
    if config.data.name == "tables" and config.tables.missing == "impute":
        yield (
            "missing = impute uses the medians of all clients' rows without noise, which no budget "
            "covers; set tables.missing to drop, or privacy.mode to none."
        )


def _strict_privacy(config: Config) -> Iterator[str]:
    """Whoever does not say that nothing unaccounted for leaves the clients is refused."""
    loud = [name for name in config.run.methods if entry(name).releases == "more"]
    if loud:
        yield (
            "privacy.strict releases nothing that is not accounted for, but "
            f"{', '.join(loud)} would learn from all clients without noise; leave them out of "
            "run.methods."
        )
    if config.data.name != "tables" and config.data.new_clients == 0:
        yield "privacy.strict measures new clients only, and there are none; set new_clients."
