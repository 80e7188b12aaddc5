"""The curves of one client, packed for the page: bands, calibration, classes, wrong answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pacpfl.errors import InputError
from pacpfl.report.compact import limits, pack, pack_image
from pacpfl.report.figures import thinned
from pacpfl.report.folder import Run
from pacpfl.report.judge import Judged

BANDS = (1, 2, 3, 4)  # of the six stored quantiles: 5, 25, 75 and 95%
BINS = 5  # of confidence, for one client: its few answers would leave twenty nearly empty
FAR = 1.5  # predictions further from the samples than this, in ranges of the samples, are cut off
POINTS = 120  # of a client of an older run, which kept all of them for the few it drew


def offsets(run: Run, group: str) -> dict[str, np.ndarray]:
    """Where each client begins: in the arrays of test samples, and of those it learned from."""
    found = {}
    clients = len(run.names(group))
    for key in ("offsets", "train_offsets"):
        values = run.arrays.get(f"panels/{group}/{key}")
        if values is None:
            continue
        if len(values) != clients + 1:
            raise InputError(
                f"{run.name}/arrays.safetensors has {len(values) - 1} clients in panels/{group}/{key} "
                f"but clients.csv lists {clients} {group} clients; run the study again."
            )
        found[key] = values.astype(int)
    return found


def bands(
    run: Run, client: Judged, alone: str | None, places: dict[str, np.ndarray]
) -> dict[str, Any] | None:
    """What was predicted, what came true, and what it was learned from, on one pair of axes."""
    found = _stored(run, client, alone, places) or _drawn(run, client, alone)
    if found is None:
        return None
    low, high = _heights(found)
    inside = (found["y"] >= found["quantiles"][BANDS[0]]) & (
        found["y"] <= found["quantiles"][BANDS[-1]]
    )
    packed: dict[str, Any] = {
        "of": client.test,
        "inside": int(inside.sum()),
        "range": [low, high],
        "y": pack(found["y"], low, high),
        "mean": pack(found["mean"], low, high),
        "quantiles": [pack(found["quantiles"][place], low, high) for place in BANDS],
    }
    for key in ("alone", "spread_y", "spread_mean", "train_y"):
        if key in found:
            packed[key] = pack(found[key], low, high)
    if "x" in found:
        least, most = limits(found["x"], found.get("train_x", found["x"]))
        packed["across"] = [least, most]
        for key in ("x", "train_x"):
            if key in found:
                packed[key] = pack(found[key], least, most)
    return packed


def _heights(found: dict[str, np.ndarray]) -> tuple[float, float]:
    """From the lowest to the highest that is drawn, unless a prediction is so far off that the samples
    would melt into a line: then it leaves the drawing."""
    seen = [found[key] for key in ("y", "train_y", "spread_y") if key in found]
    told = [found[key] for key in ("mean", "alone", "spread_mean") if key in found]
    lowest, highest = limits(*seen)
    room = FAR * (highest - lowest)
    low, high = limits(*seen, *told, found["quantiles"][list(BANDS)])
    return (max(low, lowest - room), min(high, highest + room)) if room > 0 else (low, high)


def _stored(
    run: Run, client: Judged, alone: str | None, places: dict[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """From `panels/GROUP`, which has every client."""
    parts = {key: slice(*values[client.place : client.place + 2]) for key, values in places.items()}
    if "offsets" not in parts or parts["offsets"].start == parts["offsets"].stop:
        return None
    place = f"panels/{client.group}"
    keys = ("x", "y", "mean", "quantiles", "spread_y", "spread_mean")
    names = {key: f"{place}/{key}" for key in keys} | {"alone": f"{place}/{alone}/mean"}
    found = {
        key: run.arrays[name][..., parts["offsets"]]
        for key, name in names.items()
        if name in run.arrays
    }
    if "train_offsets" in parts:
        for key in ("train_x", "train_y"):
            found[key] = run.arrays[f"{place}/{key}"][parts["train_offsets"]]
    return found


def _drawn(run: Run, client: Judged, alone: str | None) -> dict[str, np.ndarray] | None:
    """From `bands/GROUP/CLIENT`: older runs kept a few clients only, with all their test samples."""
    key = f"bands/{client.group}/{client.name}"
    if f"{key}/quantiles" not in run.arrays:
        return None
    quantiles = run.arrays[f"{key}/quantiles"]
    x = run.arrays[f"{key}/x"].reshape(quantiles.shape[1], -1)
    even = thinned(len(x), POINTS)
    one_feature = x.shape[1] == 1
    shown = np.argsort(x[:, 0], kind="stable")[even] if one_feature else np.arange(len(even))
    y, mean = run.arrays[f"{key}/y"], run.arrays[f"{key}/mean"]
    found = {"y": y[shown], "mean": mean[shown], "quantiles": quantiles[:, shown]}
    if f"{key}/{alone}/mean" in run.arrays:
        found["alone"] = run.arrays[f"{key}/{alone}/mean"][shown]
    if one_feature:
        found["x"] = x[shown, 0]
        if f"{key}/train_x" in run.arrays:
            found["train_x"] = run.arrays[f"{key}/train_x"].reshape(-1)
            found["train_y"] = run.arrays[f"{key}/train_y"]
    else:
        found |= {"spread_y": y[even], "spread_mean": mean[even]}
    return found


def calibration(client: Judged, tables: dict[str, np.ndarray]) -> list[str] | None:
    """Observed frequency at each level, for each method in `tables` (method -> clients x levels)."""
    curves = [pack(values[client.place], 0.0, 1.0) for values in tables.values()]
    return curves or None


def reliability(table: np.ndarray) -> list[list[float]]:
    """[answers, right, mean confidence] for each of BINS bins of confidence that holds any."""
    merged = table.reshape(BINS, -1, 3).sum(axis=1)
    return [
        [int(count), int(np.rint(right)), round(float(sure / count), 4)]
        for count, right, sure in merged
        if count > 0
    ]


def wrong_answers(run: Run, group: str) -> dict[int, list[dict[str, Any]]]:
    """Place of a client -> its surest wrong answers, each with its image."""
    place = f"panels/{group}/errors"
    if f"{place}/images" not in run.arrays:
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    keys = ("client", "labels", "answers", "confidence", "images")
    for owner, label, answer, sure, image in zip(
        *(run.arrays[f"{place}/{key}"] for key in keys), strict=True
    ):
        found.setdefault(int(owner), []).append(
            {
                "label": int(label),
                "answer": int(answer),
                "sure": round(float(sure), 3),
                "image": pack_image(image),
            }
        )
    return found
