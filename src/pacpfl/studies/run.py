"""One run: train, personalise, measure, and leave a folder behind (docs/run-folder.md)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from pacpfl import __version__, metrics, svgd
from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engines import runtime
from pacpfl.engines.checkpoint import write_bytes_atomically
from pacpfl.engines.evaluate import Evaluation, evaluate
from pacpfl.engines.simulate import Progress, Saving, Trained, train
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.studies.build import TITLES, build_federation, build_method, temperatures
from pacpfl.types import Client, Federation

COLLAPSED = 0.02  # predictions this close, in units of the (standardised) target, count as equal
METRICS = ("rsmse", "ce", "nll", *(f"{a}_{b}" for b in (50, 90, 95) for a in ("coverage", "width")))


class Interrupted(Exception):
    """The run was asked to stop; what it had reached is saved."""


@dataclass
class Watcher:
    """Who is told how it goes. The defaults say nothing."""

    stage: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class MethodResult:
    """What one method did: its entry in run.json, its curves, and its evaluations by group."""

    about: dict[str, Any]
    history: dict[str, np.ndarray]
    groups: dict[str, Evaluation]
    extra: dict[str, np.ndarray] = field(default_factory=dict)


def run(config: Config, out: Path, watcher: Watcher | None = None) -> dict[str, MethodResult]:
    """Run every method of the configuration and write the folder; goes on where it was stopped."""
    watcher = watcher or Watcher()
    federation = build_federation(config)
    store = from_clients(federation.existing)
    name = configuration.identity(config, samples=digest(store))
    prepare(out, config)
    started = datetime.now(UTC)
    results = {}
    for method in config.run.methods:
        saving = Saving(
            out / "checkpoint.safetensors",
            name,
            config.run.checkpoint_rounds,
            config.run.checkpoint_minutes,
        )
        results[method] = run_method(method, config, federation, store, watcher, saving)
    write_folder(out, config, federation, results, started)
    return results


FILES = (
    *("config.toml", "run.json", "checkpoint.safetensors", "metrics.json", "clients.csv"),
    *("arrays.safetensors", "certificates.json", "report.html"),
)


def clear(out: Path) -> None:
    """Forget the run in this folder; files that no run writes stay."""
    for name in FILES:
        (out / name).unlink(missing_ok=True)


def prepare(out: Path, config: Config) -> None:
    """Make the folder, unless it belongs to another run; what training depends on must agree."""
    text = configuration.dump(config)
    path = out / "config.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{out} cannot be created ({error.strerror}); choose another --out."
        ) from error
    if path.exists():
        before = configuration.load_file(path)
        if configuration.identity(before) != configuration.identity(config):
            raise InputError(
                f"{out} holds a run with another configuration; choose another folder with --out, or "
                "start over with --fresh."
            )
    write_bytes_atomically(path, text.encode())


def run_method(
    name: str,
    config: Config,
    federation: Federation,
    store: ClientStore,
    watcher: Watcher,
    saving: Saving | None = None,
) -> MethodResult:
    """Train (where the method trains) and evaluate on existing and new clients."""
    method = build_method(name, config, federation)
    dtype = np.float64 if config.run.precision == "float64" else np.float32
    began = time.monotonic()
    about: dict[str, Any] = {"title": TITLES[name]}
    trained = None
    extra: dict[str, np.ndarray] = {}
    if isinstance(method, PACPFL):
        watcher.stage(f"{TITLES[name]}: training")
        trained = train(
            method,
            store,
            rounds=config.train.rounds,
            clients_per_round=config.train.clients_per_round,
            seed=config.seed,
            dtype=dtype,
            matrices_per_client=method.particles * method.prior.components,
            saving=saving,
            progress=watcher.progress,
            stop=watcher.stop,
        )
        if not trained.finished:
            raise Interrupted(f"stopped after round {trained.rounds} of {config.train.rounds}")
        described, extra = describe(method, trained, config, federation)
        about |= described
    watcher.stage(f"{TITLES[name]}: personalising and measuring")
    state = trained.state if trained else method.init(jax.random.key(config.seed), None)  # type: ignore[arg-type]
    groups = evaluate(
        method,
        state,
        federation,
        seed=config.seed,
        dtype=dtype,
        matrices_per_client=config.train.particles * config.prior.members,
    )
    if watcher.stop():
        raise Interrupted("stopped between two methods")
    about["seconds"] = time.monotonic() - began
    return MethodResult(about, trained.history if trained else {}, groups, extra)


def describe(
    method: PACPFL, trained: Trained, config: Config, federation: Federation
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What run.json says about a PAC-PFL training, and the pairwise differences of its particles."""
    state = trained.state
    fingerprints = jax.vmap(method.fingerprint(state))(state.particles)
    value = float(svgd.diversity(fingerprints))
    at_start = float(trained.history["diversity"][0])
    return {
        "rounds": trained.rounds,
        "train_seconds": trained.seconds,
        "compile_seconds": trained.compile_seconds,
        "particles": method.particles,
        "components": method.prior.components,
        "dimension": method.prior.size,
        **temperatures(config, federation),
        "aggregation": method.aggregation,
        "svgd_kernel": method.svgd_kernel,
        "mixture_weights": method.mixture_weights,
        "diversity": diversity_in_words(method.particles, value, at_start),
        "skipped_steps": int(np.sum(state.skipped)),
    }, {"diversity/pairwise": np.asarray(svgd.spread(fingerprints))}


