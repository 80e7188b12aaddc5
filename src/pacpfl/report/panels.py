"""What the page knows about every single client, as data from which its panel is drawn when opened.

Words come from `sentences`; curves travel as short text and are drawn by `panels.js`. Each number
takes two characters: one of 4095 steps between the lowest and the highest value of its axis, finer
than any screen shows; the last code of all stands for what is not finite.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pacpfl.report.figures import class_name
from pacpfl.report.folder import Run
from pacpfl.report.judge import Judgement, going_alone
from pacpfl.report.measures import (
    ACCURACY,
    CE,
    COVERAGE_90,
    NLL,
    OF_A_CLASS_CLIENT,
    RSMSE,
    Measure,
    number,
)
from pacpfl.report.sentences import about_client, client_warnings
from pacpfl.report.style import COLOURS, looks
from pacpfl.report.tables import CLIENTS_SHOWN, client_link

DASHES = {"-": "", "--": "6 3", "-.": "7 3 1.5 3", ":": "1.5 2.5"}
BANDS = (1, 2, 3, 4)  # of the six stored quantiles: 5, 25, 75 and 95%
BINS = 5  # of confidence, for one client: its few answers would leave twenty nearly empty
FAR = 1.5  # predictions further from the samples than this, in ranges of the samples, are cut off
Packed = dict[str, Any]  # becomes JSON
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
MISSING = 64 * 64 - 1
STEPS = MISSING - 1
LETTERS = np.frombuffer(ALPHABET.encode(), np.uint8)


@dataclass(frozen=True)
class Sources:
    """What the clients of one group are looked up in, gathered once."""

    scores: dict[str, dict[str, dict[str, float]]]  # method -> client -> measure
    calibration: dict[str, np.ndarray]  # method -> one row per client
    weights: np.ndarray | None
    members: np.ndarray | None
    classes: np.ndarray | None
    errors: dict[int, list[Packed]]
    predictions: list[dict[str, np.ndarray]]  # of each client


def panel_measures(run: Run) -> tuple[Measure, ...]:
    """Return the columns of the table inside a panel; the first is the one methods are compared by."""
    return (ACCURACY, *OF_A_CLASS_CLIENT) if run.classification else (RSMSE, CE, NLL, COVERAGE_90)


def panel_data(run: Run, judged: list[Judgement]) -> Packed:
    """Collect all that the panels are drawn from."""
    styles, methods = looks(list(run.titles)), list(run.titles)
    alone = going_alone(run)
    record = run.record.get("clients", {})
    sources = {group: _sources(run, group, alone) for group in run.groups}
    names = next((len(s.classes[0]) for s in sources.values() if s.classes is not None), 0)
    images = [a for key, a in run.arrays.items() if key.endswith("/errors/images")]
    return {
        "main": methods.index(run.main),
        "alone": None if alone is None else methods.index(alone),
        "methods": [
            {
                "title": run.titles[name],
                "colour": COLOURS.index(styles[name].colour),
                "dash": DASHES.get(str(styles[name].dash), "4 2 1 2"),
            }
            for name in methods
        ],
        "measures": [{"title": m.title, "goal": m.goal} for m in panel_measures(run)],
        "classes": [class_name(place, names) for place in range(names)],
        "image": list(images[0].shape[1:]) if images else [],
        "feature": str((record.get("features") or ["input"])[0]),
        "target": str(record.get("target", "target")),
        "clients": [
            _client(run, client, sources[client.group], alone) for client in judged[:CLIENTS_SHOWN]
        ],
    }


def _sources(run: Run, group: str, alone: str | None) -> Sources:
    keys = [measure.key for measure in panel_measures(run)]
    shown = [run.main] + ([alone] if alone else [])
    tables = {name: run.per_client(f"calibration/{name}", group) for name in shown}
    return Sources(
        scores={
            method: run.rows(method, group).set_index("client")[keys].to_dict("index")
            for method in run.titles
        },
        calibration={name: table for name, table in tables.items() if table is not None},
        weights=run.per_client("weights", group),
        members=run.per_client("responsibilities", group),
        classes=run.per_client("classes", group),
        errors=wrong_answers(run, group),
        predictions=run.predictions(group),
    )


def _client(run: Run, client: Judgement, sources: Sources, alone: str | None) -> Packed:
    measures, place = panel_measures(run), client.place
    rows = [scores.get(client.name, {}) for scores in sources.scores.values()]
    scores = [[row.get(measure.key, math.nan) for measure in measures] for row in rows]
    coverage = sources.scores[run.main][client.name].get(COVERAGE_90.key, math.nan)
    table = sources.calibration.get(run.main)
    answers = table[place] if run.classification and table is not None else None
    weights = None if sources.weights is None else sources.weights[place]
    data: Packed = {
        "link": client_link(client),
        "name": client.name,
        "group": client.group,
        "kind": client.kind,
        "words": about_client(run, client, answers, coverage, weights),
        "warnings": client_warnings(run, client, coverage),
        "leads": [round(lead, 5) if math.isfinite(lead) else None for lead, *_ in scores],
        "scores": [[number(value) for value in own] for own in scores],
    }
    if weights is not None:
        data["weights"] = [round(float(w), 4) for w in weights]
    if sources.members is not None:
        data["members"] = [round(float(w), 4) for w in sources.members[place]]
    if run.classification:
        if answers is not None:
            data["bins"] = reliability(answers)
        if sources.classes is not None:
            data["classes"] = sources.classes[place].tolist()
        data["errors"] = sources.errors.get(place, [])
        return data
    if table is not None:
        data["calibration"] = calibration(client, sources.calibration)
    data["bands"] = bands(sources.predictions[place], client.test, alone)
    return data


def bands(kept: dict[str, np.ndarray], tested: int, alone: str | None) -> Packed | None:
    """Pack what was predicted, what came true, and what it was learned from, on one pair of axes."""
    if not kept:
        return None
    found = kept | ({"alone": kept[f"{alone}/mean"]} if f"{alone}/mean" in kept else {})
    low, high = _heights(found)
    inside = (found["y"] >= found["quantiles"][BANDS[0]]) & (
        found["y"] <= found["quantiles"][BANDS[-1]]
    )
    packed: Packed = {
        "of": tested,
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


def calibration(client: Judgement, tables: dict[str, np.ndarray]) -> list[str] | None:
    """Pack the observed frequency at each level, for each method in `tables`."""
    curves = [pack(values[client.place], 0.0, 1.0) for values in tables.values()]
    return curves or None


def reliability(table: np.ndarray) -> list[list[float]]:
    """Return [answers, right, mean confidence] for each of BINS bins of confidence that holds any."""
    merged = table.reshape(BINS, -1, 3).sum(axis=1)
    return [
        [int(count), int(np.rint(right)), round(float(sure / count), 4)]
        for count, right, sure in merged
        if count > 0
    ]


def wrong_answers(run: Run, group: str) -> dict[int, list[Packed]]:
    """Return the surest wrong answers of each client (by its place), each with its image."""
    place = f"panels/{group}/errors"
    if f"{place}/images" not in run.arrays:
        return {}
    found: dict[int, list[Packed]] = {}
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


def pack(values: np.ndarray, low: float, high: float) -> str:
    """Write each value as its step from `low` (0) to `high` (STEPS), with two letters."""
    values = np.asarray(values, float).reshape(-1)
    known = np.isfinite(values)
    width = high - low if high > low else 1.0
    steps = np.rint((np.where(known, values, low) - low) / width * STEPS)
    codes = np.where(known, np.clip(steps, 0, STEPS), MISSING).astype(int)
    return LETTERS[np.stack([codes // 64, codes % 64], axis=1)].tobytes().decode()


def pack_image(image: np.ndarray) -> str:
    """Write a byte image with one letter for each pixel, 64 shades from darkest to brightest."""
    brightest = max(int(image.max(initial=0)), 1)
    return LETTERS[np.rint(63.0 * image / brightest).astype(int).reshape(-1)].tobytes().decode()


def limits(*values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest finite value; (0, 1) where there is none."""
    together = np.concatenate([np.asarray(part, float).reshape(-1) for part in values])
    together = together[np.isfinite(together)]
    return (float(together.min()), float(together.max())) if together.size else (0.0, 1.0)


def embedded(data: object) -> str:
    """Return JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
