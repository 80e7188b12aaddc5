"""The process at a site that computes updates; `pacpfl site start` says where its folder is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pacpfl import config as configuration
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.sites import wire
from pacpfl.sites.limits import FILE, note_refusal, read_site_file
from pacpfl.sites.recipe import Recipe, recipe_of
from pacpfl.sites.secure_site import read_passport
from pacpfl.sites.sharing import site_federation
from pacpfl.sites.site import Site
from pacpfl.types import Federation

FOLDER = "PACPFL_SITE"  # environment: the site's own folder


def make_site(name: str, folder: Path) -> Site:
    """Return the site with its data and limits, as its own file says."""
    file = read_site_file(folder / FILE)

    def open_run(text: str, method: str) -> tuple[Recipe, Callable[[], Federation]]:
        config = configuration.load(text, "the run's configuration")
        runtime.configure(config.run.precision)
        return recipe_of(config, method), lambda: site_federation(config, file.data, file.sharing)

    return Site(name, folder, file.limits, open_run, read_passport(folder.parent))


def main() -> None:
    """Answer messages until the segment ends; a site that cannot be set up says so to whoever asks."""
    from nvflare import client as flare

    flare.init()
    name, folder = flare.get_site_name(), os.environ.get(FOLDER)
    try:
        if not folder:
            raise InputError(f"{FOLDER} is not set at this site; start it with pacpfl site start.")
        answer = make_site(name, Path(folder)).answer
    except InputError as error:
        refusal = wire.empty(), wire.to_text({"refused": "kit", "site": name})
        answer = lambda params, text: refusal  # noqa: E731
        note_refusal(Path(folder or "."), str(error), {})
    while flare.is_running() and (message := flare.receive()) is not None:
        params, text = answer(message.params, (message.meta or {}).get(wire.TEXT))
        flare.send(flare.FLModel(params=params, meta={wire.TEXT: text}))


if __name__ == "__main__":
    main()
