"""Curves of a run in TensorBoard or MLflow, while it runs: `pacpfl run ... --track tensorboard`.

Both are extras. A tracker is told numbers, each with a name and the round it belongs to; `tracked`
puts trackers behind the run's watcher, and `Tracked.finish` adds the results. Their files lie below
`tracking/` in the run folder, and nothing is sent anywhere, unless MLFLOW_TRACKING_URI names a server.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pacpfl import config as configuration
from pacpfl.config import Config, differing, flat
from pacpfl.engine.simulate import Progress
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.folder import MethodResult, make_folder, summarise
from pacpfl.run import Watcher


class Tracker(Protocol):
    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Record values by name, as they are after so many rounds."""
        ...

    def close(self, complete: bool) -> None: ...


class TensorBoard:
    """An event file; `tensorboard --logdir RUNS` shows it."""

    def __init__(self, folder: Path, config: Config) -> None:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder))
        self.writer.add_text("config", "```\n" + configuration.dump(config) + "```")

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, complete: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment `pacpfl`, in a folder of files or where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, config: Config) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for it
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri()
        self.client = MlflowClient(tracking_uri=place)
        found = self.client.get_experiment_by_name("pacpfl")
        experiment = found.experiment_id if found else self.client.create_experiment("pacpfl")
        run_name = folder.resolve().parents[1].name  # of RUN/tracking/mlflow
        self.run = self.client.create_run(experiment, run_name=run_name).info.run_id
        for key, value in changed(config).items():
            self.client.log_param(self.run, key, value)

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self, complete: bool) -> None:
        self.client.set_terminated(self.run, "FINISHED" if complete else "KILLED")


TRACKERS: dict[str, tuple[str, Callable[[Path, Config], Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", MLflow),
}


@dataclass
class Tracked:
    """A watcher that tells the trackers, too."""

    watcher: Watcher
    trackers: Sequence[Tracker]
    complete: bool = False

    def finish(self, results: Mapping[str, MethodResult]) -> None:
        """Record the metrics of all methods, at the round in which each ended."""
        for result in results.values():
            title, step = result.about["title"], int(result.about.get("rounds", 0))
            values = {
                f"{title}/{group}/{metric}": cell["mean"]
                for group, measured in summarise(result.groups).items()
                for metric, cell in measured.items()
            }
            self.tell(values, step)
        self.complete = True

    def tell(self, values: Mapping[str, float], step: int) -> None:
        """Record the finite values; names get underscores for spaces, which both programs keep."""
        finite = {
            name.replace(" ", "_"): value for name, value in values.items() if math.isfinite(value)
        }
        for tracker in self.trackers:
            tracker.numbers(finite, step)


@contextmanager
def tracked(
    names: Sequence[str], out: Path, config: Config, watcher: Watcher | None = None
) -> Iterator[Tracked]:
    """Put trackers behind a watcher: `Tracked.watcher` does all that it does, and tells them."""
    before = watcher or Watcher()
    trackers = [open_tracker(name, out, config) for name in dict.fromkeys(names)]
    title = ""

    def stage(text: str) -> None:
        nonlocal title
        title = text.partition(":")[0]
        before.stage(text)

    def progress(now: Progress) -> None:
        speed = {"seconds": now.seconds}
        values = {f"{title}/{name}": value for name, value in (now.diagnostics | speed).items()}
        tracking.tell(values, now.round)
        if before.progress is not None:
            before.progress(now)

    watched = replace(before, stage=stage, progress=progress) if trackers else before
    tracking = Tracked(watched, trackers)
    try:
        yield tracking
    finally:
        for tracker in trackers:
            tracker.close(tracking.complete)


def open_tracker(name: str, out: Path, config: Config) -> Tracker:
    if name not in TRACKERS:
        raise InputError(
            f"--track {name}: there is no such tracker; choose {' or '.join(TRACKERS)}."
        )
    package, build = TRACKERS[name]
    try:
        __import__(package)
    except ImportError as error:
        raise InputError(
            f"--track {name} needs {package}; install it with pip install 'pacpfl[{name}]'."
        ) from error
    folder = out / "tracking" / name
    make_folder(folder)
    return build(folder, config)


def changed(config: Config) -> Facts:
    """Return the keys whose values are not the defaults, the seed, and the name of the data."""
    now, keys = flat(config), differing(config, Config())
    facts = {"seed": config.seed, "data.name": config.data.name}
    return facts | {key: value for key, value in now.items() if key in keys}
