"""A segment as a workflow of FLARE: its messages are FLARE's tasks, its names those of certificates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from pacpfl import config as configuration
from pacpfl.engine import runtime
from pacpfl.sites import wire
from pacpfl.sites.recipe import recipe_of
from pacpfl.sites.segment import AtSites
from pacpfl.sites.terms import CONFIG, TERMS, Reply, Terms

TASK_CHECK_SECONDS = 0.01


class SitesController(ModelController):  # type: ignore[misc]
    """The server's workflow, and an `Exchange`: FLARE builds it by name when a segment's job starts."""

    def __init__(self, folder: str, segment: int) -> None:
        # Errors of single sites are no reason to stop: `Inquiry` sees who is missing.
        super().__init__(persistor_id="", ignore_result_error=True)
        self._folder, self._number = Path(folder), int(segment)

    def run(self) -> None:
        # FLARE 2.9.0 keeps the period that it is given in another attribute than it reads.
        self.communicator._task_check_period = TASK_CHECK_SECONDS
        wanted = json.loads((self._folder / TERMS).read_text(encoding="utf-8"))
        method = wanted.pop("method")
        config = (self._folder / CONFIG).read_text(encoding="utf-8")
        settings = configuration.load(config, "the run's configuration")
        runtime.configure(settings.run.precision)
        # The project's certificate, by which the server knows the sites, lies in its kit.
        kit = Path(self.engine.get_workspace().get_startup_kit_dir())
        authority = (kit / "rootCA.pem").read_text(encoding="utf-8")
        terms = Terms(**{**wanted, "segment": self._number})
        recipe = recipe_of(settings, method)
        AtSites(self, recipe, config, terms, self._folder, authority).serve()

    def sites(self) -> list[str]:
        return [client.name for client in self.engine.get_clients()]

    def ask(
        self, sites: list[str], params: dict[str, np.ndarray], text: str, deadline: float
    ) -> list[Reply]:
        if not sites:
            return []
        results = self.send_model_and_wait(
            data=FLModel(params=params, meta={wire.TEXT: text}),
            targets=sites,
            min_responses=len(sites),
            timeout=math.ceil(deadline),
        )
        return [
            Reply(str(one.meta.get("client_name")), one.params, one.meta.get(wire.TEXT))
            for one in results
        ]

    def stopped(self) -> bool:
        return bool(self.abort_signal.triggered)

    def note(self, text: str) -> None:
        self.warning(text)