def diversity_in_words(particles: int, value: float, at_start: float) -> dict[str, Any]:
    collapsed = particles > 1 and value < COLLAPSED
    share = (
        f"{value:.3g}, {100 * value / at_start:.2g}% of what it was when drawn" if at_start else ""
    )
    if particles == 1:
        words = "There is one particle, so there is nothing to differ from."
    elif collapsed:
        words = (
            f"The particles have collapsed: they predict nearly the same (mean difference {share}), so "
            f"{particles} of them buy no more than one. Try the function kernel, a wider hyper-prior "
            "or a smaller tau."
        )
    else:
        words = f"The particles differ: mean difference {share}."
    return {"value": value, "at_start": at_start, "collapsed": collapsed, "words": words}


def summarise(groups: dict[str, Evaluation]) -> dict[str, dict[str, dict[str, float]]]:
    """group -> metric -> mean and half width of its 95% interval over clients."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for group, evaluation in groups.items():
        table[group] = {}
        for metric in METRICS:
            values = np.array([row[metric] for row in evaluation.rows])
            mean, half = metrics.interval(values)
            table[group][metric] = {"mean": mean, "ci95": half, "n": len(values)}
    return table


def write_folder(
    out: Path,
    config: Config,
    federation: Federation,
    results: dict[str, MethodResult],
    started: datetime,
) -> None:
    """metrics.json, clients.csv, arrays.safetensors, and last run.json, whose status says complete."""
    summary = {name: summarise(result.groups) for name, result in results.items()}
    write_bytes_atomically(out / "metrics.json", _json(summary))
    write_bytes_atomically(out / "clients.csv", client_rows(federation, results).encode())
    write_bytes_atomically(out / "arrays.safetensors", save(figure_arrays(federation, results)))
    samples = [len(client.train) for client in federation.existing]
    record = {
        "dataset": config.data.name,
        "status": "complete",
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "pacpfl": __version__,
        "versions": runtime.versions(),
        "machine": runtime.machine(),
        "devices": jax.device_count(),
        "seed": config.seed,
        "precision": config.run.precision,
        "clients": {
            "existing": len(federation.existing),
            "new": len(federation.new),
            "features": list(federation.features),
            "target": federation.target,
            "samples": {
                "min": min(samples),
                "median": float(np.median(samples)),
                "max": max(samples),
            },
        },
        "methods": {name: result.about for name, result in results.items()},
    }
    write_bytes_atomically(out / "run.json", _json(record))


def client_rows(federation: Federation, results: dict[str, MethodResult]) -> str:
    """clients.csv: one row per client and method."""
    members = max(
        (
            0 if e.responsibilities is None else e.responsibilities.shape[1]
            for result in results.values()
            for e in result.groups.values()
        ),
        default=0,
    )
    names = [f"responsibility_{j}" for j in range(members)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        ["method", "group", "client", "kind", "samples", "later", "test", *METRICS, *names]
    )
    groups = federation.groups()
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            for index, (client, row) in enumerate(zip(groups[group], evaluation.rows, strict=True)):
                shares = evaluation.responsibilities
                more = [""] * members if shares is None else [float(s) for s in shares[index]]
                writer.writerow(
                    [
                        *(name, group, client.name),
                        "" if client.kind is None else client.kind,
                        len(client.train),
                        0 if client.later is None else len(client.later),
                        0 if client.test is None else len(client.test),
                        *(row[metric] for metric in METRICS),
                        *more,
                    ]
                )
    return text.getvalue()


def figure_arrays(
    federation: Federation, results: dict[str, MethodResult]
) -> dict[str, np.ndarray]:
    """What the report draws. Bands are shown for the best, middle and worst clients of a group."""
    arrays: dict[str, np.ndarray] = {"calibration/levels": metrics.calibration_levels()}
    lead = next((r for r in results.values() if r.history), next(iter(results.values())))
    arrays |= {f"curve/{name}": values for name, values in lead.history.items()}
    arrays |= lead.extra
    for name, result in results.items():
        for group, evaluation in result.groups.items():
            arrays[f"calibration/{name}/{group}"] = evaluation.calibration
    for group, evaluation in lead.groups.items():
        if evaluation.weights is not None:
            arrays[f"weights/{group}"] = evaluation.weights
        if evaluation.responsibilities is not None:
            arrays[f"responsibilities/{group}"] = evaluation.responsibilities
        order = np.argsort([row["rsmse"] for row in evaluation.rows])
        places = np.unique(np.linspace(0, len(order) - 1, 4).round().astype(int))
        for index in order[places]:
            client = federation.groups()[group][index]
            others = {n: r.groups[group].means[index] for n, r in results.items() if r is not lead}
            arrays |= band(group, client, evaluation, int(index), others)
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}


def band(
    group: str,
    client: Client,
    evaluation: Evaluation,
    index: int,
    others: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    assert client.test is not None
    x = client.test.x
    order = np.argsort(x[:, 0]) if x.shape[1] == 1 else np.arange(len(x))
    place = f"bands/{group}/{client.name}"
    return {
        f"{place}/x": x[order],
        f"{place}/y": client.test.y[order],
        f"{place}/mean": evaluation.means[index][order],
        f"{place}/std": evaluation.stds[index][order],
        f"{place}/quantiles": evaluation.quantiles[index][:, order],
        f"{place}/train_x": client.personal.x,
        f"{place}/train_y": client.personal.y,
        **{f"{place}/{name}/mean": mean[order] for name, mean in others.items()},
    }


def digest(store: ClientStore) -> str:
    """Names the training samples: a checkpoint serves only the data it was made from."""
    total = hashlib.sha256()
    for part in (store.x, store.y, store.offsets):
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def _json(value: Any) -> bytes:
    return (json.dumps(_finite(value), indent=2) + "\n").encode()


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
