"""Tables of the terminal: narrow, without frames, and numbers never broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text


def plain_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]] = ()
) -> Table:
    """Return a table, its columns of words to the left, and those of numbers, unbroken, to the right."""
    table = Table(
        *(Column(name, overflow="fold") for name in left),
        *(Column(Text(name), justify="right", no_wrap=True) for name in right),
        title=Text(title, style="table.title"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    for row in rows:
        table.add_row(*map(Text, row))
    return table
