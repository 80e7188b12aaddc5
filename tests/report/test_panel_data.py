"""The data from which panels are drawn: packed, complete, safe to embed, small."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array
from reading import read_page

from pacpfl.errors import InputError
from pacpfl.report import page as pages
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import judge
from pacpfl.report.panels import ALPHABET, embedded, limits, pack, pack_image, panel_data


def unpack(text: str, low: float, high: float) -> np.ndarray:
    """What the page does to read it."""
    codes = [
        64 * ALPHABET.index(a) + ALPHABET.index(b)
        for a, b in zip(text[::2], text[1::2], strict=True)
    ]
    return np.array([np.nan if c == 4095 else low + (high - low) * c / 4094 for c in codes])


@settings(deadline=None, max_examples=80)
@given(any_array(float, st.integers(0, 20), elements=st.floats(-1e6, 1e6) | st.just(np.nan)))
def test_numbers_come_back_to_half_a_step(values: np.ndarray) -> None:
    low, high = limits(values)
    found = unpack(pack(values, low, high), low, high)
    step = (high - low if high > low else 1.0) / 4094
    np.testing.assert_allclose(found, values, atol=0.5001 * step + 1e-9, equal_nan=True)


def test_what_is_not_finite_is_missing_and_what_is_outside_is_cut() -> None:
    found = unpack(pack(np.array([np.inf, -np.inf, 5.0, -5.0, 0.5]), 0.0, 1.0), 0.0, 1.0)
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == pytest.approx([1.0, 0.0, 0.5], abs=2e-4)
    assert limits(np.array([np.nan, np.inf])) == (0.0, 1.0)
    assert pack_image(np.array([[0, 255], [64, 128]], np.uint8)) == "A_Qg"
    assert pack_image(np.zeros((1, 2), np.uint8)) == "AA"


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_embedded_text_cannot_leave_its_element(name: str) -> None:
    text = embedded({"name": name})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"name": name}


@pytest.fixture(scope="module", params=[1, 3], ids=["one feature", "three features"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("panel_runs") / "run"
    return read_run(make_run(folder, features=request.param, clients=5, components=2))


def test_every_client_has_what_its_panel_shows(run: Run) -> None:
    judged = judge(run)
    data = json.loads(embedded(panel_data(run, judged)))
    assert [method["title"] for method in data["methods"]] == list(run.titles.values())
    assert (data["main"], data["alone"]) == (0, 1)
    assert len(data["clients"]) == 10
    one_feature = "panels/existing/x" in run.arrays
    for client in data["clients"]:
        group, place = client["group"], run.names(client["group"]).index(client["name"])
        arrays = {
            key.removeprefix(f"panels/{group}/"): values
            for key, values in run.arrays.items()
            if key.startswith(f"panels/{group}/")
        }
        bands, part = client["bands"], slice(40 * place, 40 * place + 40)
        low, high = bands["range"]
        step = (high - low) / 4094
        for key, name in (("y", "y"), ("mean", "mean"), ("alone", "vanilla/mean")):
            found = unpack(bands[key], low, high)
            np.testing.assert_allclose(found, arrays[name][part], atol=step)
        # Of the levels 0.025, 0.05, 0.25, 0.75, 0.95, 0.975 all but the outermost.
        for row, text in zip((1, 2, 3, 4), bands["quantiles"], strict=True):
            np.testing.assert_allclose(
                unpack(text, low, high), arrays["quantiles"][row, part], atol=step
            )
        y, inner = arrays["y"][part], arrays["quantiles"][:, part]
        assert bands["inside"] == sum(
            a <= b <= c for a, b, c in zip(inner[1], y, inner[4], strict=True)
        )
        assert bands["of"] == 60
        if one_feature:
            across = bands["across"]
            assert across[0] <= arrays["x"][part].min() and across[1] >= arrays["x"][part].max()
            np.testing.assert_allclose(
                unpack(bands["x"], *across), arrays["x"][part], atol=(across[1] - across[0]) / 4094
            )
            assert len(bands["train_x"]) == len(bands["train_y"]) == 20
        else:
            assert "x" not in bands
            np.testing.assert_allclose(
                unpack(bands["spread_y"], low, high), arrays["spread_y"][part], atol=step
            )
        levels = [unpack(text, 0, 1) for text in client["calibration"]]
        for curve, method in zip(levels, ("pacpfl", "vanilla"), strict=True):
            expected = run.arrays[f"calibration/{method}/{group}"][place]
            np.testing.assert_allclose(curve, expected, atol=2e-4)
        np.testing.assert_allclose(
            client["weights"], run.arrays[f"weights/{group}"][place], atol=6e-5
        )
        np.testing.assert_allclose(
            client["members"], run.arrays[f"responsibilities/{group}"][place], atol=6e-5
        )
        for method, lead, scores in zip(run.titles, client["leads"], client["scores"], strict=True):
            row = run.rows(method, group).set_index("client").loc[client["name"]]
            assert lead == pytest.approx(row["rsmse"], abs=1e-5)
            assert scores[4] == f"{row['coverage_90']:.3f}"
        assert any(f"{client['leads'][0]:.3f}" in text for text in client["words"])


def test_a_prediction_far_off_does_not_flatten_the_samples(run: Run) -> None:
    key = "panels/existing/vanilla/mean"
    wild = replace(run, arrays=run.arrays | {key: run.arrays[key] + 1e6})
    low, high = panel_data(wild, judge(wild))["clients"][0]["bands"]["range"]
    y = run.arrays["panels/existing/y"][:40]
    assert high - low < 5 * (np.ptp(y) + 2)


def test_a_client_of_which_nothing_was_kept_has_no_bands(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=3, without=("panels/existing/", "gain/")))
    kept = [client["bands"] is not None for client in panel_data(run, judge(run))["clients"]]
    assert kept == [False] * 3 + [True] * 3
    run.arrays["panels/new/offsets"][2:] = run.arrays["panels/new/offsets"][2]
    kept = [client["bands"] is not None for client in panel_data(run, judge(run))["clients"]]
    assert kept == [False] * 3 + [True] * 2 + [False]
    assert pages.render(run, [])


def test_arrays_of_other_clients_are_refused(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=4))
    run.arrays["panels/new/offsets"] = run.arrays["panels/new/offsets"][:-1]
    with pytest.raises(InputError, match=r"3 clients in panels/new/offsets but .* lists 4 new"):
        panel_data(run, judge(run))


def test_a_thousand_clients_fit_in_five_megabytes(tmp_path: Path) -> None:
    """The page without its figures, which do not grow with the clients, at the most points kept."""
    run = read_run(make_run(tmp_path / "run", clients=10, copies=50, test=100, kept=100))
    assert len(judge(run)) == 1000
    page = pages.render(run, [])
    (data,) = read_page(page).all("script", type="application/json")
    blocks = json.loads(data.children[0])["blocks"]
    found = [c for b in blocks for c in json.loads(zlib.decompress(base64.b64decode(b)))]
    assert [client["name"] for client in found] == list(judge(run)["name"])
    assert len(page.encode()) < 4_000_000
