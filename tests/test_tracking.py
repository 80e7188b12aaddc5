"""Trackers: what TensorBoard and MLflow will show is what the run measured, read back from disk."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings
from pacpfl.engine.simulate import Progress
from pacpfl.errors import InputError
from pacpfl.folder import MethodResult, summarise
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.priors.gp import GPSettings
from pacpfl.report.track import Tracked, changed, tracked
from pacpfl.run import Watcher, run

CONFIG = Config(
    seed=3,
    data=DataSettings(clients=2, new_clients=1, samples=5, test_samples=6),
    prior=GPSettings(mean="constant", kernel="ard"),
    train=TrainSettings(rounds=4, particles=2),
    run=RunSettings(methods=("pacpfl", "ridge")),
)


class Ran(NamedTuple):
    out: Path
    results: dict[str, MethodResult]
    told: list[Progress]
    stages: list[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    out = tmp_path_factory.mktemp("runs") / "tracked run"
    told: list[Progress] = []
    stages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        names = ["tensorboard", "mlflow"]
        with tracked(names, out, CONFIG, Watcher(stages.append, told.append)) as tracking:
            results = run(CONFIG, out, tracking.watcher)
            tracking.finish(results)
    return Ran(out, results, told, stages)


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Every number of the event files: records of length, its checksum, content, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.glob("events.out.tfevents.*"):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag, event.step] = value.simple_value
    return found


def expected(ran: Ran) -> dict[tuple[str, int], float]:
    values = {
        (f"PAC-PFL/{name}", now.round): value
        for now in ran.told
        for name, value in (now.diagnostics | {"seconds": now.seconds}).items()
    }
    for method, title in (("pacpfl", "PAC-PFL"), ("ridge", "Ridge_per_client")):
        for group, table in summarise(ran.results[method].groups).items():
            for metric, cell in table.items():
                step = CONFIG.train.rounds if method == "pacpfl" else 0
                values[f"{title}/{group}/{metric}", step] = cell["mean"]
    return values


def test_the_curves_end_where_the_run_ended(ran):
    last = ran.told[-1]
    history = ran.results["pacpfl"].history
    assert last.round == 4
    assert last.diagnostics["log_evidence"] == pytest.approx(history["log_evidence"][-1])
    assert any(stage.startswith("Ridge per client") for stage in ran.stages)


def test_the_event_file_holds_curves_and_results(ran):
    found = scalars(ran.out / "tracking" / "tensorboard")
    assert found == pytest.approx(expected(ran), rel=1e-6)
    assert ("PAC-PFL/existing/rsmse", 4) in found


def test_the_mlflow_run_holds_them_too(ran, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(ran.out / "tracking" / "mlflow").as_uri())
    (experiment,) = (e for e in client.search_experiments() if e.name == "pacpfl")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == "tracked run"
    assert kept.data.params["train.rounds"] == "4"
    found = {
        (name, point.step): point.value
        for name in kept.data.metrics
        for point in client.get_metric_history(kept.info.run_id, name)
    }
    assert found == pytest.approx(expected(ran), rel=1e-6)


class Recorder:
    def __init__(self):
        self.values, self.closed = {}, None

    def numbers(self, values, step):
        self.values |= {(name, step): value for name, value in values.items()}

    def close(self, complete):
        self.closed = complete


def test_a_run_that_breaks_off_is_closed_as_such(monkeypatch, tmp_path):
    recorder = Recorder()
    monkeypatch.setattr("pacpfl.report.track.open_tracker", lambda *about: recorder)
    with pytest.raises(KeyboardInterrupt), tracked(["mlflow"], tmp_path, CONFIG) as tracking:
        tracking.watcher.stage("PAC-PFL: training")
        tracking.watcher.progress(Progress(1, 4, 0.5, {"loss": float("nan"), "diversity": 2.0}))
        raise KeyboardInterrupt
    assert recorder.closed is False
    assert recorder.values == {("PAC-PFL/diversity", 1): 2.0, ("PAC-PFL/seconds", 1): 0.5}


def test_without_trackers_the_watcher_is_the_same(tmp_path):
    watcher = Watcher()
    with tracked([], tmp_path, CONFIG, watcher) as tracking:
        assert isinstance(tracking, Tracked)
        assert tracking.watcher is watcher
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("tensorboard", "tensorboardX", r"pip install 'pacpfl\[tensorboard\]'"),
        ("mlflow", "mlflow", r"pip install 'pacpfl\[mlflow\]'"),
        ("wandb", "wandb", "choose tensorboard or mlflow"),
    ],
)
def test_a_tracker_that_is_not_there_is_named(name, package, remedy, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=remedy), tracked([name], tmp_path, CONFIG):
        pass


def test_only_what_differs_from_the_defaults_is_a_parameter():
    assert changed(Config()) == {"seed": 0, "data.name": "polynomial"}
    other = replace(Config(), seed=4, train=TrainSettings(lambda_=2.0))
    assert changed(other) == {"seed": 4, "data.name": "polynomial", "train.lambda": 2.0}
