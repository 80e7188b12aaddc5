"""The server's workflow: FLARE builds it by name when a segment's job starts."""

from __future__ import annotations

from pacpfl import config as configuration
from pacpfl.engines import runtime
from pacpfl.engines.flare.controller import SegmentController
from pacpfl.engines.flare.opened import Opened
from pacpfl.studies.sites import opened


class SitesController(SegmentController):
    def open(self, config: str, method: str) -> Opened:
        settings = configuration.load(config, "the run's configuration")
        runtime.configure(settings.run.precision)
        return opened(settings, method)
