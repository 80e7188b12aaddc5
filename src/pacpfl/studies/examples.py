"""Single test samples that the page of a classification run shows, with what was said about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pacpfl.engine.evaluate import Evaluation
from pacpfl.types import Client

EACH = 4  # samples of each kind
SURE, DOUBTED, WRONG = range(3)  # kinds of answers


def examples(
    group: str,
    clients: Sequence[Client],
    evaluation: Evaluation,
    shape: tuple[int, ...],
    each: int = EACH,
) -> dict[str, np.ndarray]:
    """Arrays `examples/GROUP/...` of docs/run-folder.md.

    Of the answers that are right, some from the surer half and the least sure ones; of those that are
    wrong, the surest. No sample is shown twice, and one without finite probabilities never.
    """
    samples = [client.test for client in clients if client.test is not None]
    if len(shape) != 2 or not samples:
        return {}
    x, y = (
        np.concatenate([s.x for s in samples]),
        np.concatenate([s.y for s in samples]).astype(int),
    )
    owner = np.repeat(np.arange(len(samples)), [len(s) for s in samples])
    probabilities = np.exp(np.concatenate(evaluation.log_probabilities))
    surest_first = np.argsort(-probabilities.max(1), kind="stable")
    surest_first = surest_first[np.isfinite(probabilities).all(1)[surest_first]]
    right = (probabilities.argmax(1) == y)[surest_first]
    rights, wrongs = surest_first[right], surest_first[~right]
    sure = rights[
        np.unique(np.linspace(0, max(len(rights) // 2 - 1, 0), each).astype(int))[: len(rights)]
    ]
    rest = rights[~np.isin(rights, sure)]
    chosen = {SURE: sure, DOUBTED: rest[::-1][:each], WRONG: wrongs[:each]}
    rows = np.concatenate(list(chosen.values()))
    if not len(rows):
        return {}
    kind = np.repeat(list(chosen), [len(found) for found in chosen.values()])
    place = f"examples/{group}"
    return {
        f"{place}/images": np.rint(255 * x[rows]).astype(np.uint8).reshape(-1, *shape),
        f"{place}/labels": y[rows].astype(np.int32),
        f"{place}/probabilities": probabilities[rows].astype(np.float32),
        f"{place}/client": owner[rows].astype(np.int32),
        f"{place}/kind": kind.astype(np.int32),
    }
