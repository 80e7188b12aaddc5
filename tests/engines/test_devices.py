"""Clients dealt to several devices give what one device gives. A process has one number of devices."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import json, logging, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import numpy as np, optax
from pacpfl.data.store import from_samples
from pacpfl.engines import rounds
from pacpfl.engines.simulate import train
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.priors.gp import GPPrior
from pacpfl.types import Samples

rounds.WORKING_SET["cpu"] = int(sys.argv[2])
rng = np.random.default_rng(0)
sizes = [5, 30, 12, 21, 8, 17, 3]
store = from_samples([Samples(rng.normal(size=(m, 2)), rng.normal(size=m)) for m in sizes])
method = PACPFL(GPPrior(2, mean_widths=(4,), kernel_widths=(4,)), len(sizes), optax.adam(1e-2),
                particles=3, tau=0.1, batch=6)
out = {}
jax.config.update("jax_log_compiles", True)
compiled = []
class Listen(logging.Handler):
    def emit(self, record):
        message = record.getMessage()
        if message.startswith("Finished XLA compilation of jit(call)"):
            compiled.append(message)
logger = logging.getLogger("jax._src.dispatch")
logger.addHandler(Listen())
logger.propagate = False
for c in (7, 3):
    done = train(method, store, rounds=12, clients_per_round=c, seed=3, matrices_per_client=3)
    out[str(c)] = np.asarray(done.state.particles).tolist()
print(json.dumps({"particles": out, "compilations": len(compiled)}))
"""


def run(devices: int, working_set: int) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(devices), str(working_set)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone() -> dict:
    return run(1, 2**30)


@pytest.mark.parametrize(("devices", "working_set"), [(1, 2**13), (2, 2**30), (3, 2**13)])
def test_devices_and_blocks_change_nothing_but_rounding(alone, devices, working_set):
    other = run(devices, working_set)
    for clients, expected in alone["particles"].items():
        np.testing.assert_allclose(
            other["particles"][clients], np.array(expected), rtol=2e-4, atol=2e-5
        )
    # Two trainings, and each compiled its rounds once, however many calls it made.
    assert other["compilations"] == alone["compilations"] == 2
