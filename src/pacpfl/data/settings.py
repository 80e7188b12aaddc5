"""Which data a run learns from: the sections [data], [pv], [images] and [tables] of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pacpfl.settings import Settings, key

DATASETS = ("polynomial", "pv", "digits", "femnist", "emnist", "tables")
CLASSIFICATION = ("digits", "femnist", "emnist")


@dataclass(frozen=True)
class DataSettings(Settings):
    name: str = key("polynomial", "the data set", choices=DATASETS)
    clients: int = key(24, "existing clients, who train", least=1)
    new_clients: int = key(24, "new clients, who join after training", least=0)
    samples: int = key(10, "training samples of each client; 0: all there are (images)", least=0)
    test_samples: int = key(100, "test samples of each client (polynomial, digits)", least=2)
    noise: float = key(0.15, "standard deviation of the observation noise", least=0)
    opposite: bool = key(False, "the two kinds of clients have opposite means")
    standardize: str = key(
        "none",
        "scale features and target by training rows: none, those of each client, or of all (global)",
        choices=("none", "client", "global"),
    )

    def problems(self) -> Iterator[str]:
        if self.samples < 2 and self.name not in ("femnist", "emnist", "tables"):
            yield f"samples = {self.samples} is too few; give at least 2."
        if self.name in CLASSIFICATION and self.standardize != "none":
            yield f"the labels of {self.name} cannot be standardised; leave standardize out."


@dataclass(frozen=True)
class PVSettings(Settings):
    """The houses of `data.name = "pv"`."""

    panels: str = key(
        "EW", "EW: half of the houses face east, half west; S: all south", choices=("EW", "S")
    )
    window: str = key(
        "random",
        "training hours: the first ones of June and July, or a random choice",
        choices=("first", "random"),
    )
    skip: int = key(0, "hours of June and July before the first training hour", least=0)
    weather: str = key(
        "synthetic",
        "synthetic, pvgis (asks the service once, then its cache), or a CSV file of PVGIS",
    )
    latitude: float = key(46.52, "of synthetic and PVGIS weather", least=-66, most=66)
    longitude: float = key(6.63, "of synthetic and PVGIS weather", least=-180, most=180)


@dataclass(frozen=True)
class ImageSettings(Settings):
    """The images of `data.name = "femnist"` (a client is a writer) and `"emnist"` (label skew)."""

    path: str = key("", "file or folder of the images; pacpfl run femnist --data PATH sets it")
    alpha: float = key(0.4, "Dirichlet parameter of the label skew (emnist)", above=0)
    test_fraction: float = key(0.2, "share of each client's images kept for testing", above=0)


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
        ("hour", "weekday", "month"),
        "of these cycles: hour, weekday, day (of the year), month",
        choices=("hour", "weekday", "day", "month"),
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
    most: int = key(
        0, "training rows of a client at most, evenly spread over them; 0: all", least=0
    )
    small: str = key(
        "error", "clients with too few rows: an error, or leave out", choices=("error", "leave")
    )
    race: bool = key(
        True, "whether candidates race for the settings that nobody has changed (pacpfl fit)"
    )
    new: tuple[str, ...] = key((), "clients that join after the training, by name")
    new_share: float = key(
        0.0, "share of the clients, drawn, that join after it", least=0, most=0.9
    )
    new_by: str = key("", "column that calls its client new or existing")
