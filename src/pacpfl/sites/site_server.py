"""The server's workflow: FLARE builds it by name when a segment's job starts."""

from __future__ import annotations

from pacpfl import config as configuration
from pacpfl.engine import runtime
from pacpfl.sites.controller import SegmentController
from pacpfl.sites.opened import Opened
from pacpfl.sites.opening_run import opened


class SitesController(SegmentController):
    def open(self, config: str, method: str) -> Opened:
        settings = configuration.load(config, "the run's configuration")
        runtime.configure(settings.run.precision)
        return opened(settings, method)
