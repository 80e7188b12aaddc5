"""Clients dealt to several devices give what one device gives. A process has one number of devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from patience import patience

SCRIPT = """
import json, logging, sys
import jax
sys.path.insert(0, sys.argv[1])
jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
import numpy as np, optax
from toys import Toy, make_store
from pacpfl.data.store import from_samples
from pacpfl.engine import compiled as engine, rounds
from pacpfl.engine.simulate import train
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Samples

rng = np.random.default_rng(0)
sizes = [5, 30, 12, 21, 8, 17, 3]
store = from_samples([Samples(rng.normal(size=(m, 2)), rng.normal(size=m)) for m in sizes])
method = PACPFL(GPPrior(2, GPSettings(mean_widths=(4,), kernel_widths=(4,))), len(sizes), optax.adam(1e-2),
                TrainSettings(particles=3, tau=0.1, batch=6))
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
average, averaged = engine.average, []
engine.average = lambda *arguments: averaged.append(1) or average(*arguments)
for setting in sys.argv[3:]:
    working_set, _, how = setting.partition("+")
    rounds.WORKING_SET["cpu"] = int(working_set)
    PACPFL.together = how == ""  # else every client's update is computed
    engine.LARGE_UPDATES = 0 if how == "sums" else 2**40
    engine._compiled.cache_clear()  # made before what is changed here
    compiled.clear()
    averaged.clear()
    out = {}
    for c in (7, 3):
        done = train(method, store, rounds=12, clients_per_round=c, seed=3, matrices_per_client=3)
        out[str(c)] = np.asarray(done.state.particles).tolist()
    print(json.dumps(
        {"particles": out, "compilations": len(compiled), "averaged": bool(averaged)}
    ))
jax.config.update("jax_enable_x64", True)
toys = [train(Toy(), make_store((3, 5, 2, 4, 5)), rounds=23, clients_per_round=c, dtype=np.float64)
        for c in (5, 2)]
print(json.dumps([np.asarray(leaf).tolist() for toy in toys for leaf in jax.tree.leaves(toy[:3])]))
"""
WHOLE, IN_BLOCKS = 2**30, 2**13


def run(devices: int, *working_sets: int | str) -> tuple[list[dict], list]:
    """What each setting gives, and all numbers of clients that keep something between rounds."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (here, devices, *working_sets))],
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # programs that run for a moment
        capture_output=True,
        text=True,
        timeout=patience(240),
        check=True,
    )
    *settings, toys = map(json.loads, done.stdout.splitlines())
    return settings, toys


def test_devices_and_blocks_change_nothing_but_rounding() -> None:
    """Also where each device computes its clients' mean update at once, and where devices exchange
    sums of updates, as they do for networks. Three devices have 7, 3, 5 and 2 clients."""
    alone = [f"{WHOLE}+each", f"{IN_BLOCKS}+each", WHOLE, IN_BLOCKS]
    dealt = [f"{WHOLE}+each", f"{IN_BLOCKS}+each", f"{WHOLE}+sums", WHOLE, IN_BLOCKS]
    (expected_run, *one), expected_toys = run(1, *alone)
    three, toys = run(3, *dealt)
    for values, expected in zip(toys, expected_toys, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-9)
    cases = [(1, *case) for case in zip(alone[1:], one, strict=True)]
    for devices, setting, other in [*cases, *((3, *c) for c in zip(dealt, three, strict=True))]:
        assert other["averaged"] == (devices > 1 and "each" not in str(setting))
        for clients, expected in expected_run["particles"].items():
            np.testing.assert_allclose(
                other["particles"][clients], np.array(expected), rtol=2e-4, atol=2e-5
            )
        # Two trainings, and each compiled its rounds once, however many calls it made.
        assert other["compilations"] == expected_run["compilations"] == 2
