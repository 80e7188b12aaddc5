"""A run from configuration to folder: every file holds what docs/run-folder.md promises."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy import stats

from pacpfl import config as configuration
from pacpfl.config import Config, RunSettings
from pacpfl.data.polynomial import polynomial
from pacpfl.data.settings import DataSettings
from pacpfl.data.store import from_clients
from pacpfl.errors import InputError
from pacpfl.folder import RunFolder
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.priors.gp import GPSettings
from pacpfl.run import COLLAPSED, digest, have_collapsed, run

METRICS = (
    "rsmse", "ce", "nll", "crps", "coverage_50", "width_50", "coverage_90", "width_90", "coverage_95",
    "width_95",
)  # fmt: skip
ROUNDS = 20
CONFIG = Config(
    data=DataSettings(clients=3, new_clients=2, samples=5, test_samples=6),
    prior=GPSettings(mean="linear", kernel="ard", members=2),
    train=TrainSettings(rounds=ROUNDS, particles=2),
    run=RunSettings(methods=("pacpfl", "vanilla", "pooled")),
)
ALONE = replace(
    CONFIG,
    prior=GPSettings(mean="constant", kernel="ard"),
    run=RunSettings(methods=("pacpfl",), checkpoint_rounds=5),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> list[dict[str, str]]:
    with (out / "clients.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def arrays(out: Path) -> dict[str, np.ndarray]:
    return load_file(out / "arrays.safetensors")


def test_the_folder_holds_the_documented_files_and_nothing_else(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {
        "config.toml", "run.json", "checkpoint.safetensors", "metrics.json", "clients.csv",
        "arrays.safetensors", ".lock",
    }  # fmt: skip
    assert configuration.load_file(out / "config.toml") == CONFIG


def test_run_json_tells_all_that_is_documented(out: Path) -> None:
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "complete"
    assert record["started"] <= record["finished"]
    assert record["clients"] == {
        "existing": 3, "new": 2, "features": ["x"], "target": "y",
        "samples": {"min": 5, "median": 5.0, "max": 5},
    }  # fmt: skip
    assert (record["dataset"], record["seed"], record["precision"]) == ("polynomial", 0, "float32")
    assert {"pacpfl", "machine", "devices"} <= record.keys()
    assert {"python", "jax", "numpy"} <= record["versions"].keys()
    assert list(record["methods"]) == ["pacpfl", "vanilla", "pooled"]
    about = record["methods"]["pacpfl"]
    assert (about["rounds"], about["particles"], about["components"]) == (ROUNDS, 2, 2)
    assert about["diversity"].keys() == {"value", "at_start", "collapsed"}
    assert {"tau", "lambda", "lambda_condition", "skipped_steps", "dimension"} <= about.keys()
    assert {"aggregation", "svgd_kernel", "mixture_weights", "compile_seconds"} <= about.keys()
    for method in record["methods"].values():
        assert method["title"]
        assert method["seconds"] > 0


def test_the_documentation_promises_nothing_that_is_not_there(out: Path) -> None:
    """The example in docs/run-folder.md has exactly the keys of a real run.json."""
    page = Path(__file__).parents[1] / "docs" / "run-folder.md"
    if not page.is_file():
        pytest.skip("the documentation is not part of this installation")
    text = page.read_text(encoding="utf-8")
    example = json.loads(text[text.index("\n    {") :].split("\n\n")[0])
    record = json.loads((out / "run.json").read_text())
    assert example.keys() == record.keys()
    missing = example["methods"]["pacpfl"].keys() - record["methods"]["pacpfl"].keys()
    assert not missing, f"documented but not written: {missing}"


def test_there_is_one_row_per_client_and_method(rows: list[dict[str, str]]) -> None:
    names = ["existing-00", "existing-01", "existing-02", "new-00", "new-01"]
    assert [(row["method"], row["client"]) for row in rows] == [
        (method, name) for method in ("pacpfl", "vanilla", "pooled") for name in names
    ]
    assert list(rows[0]) == [
        "method", "group", "client", "kind", "samples", "later", "test", *METRICS,
        "responsibility_0", "responsibility_1",
    ]  # fmt: skip
    for row in rows:
        assert row["client"].startswith(row["group"])
        assert (row["samples"], row["later"], row["test"]) == ("5", "0", "6")
        assert row["kind"] == str(int(row["client"][-2:]) % 2)
        for metric in METRICS:
            assert np.isfinite(float(row[metric])), (row, metric)
        shares = [row["responsibility_0"], row["responsibility_1"]]
        if row["method"] == "pacpfl":
            assert sum(map(float, shares)) == pytest.approx(1, abs=1e-5)
        else:
            assert shares == ["", ""]


def test_metrics_json_is_the_mean_and_interval_of_the_rows(
    out: Path, rows: list[dict[str, str]]
) -> None:
    table = json.loads((out / "metrics.json").read_text())
    assert list(table) == ["pacpfl", "vanilla", "pooled"]
    for method, groups in table.items():
        assert list(groups) == ["existing", "new"]
        for group, measured in groups.items():
            assert set(measured) == set(METRICS)
            for metric, found in measured.items():
                values = [
                    float(r[metric]) for r in rows if (r["method"], r["group"]) == (method, group)
                ]
                assert found.keys() == {"mean", "ci95", "n"}
                assert found["n"] == len(values)
                assert found["mean"] == pytest.approx(np.mean(values))
                low, high = stats.t.interval(
                    0.95, len(values) - 1, np.mean(values), stats.sem(values) or 1e-300
                )
                assert found["ci95"] == pytest.approx((high - low) / 2, abs=1e-12)


def test_arrays_have_the_documented_keys_and_shapes(arrays: dict[str, np.ndarray]) -> None:
    counts = {"existing": 3, "new": 2}
    shapes: dict[str, tuple[int, ...]] = {
        "curve/log_evidence": (ROUNDS,), "curve/diversity": (ROUNDS,),
        "calibration/levels": (20,), "diversity/pairwise": (2, 2),
    }  # fmt: skip
    for group, count in counts.items():
        shapes[f"weights/{group}"] = (count, 2)
        shapes[f"responsibilities/{group}"] = (count, 2)
        for method in ("pacpfl", "vanilla", "pooled"):
            shapes[f"calibration/{method}/{group}"] = (count, 20)
        tested, learned = 6 * count, 5 * count
        shapes[f"gain/vanilla/{group}"] = (count, 3)
        shapes |= {f"panels/{group}/{key}": (count + 1,) for key in ("offsets", "train_offsets")}
        for key in ("x", "y", "mean", "vanilla/mean", "pooled/mean"):
            shapes[f"panels/{group}/{key}"] = (tested,)
        shapes[f"panels/{group}/quantiles"] = (6, tested)
        shapes |= {f"panels/{group}/{key}": (learned,) for key in ("train_x", "train_y")}
    assert {name: values.shape for name, values in arrays.items()} == shapes


def test_weights_and_calibration_are_shares(arrays: dict[str, np.ndarray]) -> None:
    for group in ("existing", "new"):
        for kind in ("weights", "responsibilities"):
            np.testing.assert_allclose(arrays[f"{kind}/{group}"].sum(1), 1, atol=1e-5)
        curve = arrays[f"calibration/pacpfl/{group}"]
        assert np.all(np.diff(curve, axis=1) >= 0)
        np.testing.assert_array_equal(curve[:, -1], 1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PAC-PFL alone, undisturbed."""
    folder = tmp_path_factory.mktemp("alone")
    run(ALONE, folder)
    return folder


