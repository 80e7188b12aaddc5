"""What of its own data a site lets runs read: its site.toml names columns and words, and nothing else is.

Names of columns, and words of categories, become names of features, which the server and all other sites
learn; whoever chooses the target and the client's column chooses what is read. So a run gets what
[tables] and [categories] name, in every column the words that stand there, whatever the rows hold.
`draft` writes these sections from the data, for people to correct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pacpfl.config import Config
from pacpfl.data.prepare import standardize
from pacpfl.data.settings import TableSettings
from pacpfl.data.site_folder import is_site_folder, read_site_folder
from pacpfl.data.tables.columns import Evidence, decide_task, kind_for_learning, sort_labels
from pacpfl.data.tables.files import open_tables
from pacpfl.data.tables.guess import guess
from pacpfl.data.tables.read import Words, load_own, scan_tables
from pacpfl.errors import InputError
from pacpfl.settings import Settings, key
from pacpfl.sites.terms import read_section
from pacpfl.sites.wire import Refused
from pacpfl.types import Federation


@dataclass(frozen=True)
class Columns(Settings):
    """The columns of a site's tables that runs may use; what is not named is not read."""

    targets: tuple[str, ...] = key((), "may be predicted; the name leaves")
    columns: tuple[str, ...] = key((), "may be learned from; the names leave")
    client: str = key("", "names the client; its words stay here")
    split_by: str = key("", "may order or split the rows; its cells stay here")


class Sharing(NamedTuple):
    columns: Columns = Columns()
    words: Words = ()  # those of columns of words, and the labels of a target

    def settings(self, asked: TableSettings, source: Path) -> TableSettings:
        """Return how the site's tables are read: as a run asks, within what is allowed."""
        own = self.columns
        learned = asked.columns or tuple(
            name for name in own.columns if name not in {asked.target, *asked.ignore}
        )
        for name, allowed, what in (
            (asked.target, own.targets, "targets"),
            *((name, own.columns, "columns") for name in learned),
            (asked.client or own.client, (own.client,), "client"),
            (asked.split_by or own.split_by, (own.split_by, *own.columns), "split_by"),
        ):
            if name not in allowed:
                raise Refused(
                    f"the run asks for column {name!r}, which is not in {what} of [tables] in site.toml; "
                    "pacpfl site allow --data PATH drafts that section",
                    "tables",
                )
        if asked.new or asked.new_by:
            raise Refused("the run names new clients, and a site's clients all exist", "tables")
        return replace(asked, source=str(source), columns=learned, client=own.client)


def read_sharing(table: dict[str, Any], origin: str) -> Sharing:
    """Read the sections [tables] and [categories] of a site's file."""
    columns = Columns(**read_section(Columns, table.get("tables", {}), "tables", origin))
    categories = table.get("categories", {})
    if not isinstance(categories, dict):
        raise InputError(
            f"{origin}: categories is a section; write [categories] above its columns."
        )
    for name, words in categories.items():
        whole = isinstance(words, list) and all(isinstance(word, str) for word in words)
        if not whole or len(set(words)) < max(1, len(words)):
            raise InputError(
                f'{origin}: [categories]: {name} must be a list of different words, such as ["a", "b"].'
            )
    return Sharing(columns, tuple((name, tuple(words)) for name, words in categories.items()))


def site_federation(config: Config, data: Path, sharing: Sharing) -> Federation:
    """Read the site's own clients from its own files, in the units of its own scalers."""
    if data.is_dir() and is_site_folder(data):
        return standardize(read_site_folder(data), config.data.standardize)
    if config.data.name == "tables":
        tables = sharing.settings(config.tables, data)
        own = load_own(tables, config.seed, sharing.words)
        return standardize(own.federation, config.data.standardize)
    if not data.exists():
        raise InputError(f"There are no data at {data}; correct the path in site.toml.")
    raise InputError(
        f"{data} holds neither .npz files nor a client store, and the run does not say how to read "
        'tables; put such files there, or train with data.name = "tables".'
    )


def draft(data: Path, target: str | None = None, client: str | None = None) -> str:
    """Draft [tables] and [categories] of site.toml from a site's tables.

    Words of columns stand in comments: they would leave the site, so a person has to take them in.
    """
    if data.is_dir() and is_site_folder(data):
        raise InputError(
            f"{data} holds arrays, whose columns have no names; there is nothing to allow."
        )
    found = guess(data, target, client).settings
    scanned = scan_tables(open_tables(data), found, (*found.columns, found.target)).evidence
    return "\n".join([*_lines(found, scanned), ""])


def _lines(found: TableSettings, scanned: dict[str, Evidence]) -> Iterator[str]:
    kinds = {name: kind_for_learning(scanned[name]) for name in found.columns}
    yield "[tables]  # what runs may read of the tables; a column that is not named here is not read"
    yield f"targets = {_toml([found.target])}  # to predict; the name leaves, the values do not"
    yield "columns = [  # to learn from; these names leave, and what is in comments does not"
    for name, kind in kinds.items():
        words = f"{len(scanned[name].words)} different words; take it in if they may leave, below as well"
        note = words if kind == "category" else f"{kind}s"
        yield f"    {'# ' * (kind == 'category')}{_toml(name)},  # {note}"
    yield "]"
    yield f"client = {_toml(found.client)}  # names the clients; the words stay, their number leaves"
    yield f"split_by = {_toml(found.split_by)}  # orders or splits rows; its cells stay here"
    yield ""
    yield "[categories]  # the words that a column may have, alike at all sites; others count as none"
    target = scanned[found.target]
    if decide_task(target, found.task) == "classes":
        labels = target.words | {f"{value:g}" for value in target.levels}
        yield f"{_line(found.target, labels)}  # labels stay here; their number and order are agreed on"
    for name in (name for name, kind in kinds.items() if kind == "category"):
        yield f"# {_line(name, scanned[name].words)}  # these words would leave; then take in the column"


def _line(name: str, words: Collection[str]) -> str:
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
    return f"{key} = {_toml(list(sort_labels(sorted(words))))}"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
