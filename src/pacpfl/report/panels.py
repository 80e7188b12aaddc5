"""What the page knows about every single client, as data from which its panel is drawn when opened.

Words come from `sentences`; curves travel as short text and are drawn by `panels.js`. Each number
takes two characters: one of 4095 steps between the lowest and the highest value of its axis, finer
than any screen shows; the last code of all stands for what is not finite.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import numpy as np
import pandas as pd

from pacpfl.folder import thinned
from pacpfl.report.figures import class_name
from pacpfl.report.folder import Run
from pacpfl.report.measures import CLIENT_CLASS_MEASURES, RANKED, number
from pacpfl.report.sentences import about_client, client_warnings
from pacpfl.report.style import COLOURS, looks
from pacpfl.report.tables import client_link

DASHES = {"-": "", "--": "6 3", "-.": "7 3 1.5 3", ":": "1.5 2.5"}
BANDS = (1, 2, 3, 4)  # of the six stored quantiles: 5, 25, 75 and 95%
BINS = 5  # of confidence, for one client: its few answers would leave twenty nearly empty
FAR = 1.5  # predictions further from the samples than this, in ranges of the samples, are cut off
Packed = dict[str, Any]  # becomes JSON
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BLOCK = 100  # clients whose panels travel together
MANY = 500  # clients from which on they do, and their curves have few points
FEW_POINTS = 12
MISSING = 64 * 64 - 1
STEPS = MISSING - 1
LETTERS = np.frombuffer(ALPHABET.encode(), np.uint8)


def panel_data(run: Run, judged: pd.DataFrame) -> Packed:
    """Collect all that the panels are drawn from."""
    styles, methods = looks(run.titles), list(run.titles)
    measures = CLIENT_CLASS_MEASURES if run.classification else RANKED
    table = run.clients.set_index(["method", "group", "client"])[[m.key for m in measures]]
    scores = dict(zip(table.index, table.to_numpy().tolist(), strict=True))
    kept = {group: (run.predictions(group), wrong_answers(run, group)) for group in run.groups}
    record = run.record.get("clients", {})
    drawn = fewer if len(judged) > MANY else (lambda found: found)
    shapes = {key: list(values.shape[1:]) for key, values in run.arrays.items()}
    classes = next((shape[0] for key, shape in shapes.items() if key.startswith("classes/")), 0)
    clients = []
    for client in judged.itertuples():
        who, (predictions, errors) = (client.group, client.name), kept[client.group]
        own = [scores.get((method, *who), [math.nan] * len(measures)) for method in methods]
        clients.append(
            _client(run, client)
            | {
                "leads": [round(lead, 5) if math.isfinite(lead) else None for lead, *_ in own],
                "scores": [list(map(number, values)) for values in own],
            }
            | (
                {"errors": errors.get(client.name, [])}
                if run.classification
                else {"bands": bands(drawn(predictions[client.name]), client.test, run.alone)}
            )
        )
    return {
        "main": methods.index(run.main),
        "alone": methods.index(run.alone) if run.alone else None,
        "methods": [
            {
                "title": run.titles[name],
                "colour": COLOURS.index(styles[name].colour),
                "dash": DASHES.get(str(styles[name].dash), "4 2 1 2"),
            }
            for name in methods
        ],
        "measures": [{"title": m.title, "goal": m.goal} for m in measures],
        "classes": [class_name(place, classes) for place in range(classes)],
        "image": next((s for key, s in shapes.items() if key.endswith("/errors/images")), []),
        "feature": str((record.get("features") or ["input"])[0]),
        "target": str(record.get("target", "target")),
        "clients": clients,
    }


def fewer(kept: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Thin what was kept of a client, evenly: of each length by itself."""
    return {key: values[..., thinned(values.shape[-1], FEW_POINTS)] for key, values in kept.items()}


def in_blocks(data: Packed) -> Packed:
    """Compress the clients of a large page in blocks, each opened when one of its clients is."""
    clients = data["clients"]
    if len(clients) <= MANY:
        return data
    starts = range(0, len(clients), BLOCK)
    texts = (embedded(clients[start : start + BLOCK]).encode() for start in starts)
    blocks = [base64.b64encode(zlib.compress(text, 9)).decode() for text in texts]
    rest = {key: value for key, value in data.items() if key != "clients"}
    return rest | {"block": BLOCK, "blocks": blocks}


def _client(run: Run, client: Any) -> Packed:
    who = client.group, client.name
    tables = [run.of_client(f"calibration/{method}", *who) for method in (run.main, run.alone)]
    answers = tables[0] if run.classification else None
    weights, members, classes = (
        run.of_client(key, *who) for key in ("weights", "responsibilities", "classes")
    )
    data: Packed = {
        "link": client_link(client),
        "name": client.name,
        "group": client.group,
        "kind": client.kind,
        "words": about_client(run, client, answers, weights),
        "warnings": client_warnings(run, client),
    }
    for key, shares in (("weights", weights), ("members", members)):
        if shares is not None:
            data[key] = [round(float(share), 4) for share in shares]
    if answers is not None:
        data["bins"] = reliability(answers)
    elif not run.classification and tables[0] is not None:
        data["calibration"] = [pack(curve, 0.0, 1.0) for curve in tables if curve is not None]
    return data if classes is None else data | {"classes": classes.tolist()}


def bands(kept: dict[str, np.ndarray], tested: int, alone: str | None) -> Packed | None:
    """Pack what was predicted, what came true, and what it was learned from, on one pair of axes."""
    if not kept:
        return None
    found = kept | ({"alone": kept[f"{alone}/mean"]} if f"{alone}/mean" in kept else {})
    low, high = _heights(found)
    shades = [found["quantiles"][place] for place in BANDS]
    packed: Packed = {
        "of": tested,
        "inside": int(((shades[0] <= found["y"]) & (found["y"] <= shades[-1])).sum()),
        "range": [low, high],
        "quantiles": [pack(values, low, high) for values in shades],
    }
    for key in ("y", "mean", "alone", "spread_y", "spread_mean", "train_y"):
        if key in found:
            packed[key] = pack(found[key], low, high)
    if "x" in found:
        packed["across"] = across = limits(found["x"], found["train_x"])
        packed |= {key: pack(found[key], *across) for key in ("x", "train_x")}
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


def reliability(table: np.ndarray) -> list[list[float]]:
    """Return [answers, right, mean confidence] for each of BINS bins of confidence that holds any."""
    merged = table.reshape(BINS, -1, 3).sum(axis=1)
    return [
        [int(count), int(np.rint(right)), round(float(sure / count), 4)]
        for count, right, sure in merged
        if count > 0
    ]


def wrong_answers(run: Run, group: str) -> dict[str, list[Packed]]:
    """Return the surest wrong answers of each client that has any, each with its image."""
    found: dict[str, list[Packed]] = {}
    keys, names = ("client", "labels", "answers", "confidence", "images"), run.names(group)
    columns = (run.arrays.get(f"panels/{group}/errors/{key}", ()) for key in keys)
    for owner, label, answer, sure, image in zip(*columns, strict=True):
        facts = {"label": int(label), "answer": int(answer), "sure": round(float(sure), 3)}
        found.setdefault(names[owner], []).append(facts | {"image": pack_image(image)})
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
