"""What a run keeps of single clients and samples for its page (docs/run-folder.md).

Clients stand one after the other in long arrays; `offsets` says where each one begins. A client
keeps at most POINTS of its test samples, fewer where there are many clients, so that neither the
folder nor the page grows without end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pacpfl.engine.evaluate import Evaluation
from pacpfl.methods.registry import named
from pacpfl.types import Client, Samples

POINTS = 120  # test samples kept of one client,
FEWEST = 16  # of each client however many there are,
BUDGET = 100_000  # and of all clients together
CLIENTS = 5_000  # of a group; later ones keep their row in clients.csv and no predictions
ERRORS = 4  # images of wrong answers kept of one client,
PIXELS = 1_000_000  # and pixels of all such images together
EACH = 4  # single test samples shown of each kind of answer
SURE, DOUBTED, WRONG = range(3)  # kinds of answers


def points_each(clients: int) -> int:
    """Return how many test samples a client keeps when there are so many clients in all."""
    return int(np.clip(BUDGET // max(clients, 1), FEWEST, POINTS))


def spread(count: int, at_most: int) -> np.ndarray:
    """Return evenly spread places: all of them when there are few, the first and the last always."""
    if count <= at_most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, at_most).round().astype(int))


def losses(client: Client, evaluation: Evaluation, index: int) -> np.ndarray:
    """Return the loss on each test sample: the squared error, or whether it is classified wrongly."""
    assert client.test is not None
    if evaluation.log_probabilities:
        answers = np.asarray(evaluation.log_probabilities[index]).argmax(1)
        return (answers != client.test.y.astype(int)).astype(float)
    return (np.asarray(evaluation.means[index], float) - client.test.y) ** 2


def gains(
    clients: Sequence[Client], main: Evaluation, others: dict[str, Evaluation]
) -> dict[str, np.ndarray]:
    """Sum up what the main method saves on each test sample against every other method.

    Saved is the loss of METHOD less the loss of the main method on the same sample; n, sum and sum
    of squares are what a paired test needs.
    """
    table = {}
    for name, other in others.items():
        rows = []
        for index, client in enumerate(clients):
            saved = losses(client, other, index) - losses(client, main, index)
            rows.append((len(saved), saved.sum(), (saved**2).sum()))
        table[name] = np.array(rows)
    return table


def alone_evaluations(
    groups: dict[str, dict[str, Evaluation]], group: str
) -> dict[str, Evaluation]:
    """Return the evaluations of the methods that go alone and served this group."""
    return {
        name: found[group]
        for name, found in groups.items()
        if name in named(learns="alone") and group in found
    }


def number_panels(
    group: str,
    clients: Sequence[Client],
    main: Evaluation,
    others: dict[str, Evaluation],
    points: int,
) -> dict[str, np.ndarray]:
    """Return the arrays `panels/GROUP/...` where the target is a number."""
    kept: list[dict[str, np.ndarray]] = []
    for index, client in enumerate(clients[:CLIENTS]):
        assert client.test is not None
        kept.append(_kept(client.test, client.personal, main, others, index, points))
    place = f"panels/{group}"
    arrays = {
        f"{place}/{key}": np.concatenate([one[key] for one in kept], axis=-1).astype(np.float32)
        for key in kept[0]
    }
    missing = len(clients) - len(kept)
    arrays[f"{place}/offsets"] = _offsets([len(one["y"]) for one in kept], missing)
    if "train_y" in kept[0]:
        sizes = [len(one["train_y"]) for one in kept]
        arrays[f"{place}/train_offsets"] = _offsets(sizes, missing)
    return arrays


def _kept(
    test: Samples,
    own: Samples,
    main: Evaluation,
    others: dict[str, Evaluation],
    index: int,
    points: int,
) -> dict[str, np.ndarray]:
    """One client. With one feature: evenly spread over it, and what it learned from. With several:
    the first samples in a row, for order may mean time, and others spread over all of them."""
    mean = np.asarray(main.means[index])
    one_feature = test.x.shape[1] == 1
    even = spread(len(test), points)
    shown = np.argsort(test.x[:, 0], kind="stable")[even] if one_feature else np.arange(len(even))
    found = {
        "y": test.y[shown],
        "mean": mean[shown],
        "quantiles": np.asarray(main.quantiles[index])[:, shown],
        **{f"{name}/mean": np.asarray(e.means[index])[shown] for name, e in others.items()},
    }
    if one_feature:
        learned = spread(len(own), points)
        found |= {"x": test.x[shown, 0], "train_x": own.x[learned, 0], "train_y": own.y[learned]}
    else:
        found |= {"spread_y": test.y[even], "spread_mean": mean[even]}
    return found


def _offsets(sizes: Sequence[int], missing: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(list(sizes) + [0] * missing)]).astype(np.int32)


def class_panels(
    group: str,
    clients: Sequence[Client],
    main: Evaluation,
    shape: tuple[int, ...],
    clients_in_all: int,
) -> dict[str, np.ndarray]:
    """`classes/GROUP` and `panels/GROUP/errors/...`: how many of each class are named rightly, and
    images of the surest wrong answers."""
    classes = main.log_probabilities[0].shape[1]
    counts = np.zeros((len(clients), classes, 2), np.int32)
    side = int(np.prod(shape)) if len(shape) == 2 else 0
    each = min(ERRORS, PIXELS // (side * clients_in_all)) if side else 0
    errors: list[tuple[int, int, int, float]] = []
    images: list[np.ndarray] = []
    for index, client in enumerate(clients):
        assert client.test is not None
        labels = client.test.y.astype(int)
        probabilities = np.exp(np.asarray(main.log_probabilities[index]))
        answers, sure = probabilities.argmax(1), probabilities.max(1)
        counts[index, :, 0] = np.bincount(labels, minlength=classes)
        counts[index, :, 1] = np.bincount(labels[answers == labels], minlength=classes)
        wrong = np.flatnonzero((answers != labels) & np.isfinite(sure))
        for row in wrong[np.argsort(-sure[wrong], kind="stable")][:each]:
            errors.append((index, int(labels[row]), int(answers[row]), float(sure[row])))
            images.append(np.rint(255 * np.clip(client.test.x[row], 0, 1)).astype(np.uint8))
    place = f"panels/{group}"
    arrays = {f"classes/{group}": counts}
    if errors:
        owner, label, answer, sureness = zip(*errors, strict=True)
        arrays |= {
            f"{place}/errors/images": np.stack(images).reshape(-1, *shape),
            f"{place}/errors/client": np.array(owner, np.int32),
            f"{place}/errors/labels": np.array(label, np.int32),
            f"{place}/errors/answers": np.array(answer, np.int32),
            f"{place}/errors/confidence": np.array(sureness, np.float32),
        }
    return arrays


def examples(
    group: str,
    clients: Sequence[Client],
    evaluation: Evaluation,
    shape: tuple[int, ...],
    each: int = EACH,
) -> dict[str, np.ndarray]:
    """Choose the test samples that are shown singly: the arrays `examples/GROUP/...`.

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
