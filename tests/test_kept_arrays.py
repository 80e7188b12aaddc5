"""What a run keeps of every client for the page, against the predictions it was made from."""

from __future__ import annotations

import numpy as np
import pytest

from pacpfl import folder
from pacpfl.engine.evaluate import Evaluation
from pacpfl.folder import MethodResult, figure_arrays, main_method
from pacpfl.types import Client, Federation, Samples

RANDOM = np.random.default_rng(3)
SIZES = (5, 200, 12)  # test samples


def clients(features: int) -> tuple[Client, ...]:
    def samples(count: int) -> Samples:
        return Samples(RANDOM.normal(size=(count, features)), RANDOM.normal(size=count))

    return tuple(
        Client(
            f"client {n}", samples(4 + n), later=samples(2) if n == 1 else None, test=samples(size)
        )
        for n, size in enumerate(SIZES)
    )


def evaluation(people: tuple[Client, ...]) -> Evaluation:
    tests = [client.test for client in people if client.test is not None]
    means = [RANDOM.normal(size=len(test)) for test in tests]
    quantiles = [np.sort(RANDOM.normal(size=(6, len(test))), axis=0) for test in tests]
    rows = [dict.fromkeys(("rsmse", "ce", "nll"), 0.5) for _ in tests]
    return Evaluation(rows, np.zeros((len(tests), 20)), means, means, quantiles)


@pytest.mark.parametrize("features", [1, 3])
def test_every_client_is_kept_and_found_again(features: int) -> None:
    people = clients(features)
    main, alone = evaluation(people), evaluation(people)
    arrays = folder.number_panels(people, main, {"ridge": alone}, 40)
    offsets = arrays["offsets"]
    assert offsets.tolist() == [0, 5, 45, 57]
    for index, client in enumerate(people):
        assert client.test is not None
        part = slice(offsets[index], offsets[index + 1])
        y = client.test.y
        if features == 1:
            # Rows are recognised by their input, which no two share.
            x = arrays["x"][part]
            assert (np.diff(x) >= 0).all()
            chosen = [int(np.abs(client.test.x[:, 0] - value).argmin()) for value in x]
            assert {client.test.x.min(), client.test.x.max()} == {
                client.test.x[chosen[0], 0], client.test.x[chosen[-1], 0]
            }  # fmt: skip
            learned = arrays["train_offsets"]
            own = slice(learned[index], learned[index + 1])
            np.testing.assert_allclose(arrays["train_y"][own], client.personal.y, rtol=1e-6)
        else:
            chosen = list(range(min(len(y), 40)))
            spread = np.abs(arrays["spread_y"][part][:, None] - y[None, :]).argmin(1)
            assert spread[0] == 0 and spread[-1] == len(y) - 1
            assert np.diff(spread).min() >= 1 and np.diff(spread).max() <= 6
            np.testing.assert_allclose(
                arrays["spread_mean"][part], main.means[index][spread], rtol=1e-6
            )
            assert "x" not in arrays and "train_y" not in arrays
        np.testing.assert_allclose(arrays["y"][part], y[chosen], rtol=1e-6)
        np.testing.assert_allclose(arrays["mean"][part], main.means[index][chosen], rtol=1e-6)
        np.testing.assert_allclose(
            arrays["ridge/mean"][part], alone.means[index][chosen], rtol=1e-6
        )
        np.testing.assert_allclose(
            arrays["quantiles"][:, part], main.quantiles[index][:, chosen], rtol=1e-6
        )


@pytest.mark.parametrize(("count", "points"), [(1, 120), (833, 120), (1000, 100), (100_000, 16)])
def test_many_clients_keep_fewer_points(count: int, points: int) -> None:
    assert folder.points_each(count) == points


def test_clients_beyond_the_limit_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "CLIENTS", 2)
    people = clients(1)
    arrays = folder.number_panels(people, evaluation(people), {}, 40)
    assert arrays["offsets"].tolist() == [0, 5, 45, 45]
    assert arrays["train_offsets"].tolist() == [0, 4, 11, 11]
    assert len(arrays["y"]) == 45


