"""The one thing that a server can have a site run: this trainer, as a process of its own.

FLARE's executor takes its command from the job, which whoever submits jobs may write. Of this one the
command is fixed here, and the site's list of allowed classes (kits.py) names this class alone.
"""

from __future__ import annotations

import sys

from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.client.config import ExchangeFormat

# A name only: the trainer is a process of its own, and imports JAX; the site's parent does not.
TRAINER = "pacpfl.sites.trainer"


class SiteExecutor(ClientAPIExecutor):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(
            execution_mode=ExecutionMode.EXTERNAL_PROCESS,
            command=[sys.executable, "-u", "-m", TRAINER],
            launch_once=True,  # JAX compiles once for the whole segment
            launch_timeout=300.0,
            stop_grace_period=2.0,
            heartbeat_interval=2.0,
            heartbeat_timeout=30.0,
            params_exchange_format=ExchangeFormat.NUMPY,
            server_expected_format=ExchangeFormat.NUMPY,
        )
