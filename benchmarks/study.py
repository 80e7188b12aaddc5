"""What `make bench` measures, and the tables that come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.floor import Ceiling, floor_seconds, matrix_bytes, operations, traffic
from benchmarks.harness import Table, interleave
from benchmarks.measure import in_child
from benchmarks.problem import TABLE, Problem, Sizes, make_problem
from benchmarks.results import Sheet
from pacpfl.data.store import write_store
from pacpfl.errors import InputError
from pacpfl.types import Samples

THREADS = 2  # of PyTorch
REFERENCE = "GPyTorch as PACOH"
ANALYTIC, THREADED = "PyTorch analytic", "PyTorch threaded"
OURS, SINGLE = "pacpfl", "pacpfl, one round a call"
CALL_SECONDS = 0.4  # training groups rounds into calls of about this length
MAXIMUM_ROUNDS = 64
USUAL_RATE = 3e10  # operations per second, only to guess how many rounds make such a call
MEBIBYTE = 2**20

# Says what is being measured, and how many of `count_steps` are done since the last time.
Report = Callable[[str, float], None]

# (size, other implementation, how many times faster we want to be)
GOALS = (
    (TABLE[0], REFERENCE, 8.0),
    (TABLE[0], ANALYTIC, 1.5),
    (TABLE[3], REFERENCE, 3.5),
    (TABLE[4], REFERENCE, 5.0),
    (TABLE[2], REFERENCE, 60.0),
)


@dataclass(frozen=True)
class Plan:
    """Which sizes, and how long to stay with each."""

    table: tuple[Sizes, ...] = TABLE
    compared_seconds: float = 60.0  # for one size of the table, at least seven turns
    compiled: tuple[int, ...] = (150, 610)  # m
    base: Sizes = TABLE[0]
    samples: tuple[int, ...] = (150, 300, 610, 1200, 2400)  # m
    samples_clients: int = 6  # c beside m: 24 clients with 2,400 samples would take minutes
    particles: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # k
    clients: tuple[int, ...] = (1, 6, 24, 96)  # c
    populations: tuple[int, ...] = (100, 1_000, 10_000, 100_000)  # n
    per_round: int = 10
    stream_rounds: int = 100
    personal_samples: int = 150
    personal_rows: int = 10_000
    seconds: float = 2.0  # for one row of the other tables


QUICK = Plan(
    table=(TABLE[1], TABLE[2]),
    compared_seconds=5.0,
    compiled=(150,),
    base=TABLE[1],
    samples=(75,),
    particles=(1,),
    clients=(1,),
    populations=(100, 1_000),
    stream_rounds=20,
    seconds=0.5,
)


def count_steps(plan: Plan) -> int:
    rows = (plan.table, plan.samples, plan.particles, plan.clients, plan.populations)
    # Compilation is measured twice; then the ceiling, the data on disk and the new client.
    return sum(map(len, rows)) + 2 * len(plan.compiled) + 3


def rounds_per_call(sizes: Sizes) -> int:
    """About as many as training would put into one call, which are two at least."""
    return int(np.clip(CALL_SECONDS * USUAL_RATE / operations(sizes), 2, MAXIMUM_ROUNDS))


def name_of(sizes: Sizes) -> str:
    feature = "feature" if sizes.features == 1 else "features"
    return f"k {sizes.particles}, c {sizes.clients}, m {sizes.samples}, {sizes.features} {feature}"


def make_candidates(
    problem: Problem, peers: bool
) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """Everything that is timed for one problem, and how many rounds a call of it does."""
    import jax

    from benchmarks import pacpfl_round

    candidates: dict[str, Callable[[], Any]] = {}
    if peers:
        if find_spec("torch") is None or find_spec("gpytorch") is None:
            raise InputError(
                "The peers need PyTorch and GPyTorch: install the extra `bench`, or give --ours."
            )
        import torch

        from benchmarks import gpytorch_round, torch_round

        start = torch.as_tensor(problem.particles, dtype=torch.float32)
        steps = {
            REFERENCE: gpytorch_round.make_round(problem, "float32", THREADS, "as_pacoh"),
            "GPyTorch tuned": gpytorch_round.make_round(problem, "float32", THREADS, "tuned"),
            ANALYTIC: torch_round.make_round(problem, "float32", THREADS, "analytic"),
            THREADED: torch_round.make_round(problem, "float32", THREADS, "threaded"),
            "PyTorch autodiff": torch_round.make_round(problem, "float32", THREADS, "autodiff"),
        }
        for name, step in steps.items():
            candidates[name] = lambda step=step: step(start)  # type: ignore[misc]
    rounds = rounds_per_call(problem.sizes)
    particles = jax.numpy.asarray(problem.particles, jax.numpy.float32)
    for name, count in ((OURS, rounds), (SINGLE, 1)):
        ours = pacpfl_round.make_round(problem, "float32", count)
        candidates[name] = lambda step=ours: step(particles)  # type: ignore[misc]
    return candidates, {OURS: rounds}


def compare(plan: Plan, peers: bool, report: Report) -> dict[Sizes, Table]:
    """All candidates take turns on each size."""
    tables = {}
    for sizes in plan.table:
        title = name_of(sizes)
        report(f"{title}: warming up", 0.0)
        candidates, rounds = make_candidates(make_problem(sizes), peers)
        for candidate in candidates.values():
            candidate()
        start = time.perf_counter()
        for candidate in candidates.values():
            candidate()
        turn = 2 * (time.perf_counter() - start)  # a turn calls every candidate twice
        repeats = int(np.clip(plan.compared_seconds / turn, 7, 25))
        tables[sizes] = interleave(
            candidates,
            repeats,
            0,
            title=title,
            rounds=rounds,
            tick=lambda title=title, share=1 / repeats: report(title, share),  # type: ignore[misc]
        )
    return tables


def goals(tables: Mapping[Sizes, Table]) -> Sheet:
    """What was promised, for the sizes and implementations that were measured."""
    rows = []
    for sizes, other, wanted in GOALS:
        names = [row.name for row in tables[sizes].rows] if sizes in tables else []
        if other in names:
            measured = tables[sizes].row(other).median / tables[sizes].row(OURS).median
            met = "yes" if measured >= wanted else "no"
            rows.append((name_of(sizes), other, wanted, measured, met))
    columns = ("size", "times faster than", "goal", "measured", "met")
    empty = ("no size with a goal was measured", "", "", "", "")
    return Sheet("Goals", columns, tuple(rows) or (empty,))


def floors(tables: Mapping[Sizes, Table], ceiling: Ceiling) -> Sheet:
    """How far a round is from what the machine could do at best."""
    return Sheet(
        "Distance from the floor",
        (
            "size",
            "million operations",
            "main memory MiB",
            "kernel matrices MiB",
            "floor ms",
            "pacpfl ms",
            "times the floor",
        ),
        tuple(
            (
                name_of(sizes),
                operations(sizes) / 1e6,
                traffic(sizes) / MEBIBYTE,
                matrix_bytes(sizes) / MEBIBYTE,
                1e3 * floor_seconds(sizes, ceiling),
                1e3 * table.row(OURS).median,
                table.row(OURS).median / floor_seconds(sizes, ceiling),
            )
            for sizes, table in tables.items()
        ),
        "The floor is all arithmetic at the speed of a large float32 matrix product, measured "
        f"in this run as {ceiling.operations_per_second / 1e9:.0f} billion operations per "
        "second, or the traffic of data and particles at "
        f"{ceiling.bytes_per_second / 1e9:.0f} billion bytes per second, whichever is longer.",
    )


def measure_ceiling(scratch: Path, report: Report) -> Ceiling:
    report("speed of a matrix product", 0.0)
    figures = in_child("ceiling", scratch / "ceiling")
    report("speed of a matrix product", 1.0)
    return Ceiling(figures["operations"], figures["bytes"])


def compilation(plan: Plan, scratch: Path, report: Report) -> Sheet:
    """The first call in a fresh process: nothing compiled yet, and with the cache on disk."""
    rows = []
    for samples in plan.compiled:
        sizes = replace(plan.base, samples=samples)
        for state in ("empty", "warm"):
            report(f"first call, m {samples}, {state} cache", 0.0)
            cache = scratch / f"compiled-{samples}"
            figures = _round(sizes, cache, rounds=1, seconds=0.0)
            compiling = figures["first_call"] - figures["round"]
            rows.append((name_of(sizes), state, figures["first_call"], compiling))
            report(f"first call, m {samples}", 1.0)
    return Sheet(
        "First call",
        ("size", "cache on disk", "first call s", "of which not the round itself s"),
        tuple(rows),
        "Tracing, compilation and one round, in a fresh process.",
    )


def scaling(plan: Plan, scratch: Path, report: Report) -> list[Sheet]:
    """Round time and peak memory against m, k and c."""
    small = replace(plan.base, clients=plan.samples_clients)
    families = (
        ("m", "samples", [replace(small, samples=value) for value in plan.samples]),
        ("k", "particles", [replace(plan.base, particles=value) for value in plan.particles]),
        ("c", "clients", [replace(plan.base, clients=value) for value in plan.clients]),
    )
    sheets = []
    for symbol, word, family in families:
        rows = []
        for sizes in family:
            report(f"scaling, {name_of(sizes)}", 0.0)
            figures = _round(
                sizes, scratch / "scaling", rounds=rounds_per_call(sizes), seconds=plan.seconds
            )
            rows.append((name_of(sizes), getattr(sizes, word), *_time_and_memory(figures)))
            report(f"scaling, {name_of(sizes)}", 1.0)
        columns = ("size", symbol, "round ms", "peak MiB", "of which idle MiB")
        note = "One process per row; the peak includes compilation, idle is JAX and pacpfl alone."
        sheets.append(Sheet(f"Scaling with {symbol}, the {word}", columns, tuple(rows), note))
    return sheets


def streaming(plan: Plan, scratch: Path, report: Report) -> Sheet:
    """Round time and peak memory against n, with data on disk."""
    sizes = plan.base
    folder = scratch / "store"
    report(f"writing {max(plan.populations):,} clients to disk", 0.0)
    _write_clients(folder, max(plan.populations), sizes)
    report("data are on disk", 1.0)
    rows = []
    for population in plan.populations:
        report(f"scaling, n {population:,}", 0.0)
        figures = in_child(
            "stream",
            scratch / f"stream-{population}",
            folder=str(folder),
            clients=population,
            clients_per_round=plan.per_round,
            particles=sizes.particles,
            rounds=plan.stream_rounds,
        )
        size = population * sizes.samples * (sizes.features + 1) * 4 / MEBIBYTE
        rows.append((population, size, *_time_and_memory(figures)))
        report(f"scaling, n {population:,}", 1.0)
    return Sheet(
        "Scaling with n, all clients there are",
        ("n", "data on disk MiB", "round ms", "peak MiB", "of which idle MiB"),
        tuple(rows),
        f"{plan.per_round} clients per round, k {sizes.particles}, m {sizes.samples}, "
        f"{sizes.features} features; the round includes choosing the clients and reading their "
        "memory-mapped samples.",
    )


def personal(plan: Plan, scratch: Path, report: Report) -> Sheet:
    """A new client: its own model, and what it predicts."""
    report("a new client", 0.0)
    figures = in_child(
        "personal",
        scratch / "personal",
        samples=plan.personal_samples,
        rows=plan.personal_rows,
        particles=plan.base.particles,
        seconds=plan.seconds,
    )
    report("a new client", 1.0)
    tasks = (
        (f"personalise with {plan.personal_samples:,} samples", "personalise"),
        (f"predict {plan.personal_rows:,} rows: mean, std, two quantiles", "predict"),
    )
    return Sheet(
        "A new client",
        ("task", "ms", "first call s"),
        tuple((text, 1e3 * figures[name], figures[f"{name}_first_call"]) for text, name in tasks),
        f"k {plan.base.particles}; the first call includes compilation.",
    )


def _round(sizes: Sizes, cache: Path, *, rounds: int, seconds: float) -> dict[str, float]:
    return in_child(
        "round",
        cache,
        particles=sizes.particles,
        clients=sizes.clients,
        samples=sizes.samples,
        features=sizes.features,
        rounds=rounds,
        seconds=seconds,
    )


def _time_and_memory(figures: Mapping[str, float]) -> Sequence[float]:
    return (1e3 * figures["round"], figures["peak"] / MEBIBYTE, figures["idle"] / MEBIBYTE)


def _write_clients(folder: Path, count: int, sizes: Sizes) -> None:
    """Clients with different targets; drawing new inputs for each would only take time."""
    random = np.random.default_rng(0)
    x = random.normal(size=(sizes.samples, sizes.features)).astype(np.float32)
    y = random.normal(size=(sizes.samples, 2)).astype(np.float32)
    turns = np.linspace(0.0, np.pi, count)
    write_store(
        folder,
        (Samples(x, y @ np.array([np.cos(turn), np.sin(turn)])) for turn in turns),
        sizes.features,
    )
