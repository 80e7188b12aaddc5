"""The administrator's line to the server: who is there, submit, look, stop. One class around FLARE's."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import new_secure_session

from pacpfl.sites.terms import Unreachable

CONNECT_SECONDS = 10.0
ENDED = ("FINISHED", "FAILED", "ABORTED", "ABANDONED", "REJECTED")


class Console:
    """Opens when it is used, until `close`, without which the interpreter does not exit."""

    def __init__(self, kit: Path, admin: str) -> None:
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # what matters is raised as well
        self._kit, self._admin, self._session = kit, admin, None

    def server_started(self) -> str:
        return str(self._call("get_system_info").server_info.start_time)

    def connected(self) -> dict[str, float]:
        """Return sites by name, with the time at which the server last heard of them."""
        clients = self._call("get_system_info").client_info
        return {one.name: float(one.last_connect_time) for one in clients}

    def submit(self, job: Path) -> str:
        return str(self._call("submit_job", str(job)))

    def has_ended(self, job: str) -> bool:
        return str(self._call("get_job_status", job)).startswith(ENDED)

    def abort(self, job: str) -> None:
        with contextlib.suppress(Unreachable):
            self._call("abort_job", job)

    def close(self) -> None:
        session, self._session = self._session, None
        with contextlib.suppress(Exception), _quiet():
            if session is not None:
                session.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            with _quiet():
                if self._session is None:
                    kit, seconds = str(self._kit), CONNECT_SECONDS
                    self._session = new_secure_session(self._admin, kit, timeout=seconds)
                return getattr(self._session, name)(*arguments)
        except Exception as error:  # FLARE raises many kinds, all of which mean: not now
            self.close()
            raise Unreachable(f"{name}: {error}") from error


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Silence what FLARE's session prints of its own progress."""
    return contextlib.redirect_stdout(io.StringIO())
