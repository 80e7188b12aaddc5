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

from pacpfl import config as configuration
from pacpfl.config import Config, differing, flat
from pacpfl.engine.simulate import Progress
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.folder import MethodResult, make_folder, summarise
from pacpfl.run import Watcher


class TensorBoard:
    """An event file; `tensorboard --logdir RUNS` shows it."""

    def __init__(self, folder: Path, config: Config) -> None:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder))
        self.writer.add_text("config", "```\n" + configuration.dump(config) + "```")

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Record values by name, as they are after so many rounds."""
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


Tracker = TensorBoard | MLflow
TRACKERS: dict[str, tuple[str, Callable[[Path, Config], Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", MLflow),
}


@dataclass
class Tracked:
    """Trackers behind a watcher: `watcher` does all that `before` does, and tells them."""

    before: Watcher
    trackers: Sequence[Tracker]
    title: str = ""  # of the method that is trained
    complete: bool = False

    @property
    def watcher(self) -> Watcher:
        told = replace(self.before, stage=self._stage, progress=self._progress)
        return told if self.trackers else self.before

    def _stage(self, text: str) -> None:
        self.title = text.partition(":")[0]
        self.before.stage(text)

    def _progress(self, now: Progress) -> None:
        self._tell(now.diagnostics | {"seconds": now.seconds}, self.title, now.round)
        if self.before.progress is not None:
            self.before.progress(now)

    def finish(self, results: Mapping[str, MethodResult]) -> None:
        """Record the metrics of all methods, at the round in which each ended."""
        for result in results.values():
            title, step = result.about["title"], int(result.about.get("rounds", 0))
            for group, measured in summarise(result.groups).items():
                means = {metric: cell["mean"] for metric, cell in measured.items()}
                self._tell(means, f"{title}/{group}", step)
        self.complete = True

    def _tell(self, values: Mapping[str, float], of: str, step: int) -> None:
        """Record the finite values; names get underscores for spaces, which both programs keep."""
        names = {f"{of}/{name}".replace(" ", "_"): value for name, value in values.items()}
        for tracker in self.trackers:
            tracker.numbers({name: v for name, v in names.items() if math.isfinite(v)}, step)


@contextmanager
def tracked(
    names: Sequence[str], out: Path, config: Config, watcher: Watcher | None = None
) -> Iterator[Tracked]:
    """Put trackers behind a watcher, and close them when the run ends or breaks off."""
    trackers = [open_tracker(name, out, config) for name in dict.fromkeys(names)]
    tracking = Tracked(watcher or Watcher(), trackers)
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
