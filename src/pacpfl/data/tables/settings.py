"""What the owner of tables says about them: the section [tables] of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from pacpfl.settings import Settings, key

CYCLES = ("hour", "weekday", "day", "month")


@dataclass(frozen=True)
class TableSettings(Settings):
    """Your own tables, `data.name = "tables"` (docs/own-data.md); `pacpfl init` writes this section."""

    source: str = key("", "a folder with one file for each client, or one file")
    client: str = key("", "column that names the client; empty: each file is one")
    target: str = key("", "column that is to be predicted")
    task: str = key(
        "auto", "what the target is: numbers, or classes", choices=("auto", "regression", "classes")
    )
    columns: tuple[str, ...] = key((), "columns to learn from; empty: all others")
    ignore: tuple[str, ...] = key((), "columns to leave out")
    categorical: tuple[str, ...] = key((), "columns whose numbers are names of categories")
    dates: tuple[str, ...] = key((), "columns of dates, encoded as sines and cosines")
    cycles: tuple[str, ...] = key(
        ("hour", "weekday", "month"), "of these cycles: hour, weekday, day (of the year), month"
    )
    missing: str = key(
        "error",
        "missing cells: an error, drop the row, or impute the training median",
        choices=("error", "drop", "impute"),
    )
    unseen: str = key(
        "zeros",
        "a category no training row has: all zeros, or an error",
        choices=("zeros", "error"),
    )
    split: str = key(
        "rows",
        "which rows only measure: at random, the last ones in time, or as a column says",
        choices=("rows", "time", "column"),
    )
    split_by: str = key("", "column of the times, or of the words train, later, test")
    held_out: float = key(0.2, "share of each client's rows that only measure", above=0, most=0.9)
    for_later: float = key(0.0, "share that is kept until personalisation", least=0, most=0.9)
    most: int = key(0, "training rows of a client at most; 0: all", least=0)
    small: str = key(
        "error", "clients with too few rows: an error, or leave out", choices=("error", "leave")
    )
    new: tuple[str, ...] = key((), "clients that join after the training, by name")
    new_share: float = key(
        0.0, "share of the clients, drawn, that join after it", least=0, most=0.9
    )
    new_by: str = key("", "column that calls its client new or existing")
