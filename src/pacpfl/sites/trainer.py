"""The loop of a site's process: a message comes in, the site's answer goes out."""

from __future__ import annotations

from collections.abc import Callable

from nvflare import client as flare

from pacpfl.errors import InputError
from pacpfl.sites import wire
from pacpfl.sites.controller import TEXT
from pacpfl.sites.site import Site


def run(make: Callable[[str], Site]) -> None:
    """Until the segment ends. A site that cannot be set up says so to whoever asks."""
    flare.init()
    name = flare.get_site_name()
    site, why = None, ""
    try:
        site = make(name)
    except InputError as error:
        why = str(error)
    while flare.is_running():
        message = flare.receive()
        if message is None:
            break
        if site is None:
            params, text = wire.empty(), wire.to_text({"refused": why, "site": name})
        else:
            params, text = site.answer(message.params, (message.meta or {}).get(TEXT))
        flare.send(flare.FLModel(params=params, meta={TEXT: text}))
