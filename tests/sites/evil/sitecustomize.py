"""At a site that turned: its trainer answers some rounds with anything but updates."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if "pacpfl.sites.trainer" in sys.orig_argv:
    import numpy as np

    from pacpfl.sites.site import Site

    honest = Site.answer
    bait = Path(os.environ["PACPFL_SITE"]) / "unpickled"
    # Whoever unpickles this runs a command.
    pickled = f"cposix\nsystem\n(S'touch {bait}'\ntR.".encode()

    def evil(self, params, text):
        arrays, said = honest(self, params, text)
        number = json.loads(said).get("round")
        name = next(iter(arrays))
        if number == 2:
            arrays[name] = arrays[name][..., :-1].copy()
        elif number == 4:
            arrays[name] = np.full_like(arrays[name], np.nan)
        elif number == 6:
            arrays[name] = pickled
        elif number == 8:
            arrays[name] = np.zeros(2**27)
        return arrays, said

    Site.answer = evil
