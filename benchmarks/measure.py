"""Measurements that need a process of their own: first calls, peak memory, the machine's ceiling.

`in_child(name, ...)` runs one of `MEASUREMENTS` in a fresh process and returns its figures.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CALLS = 20  # at most so many calls are timed


def in_child(name: str, cache: Path, **arguments: Any) -> dict[str, float]:
    """Figures of one measurement; compiled programs are looked for and kept in `cache`."""
    environment = {**os.environ, "PACPFL_CACHE_DIR": str(cache)}
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", name, json.dumps(arguments)],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def round_figures(
    *,
    particles: int,
    clients: int,
    samples: int,
    features: int = 15,
    rounds: int = 1,
    seconds: float = 2.0,
) -> dict[str, float]:
    """First call, time per round with `rounds` rounds a call, and peak memory."""
    idle = _started()
    from benchmarks.pacpfl_round import make_round
    from benchmarks.problem import Sizes, make_problem

    problem = make_problem(Sizes(particles, clients, samples, features))
    step = make_round(problem, "float32", rounds)
    start = time.perf_counter()
    step(problem.particles)
    first = time.perf_counter() - start
    each = _median_seconds(lambda: step(problem.particles), seconds)
    return {"first_call": first, "round": each / rounds, "idle": idle, "peak": peak_memory()}


def stream_figures(
    *, folder: str, clients: int, clients_per_round: int, particles: int, rounds: int
) -> dict[str, float]:
    """Time per round of the engine, gathering included, with the first `clients` of a store."""
    idle = _started()
    from benchmarks.pacpfl_round import make_method
    from benchmarks.problem import Sizes, make_problem
    from pacpfl.data.store import open_store
    from pacpfl.engine.simulate import Progress, train

    store = open_store(Path(folder))
    store = replace(store, offsets=store.offsets[: clients + 1])
    small = make_problem(Sizes(particles, 1, 1, store.features))
    seen: list[Progress] = []
    train(
        replace(make_method(small), clients=clients),
        store,
        rounds=rounds,
        clients_per_round=clients_per_round,
        matrices_per_client=particles,
        progress=seen.append,
    )
    # The median over calls: the first is nearly all compilation.
    each = statistics.median(
        (after.seconds - before.seconds) / (after.round - before.round)
        for before, after in pairwise(seen)
    )
    return {"first_call": seen[0].seconds, "round": each, "idle": idle, "peak": peak_memory()}


def personal_figures(
    *, samples: int, rows: int, particles: int, seconds: float = 2.0
) -> dict[str, float]:
    """A new client's model from its samples, and what it predicts: mean, std and two quantiles."""
    _started()
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.pacpfl_round import make_method
    from benchmarks.problem import Sizes, make_problem
    from pacpfl import predictive
    from pacpfl.types import Data

    problem = make_problem(Sizes(particles, 1, samples))
    method = make_method(problem)
    x, y = (jnp.asarray(values[0], jnp.float32) for values in (problem.x, problem.y))
    data = Data(x, y, jnp.ones(samples, bool))
    key = jax.random.key(0)
    state = method.init(key, data)._replace(particles=jnp.asarray(problem.particles, jnp.float32))
    inputs = np.random.default_rng(1).normal(size=(rows, x.shape[1])).astype(np.float32)
    levels = jnp.asarray([0.05, 0.95], jnp.float32)

    @jax.jit
    def predict(model: Any, inputs: Any) -> Any:
        mixture = model(inputs)
        return (
            predictive.mean(mixture),
            predictive.std(mixture),
            predictive.quantiles(mixture, levels),
        )

    personalize = jax.jit(method.personalize)
    figures = {}

    def measure(name: str, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(act())
        figures[f"{name}_first_call"] = time.perf_counter() - start
        figures[name] = _median_seconds(lambda: jax.block_until_ready(act()), seconds)
        return result

    model = measure("personalise", lambda: personalize(state, (), data, key))
    results = measure("predict", lambda: predict(model, inputs))
    if not all(np.isfinite(part).all() for part in results):
        raise ArithmeticError("the measured prediction is not finite")
    return figures


def ceiling_figures(*, size: int = 1536, seconds: float = 1.0) -> dict[str, float]:
    """The best float32 matrix product of NumPy, JAX and PyTorch here, and the best copy."""
    import numpy as np

    _started()
    import jax

    a = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    out = np.empty_like(a)
    on_device, product = jax.numpy.asarray(a), jax.jit(jax.numpy.matmul)
    ways: list[Callable[[], Any]] = [
        lambda: np.matmul(a, a, out=out),
        lambda: product(on_device, on_device).block_until_ready(),
    ]
    if find_spec("torch") is not None:
        import torch

        tensor = torch.from_numpy(a)
        ways.append(lambda: tensor @ tensor)
    best = min(_least_seconds(way, seconds) for way in ways)
    source = np.ones(2**25, np.float32)  # 128 MiB: more than any cache
    target = np.empty_like(source)
    copied = _least_seconds(lambda: np.copyto(target, source), seconds)
    return {"operations": 2 * size**3 / best, "bytes": 2 * source.nbytes / copied}


def peak_memory() -> float:
    """Bytes of the largest resident set of this process so far.

    Where Linux tells it, not from `getrusage`: there a child starts with its parent's peak.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        scale = 1 if sys.platform == "darwin" else 1024
        return float(scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024.0 * int(line.split()[1])


@cache
def _started() -> float:
    """Start JAX as the command line does, once; bytes that this alone takes."""
    from pacpfl.engine import runtime

    runtime.configure()
    import jax

    jax.block_until_ready(jax.numpy.zeros(1) + 1)
    import pacpfl.engine.simulate  # noqa: F401

    return peak_memory()


def _median_seconds(act: Callable[[], Any], seconds: float) -> float:
    return statistics.median(_seconds(act, seconds))


def _least_seconds(act: Callable[[], Any], seconds: float) -> float:
    act()
    return min(_seconds(act, seconds))


def _seconds(act: Callable[[], Any], seconds: float) -> list[float]:
    """Times of calls, until their sum reaches `seconds` or their number `CALLS`."""
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < CALLS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return times


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "round": round_figures,
    "stream": stream_figures,
    "personal": personal_figures,
    "ceiling": ceiling_figures,
}

if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]](**json.loads(sys.argv[2]))))
