"""From a configuration to the federation whose data it names.

Each data set is imported where it is asked for: who trains on one does not load the others.
"""

from __future__ import annotations

from collections.abc import Callable
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
    federation = _federations[config.data.name](config)
    check_federation(federation)
    return standardize(federation, config.data.standardize)


def _polynomial(config: Config) -> Federation:
    from pacpfl.data.polynomial import polynomial

    data = config.data
    return polynomial(
        data.clients,
        data.new_clients,
        data.samples,
        data.test_samples,
        data.noise,
        data.opposite,
        config.seed,
    )


def _pv(config: Config) -> Federation:
    from pacpfl.data.pv import pv

    data, houses = config.data, config.pv
    return pv(
        houses.panels,  # type: ignore[arg-type]
        data.clients,
        data.new_clients,
        data.samples,
        houses.window,  # type: ignore[arg-type]
        load_weather(houses),
        config.seed,
        skip=houses.skip,
    )


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


def _own(config: Config) -> Federation:
    from pacpfl.data.tables.read import load_own

    return load_own(config.tables, config.seed).federation


def _digits(config: Config) -> Federation:
    from pacpfl.data.digits import digits

    data = config.data
    return digits(
        data.clients,
        data.new_clients,
        data.samples or None,
        config.images.test_fraction,
        seed=config.seed,
    )


def _femnist(config: Config) -> Federation:
    from pacpfl.data.images import by_writer

    data = config.data
    return by_writer(
        _images(config, 10),
        data.clients,
        data.new_clients,
        data.samples or None,
        config.images.test_fraction,
        seed=config.seed,
    )


def _emnist(config: Config) -> Federation:
    from pacpfl.data.images import dirichlet

    data = config.data
    return dirichlet(
        _images(config, None),
        data.clients,
        data.new_clients,
        config.images.alpha,
        config.images.test_fraction,
        seed=config.seed,
    )


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


_federations: dict[str, Callable[[Config], Federation]] = {
    "polynomial": _polynomial,
    "pv": _pv,
    "digits": _digits,
    "femnist": _femnist,
    "emnist": _emnist,
    "tables": _own,
}
