"""The process at a site that computes updates; `pacpfl site start` says where its folder is."""

from __future__ import annotations

import os
from pathlib import Path

from pacpfl import config as configuration
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.sites.limits import FILE, read_site_file
from pacpfl.sites.opened import Opened
from pacpfl.sites.opening_run import opened, site_federation
from pacpfl.sites.secure_site import read_passport
from pacpfl.sites.site import Site
from pacpfl.sites.trainer import run
from pacpfl.types import Federation

FOLDER = "PACPFL_SITE"  # environment: the site's own folder


def make_site(name: str, folder: Path) -> Site:
    """The site with its data and limits, as its own file says."""
    file = read_site_file(folder / FILE)

    def open_run(text: str, method: str) -> tuple[Opened, Federation]:
        config = configuration.load(text, "the run's configuration")
        runtime.configure(config.run.precision)
        return opened(config, method), site_federation(config, file.data)

    return Site(name, folder, file.limits, open_run, read_passport(folder.parent))


def main() -> None:
    def make(name: str) -> Site:
        folder = os.environ.get(FOLDER)
        if not folder:
            raise InputError(f"{FOLDER} is not set at this site; start it with pacpfl site start.")
        return make_site(name, Path(folder))

    run(make)


if __name__ == "__main__":
    main()
