"""From a configuration to the federation whose data it names."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pacpfl.config import Config
from pacpfl.data.prepare import check_federation, standardize
from pacpfl.data.settings import PVSettings
from pacpfl.errors import InputError
from pacpfl.types import Federation

if TYPE_CHECKING:
    from pacpfl.data.images import Images
    from pacpfl.data.weather import Weather


def build_federation(config: Config) -> Federation:
    federation = _load(config)
    check_federation(federation)
    return standardize(federation, config.data.standardize)


def raw_federation(config: Config) -> Federation:
    """Return the federation in its own units, whatever the configuration says of scaling."""
    return build_federation(replace(config, data=replace(config.data, standardize="none")))


def _load(config: Config) -> Federation:
    """Import the data set that is asked for, and no other, and divide it among clients."""
    data, images, seed = config.data, config.images, config.seed
    sizes = (data.clients, data.new_clients, data.samples)
    of_images = (data.clients, data.new_clients, data.samples or None, images.test_fraction)
    match data.name:
        case "tables":
            from pacpfl.data.tables.read import load_own

            return load_own(config.tables, seed).federation
        case "polynomial":
            from pacpfl.data.polynomial import polynomial

            return polynomial(*sizes, data.test_samples, data.noise, data.opposite, seed)
        case "pv":
            from pacpfl.data.pv import pv

            pv_, weather = config.pv, load_weather(config.pv)
            return pv(pv_.panels, *sizes, pv_.window, weather, seed, skip=pv_.skip)  # type: ignore[arg-type]
        case "digits":
            from pacpfl.data.digits import digits

            return digits(*of_images, seed=seed)
        case "femnist":
            from pacpfl.data.images import by_writer

            return by_writer(_images(config, 10), *of_images, seed=seed)
    from pacpfl.data.images import dirichlet

    clients, new, _, test_fraction = of_images
    return dirichlet(_images(config, None), clients, new, images.alpha, test_fraction, seed=seed)


@cache
def load_weather(houses: PVSettings) -> Weather:
    """Synthetic weather does not change with the seed of a run: the city has one past."""
    if houses.weather == "synthetic":
        from pacpfl.data.weather import synthetic_weather

        return synthetic_weather(houses.latitude, houses.longitude)
    from pacpfl.data.pvgis import fetch_pvgis, read_pvgis_csv

    if houses.weather == "pvgis":
        return fetch_pvgis(houses.latitude, houses.longitude)
    return read_pvgis_csv(Path(houses.weather))


def _images(config: Config, classes: int | None) -> Images:
    if not config.images.path:
        raise InputError(
            f"{config.data.name} needs images; name their file or folder with --data PATH."
        )
    return _load_images(config.images.path, classes)


@cache
def _load_images(path: str, classes: int | None) -> Images:
    from pacpfl.data.image_files import load_images

    return load_images(path, classes)
