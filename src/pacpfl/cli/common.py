"""What the commands share: the console, shipped configurations, and tables of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

console = Console(stderr=True, highlight=False)


def shipped(name: str) -> Config:
    """A configuration that comes with the package."""
    from importlib import resources

    from pacpfl import config as configuration

    folder = resources.files("pacpfl.studies") / "configs"
    path = folder / f"{name}.toml"
    if not path.is_file():
        names = sorted(
            p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
        )
        raise InputError(
            f"There is no shipped configuration {name!r}; there are {', '.join(names)}."
        )
    return configuration.load(path.read_text(encoding="utf-8"), f"{name}.toml")