def test_a_folder_of_another_run_is_refused_and_left_alone(alone: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in alone.iterdir() if path.name != ".lock"}

    before = content()
    for other in (replace(ALONE, seed=1), replace(ALONE, train=TrainSettings(rounds=ROUNDS + 1))):
        with pytest.raises(InputError, match=r"--out.*--fresh"):
            run(other, alone)
    assert content() == before


def test_settings_that_training_does_not_depend_on_may_change(alone: Path) -> None:
    RunFolder(alone).prepare(replace(ALONE, run=RunSettings(checkpoint_rounds=9)))
    RunFolder(alone).prepare(ALONE)


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "config.toml").write_text("seed = = 1")
    for out, words in (("file", "file"), ("file/below", "file"), (".", r"config\.toml")):
        with pytest.raises(InputError, match=words):
            RunFolder(tmp_path / out).prepare(CONFIG)


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    """One client has a mean, and no interval."""
    one = replace(ALONE, data=DataSettings(clients=1, new_clients=0, samples=5, test_samples=6))
    run(replace(one, train=TrainSettings(rounds=2, particles=1)), tmp_path)

    def fail(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "metrics.json").read_text()
    table = json.loads(text, parse_constant=fail)
    assert list(table["pacpfl"]) == ["existing"]
    rsmse = table["pacpfl"]["existing"]["rsmse"]
    assert rsmse["ci95"] is None and rsmse["mean"] > 0
    json.loads((tmp_path / "run.json").read_text(), parse_constant=fail)


def test_diversity_is_the_distance_of_what_particles_predict(alone: Path) -> None:
    """By hand: constant mean, correlations of the next and next but one inputs, and noise."""
    saved = load_file(alone / "checkpoint.safetensors")
    at = saved["state[0].references"][:, 0].astype(float)
    gaps = np.concatenate([at[1:] - at[:-1], at[2:] - at[:-2]])
    constant, length, raw = saved["state[0].particles"].astype(float).T
    correlations = np.exp(-0.5 * (gaps / np.exp(length[:, None])) ** 2)
    apart = np.sqrt(
        (constant[0] - constant[1]) ** 2
        + np.mean((correlations[0] - correlations[1]) ** 2)
        + (np.log1p(np.exp(raw[0])) - np.log1p(np.exp(raw[1]))) ** 2
    )
    pairwise = load_file(alone / "arrays.safetensors")["diversity/pairwise"]
    np.testing.assert_allclose(pairwise, apart * (1 - np.eye(2)), rtol=1e-4, atol=1e-7)
    told = json.loads((alone / "run.json").read_text())["methods"]["pacpfl"]["diversity"]
    assert told["value"] == pytest.approx(apart, rel=1e-4)


def test_particles_that_predict_nearly_the_same_have_collapsed() -> None:
    assert have_collapsed(4, 0.5 * COLLAPSED) and have_collapsed(2, 0.0)
    assert not have_collapsed(4, 0.5) and not have_collapsed(1, 0.0)


def test_a_checkpoint_serves_only_the_data_it_was_made_from() -> None:
    clients = polynomial(3, 0, 5).existing
    store, digests = from_clients(clients), {digest(from_clients(clients))}
    for part in (store.x[0], store.y[-1:]):
        digests.add(digest(store))
        part[:] = 9.0
    assert len(digests | {digest(store)}) == 3
