"""At a site that can be slowed down: while its folder holds a file `slow`, a round takes a second more."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if "pacpfl.studies.site_trainer" in sys.orig_argv:
    from pacpfl.engines.flare.site import Site

    quick = Site._train

    def slow(self, params, about):
        if (Path(os.environ["PACPFL_SITE"]) / "slow").exists():
            time.sleep(1.0)
        return quick(self, params, about)

    Site._train = slow
