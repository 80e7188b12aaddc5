"""At a site that runs another major version of pacpfl than the server."""

from __future__ import annotations

import sys

if "pacpfl.sites.trainer" in sys.orig_argv:
    from pacpfl import version

    version.__version__ = "99.0.0"
