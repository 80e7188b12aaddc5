"""At a site that turned: its trainer answers some rounds with anything but updates."""

from __future__ import annotations

import json
import sys

if "pacpfl.studies.site_trainer" in sys.orig_argv:
    import numpy as np

    from pacpfl.engines.flare.site import Site

    honest = Site.answer

    def evil(self, params, text):
        arrays, said = honest(self, params, text)
        number = json.loads(said).get("round")
        name = next(iter(arrays))
        if number == 2:
            arrays[name] = arrays[name][..., :-1].copy()
        elif number == 4:
            arrays[name] = np.full_like(arrays[name], np.nan)
        elif number == 6:
            arrays[name] = b"\x80\x05cposix\nsystem\n"
        elif number == 8:
            arrays[name] = np.zeros(2**27)
        return arrays, said

    Site.answer = evil