def test_what_is_saved_is_the_other_methods_loss_less_ones_own() -> None:
    people = clients(1)
    main, alone = evaluation(people), evaluation(people)
    table = folder.gains(people, main, alone)
    for index, client in enumerate(people):
        assert client.test is not None
        saved = [
            (float(b) - float(t)) ** 2 - (float(a) - float(t)) ** 2
            for a, b, t in zip(main.means[index], alone.means[index], client.test.y, strict=True)
        ]
        expected = (len(saved), sum(saved), sum(s * s for s in saved))
        np.testing.assert_allclose(table[index], expected, rtol=1e-9)


def answers(labels: list[int], named: list[int], sure: float) -> np.ndarray:
    chances = np.full((len(labels), 3), (1 - sure) / 2)
    chances[np.arange(len(labels)), named] = sure
    return np.log(chances)


def test_classes_and_wrong_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [[0, 0, 1, 2], [2, 2]]
    named = [[0, 1, 1, 1], [2, 2]]
    images = [RANDOM.uniform(size=(len(own), 4)) for own in labels]
    people = tuple(
        Client(str(n), Samples(x, np.zeros(len(x))), test=Samples(x, np.array(own, float)))
        for n, (own, x) in enumerate(zip(labels, images, strict=True))
    )
    chances = [answers(own, said, 0.6) for own, said in zip(labels, named, strict=True)]
    chances[0][3] = np.log([0.05, 0.9, 0.05])  # the surest mistake
    main = Evaluation([{}, {}], np.zeros((2, 20, 3)), log_probabilities=chances)
    found = folder.answered(people, main)
    assert folder.class_counts(found, 2).tolist() == [
        [[2, 1], [1, 1], [1, 0]], [[0, 0], [0, 0], [2, 2]]
    ]  # fmt: skip
    wrong = folder.wrong_answers(found, (2, 2), 2)
    assert wrong["client"].tolist() == [0, 0]
    assert wrong["labels"].tolist() == [2, 0]
    assert wrong["answers"].tolist() == [1, 1]
    np.testing.assert_allclose(wrong["confidence"], [0.9, 0.6], rtol=1e-6)
    np.testing.assert_array_equal(
        wrong["images"], np.rint(255 * images[0][[3, 1]]).reshape(2, 2, 2)
    )
    monkeypatch.setattr(folder, "PIXELS", 9)  # room for one image of each of two clients
    assert len(folder.wrong_answers(found, (2, 2), 2)["images"]) == 1
    monkeypatch.setattr(folder, "PIXELS", 7)
    assert folder.wrong_answers(found, (2, 2), 2) == {}
    other = Evaluation([{}, {}], main.calibration, log_probabilities=[
        answers(labels[0], [0, 0, 1, 1], 0.6), answers(labels[1], [0, 2], 0.6)
    ])  # fmt: skip
    saved = folder.gains(people, main, other)
    assert saved.tolist() == [[4, -1, 1], [2, 1, 1]]


def test_the_page_draws_the_method_it_is_about() -> None:
    """Bands belong to the method with particles, whichever method was trained first."""
    people = clients(1)
    first, second = evaluation(people), evaluation(people)
    results = {
        "fedavg": MethodResult({"title": "FedAvg"}, {"loss": np.ones(3)}, {"existing": first}),
        "pacpfl": MethodResult(
            {"title": "PAC-PFL", "particles": 2},
            {"log_evidence": np.zeros(4)},
            {"existing": second},
        ),
        "vanilla": MethodResult({"title": "GP"}, {}, {"existing": first}),
    }
    arrays = figure_arrays(Federation("f", people), results)
    assert arrays["curve/log_evidence"].shape == (4,)
    place = np.argsort(people[0].test.x[:, 0])  # type: ignore[union-attr]
    np.testing.assert_allclose(
        arrays["panels/existing/mean"][:5], second.means[0][place], rtol=1e-6
    )
    np.testing.assert_allclose(
        arrays["panels/existing/vanilla/mean"][:5], first.means[0][place], rtol=1e-6
    )
    assert "gain/vanilla/existing" in arrays and "gain/fedavg/existing" not in arrays
    assert main_method({"fedavg": {}, "pacpfl": {"particles": 2}}) == "pacpfl"
    assert main_method({"fedavg": {}, "maml": {}}) == "fedavg"
