"""What the owner of tables says about them: the section [tables] of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

CYCLES = ("hour", "weekday", "day", "month")


@dataclass(frozen=True)
class TableSettings:
    """Which column is what, how rows are split, and what happens to what is missing."""

    source: str = ""  # file or folder
    client: str = ""  # column that names the client; empty: each file is one client
    target: str = ""
    task: str = "auto"  # auto, regression, classes
    columns: tuple[str, ...] = ()  # to learn from; empty: all that have no other use
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()  # categories, though they hold numbers
    dates: tuple[str, ...] = ()  # encoded in cycles
    cycles: tuple[str, ...] = ("hour", "weekday", "month")
    missing: str = "error"  # error, drop, impute
    unseen: str = "zeros"  # of categories: zeros, error
    split: str = "rows"  # rows, time, column
    split_by: str = ""  # column of the times, or of the words train, later, test
    held_out: float = 0.2  # share of each client's rows that only measure
    for_later: float = 0.0  # share that is kept until personalisation
    most: int = 0  # training rows of a client at most; 0: all
    small: str = "error"  # clients with too few rows: error, leave
    new: tuple[str, ...] = ()  # clients that join after the training
    new_share: float = 0.0  # share of the clients that join after it
    new_by: str = ""  # column that says so of each client
