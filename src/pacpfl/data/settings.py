"""Which data a run learns from: the sections [data], [pv] and [images] of a configuration."""

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
