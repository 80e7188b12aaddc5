"""The classifier answers with probabilities, and knows its classes by name."""

from __future__ import annotations

import numpy as np
import pytest

from pacpfl import PACPFLClassifier
from pacpfl.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:PACPFL.* is fitted without groups")

NAMES = np.array(["lynx", "owl", "vole"])
ROUNDS, SEED = 40, 4
OPTIONS = {
    "particles": 2,
    "rounds": ROUNDS,
    "learning_rate": 0.05,
    "widths": (6,),
    "networks": 2,
    "precision": "float64",
    "random_state": SEED,
    "standardize": "global",
    "settings": {"train.schedule": "constant", "posterior.steps": 5},
}


def table(rows: int = 45, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three heaps; the client `two` calls the first and the second by each other's name."""
    random = np.random.default_rng(seed)
    numbers = np.arange(rows) % 3
    groups = np.where(np.arange(rows) % 5 < 3, "one", "two")
    x = random.normal(size=(rows, 2)) * 0.5 + np.array([[0, 4], [4, 0], [-4, -4]])[numbers]
    swapped = np.where((groups == "two") & (numbers < 2), 1 - numbers, numbers)
    return x, NAMES[swapped], groups


@pytest.fixture(scope="module")
def fitted() -> PACPFLClassifier:
    return PACPFLClassifier(**OPTIONS).fit(*table())


def test_probabilities_sum_to_one_and_name_the_class(fitted):
    x, y, groups = table()
    probabilities = fitted.predict_proba(x, groups)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    logs = fitted.predict_log_proba(x, groups)
    np.testing.assert_allclose(np.log(probabilities), logs, atol=1e-9)
    assert list(fitted.classes_) == list(NAMES)
    predicted = fitted.predict(x, groups)
    assert (predicted == NAMES[probabilities.argmax(1)]).all()
    assert fitted.score(x, y, groups) == pytest.approx(np.mean(predicted == y))


def test_it_learns_what_clients_share():
    seen, later = (
        [part[of == "one"] for part in (x, y, of)] for x, y, of in (table(60), table(60, 2))
    )
    model = PACPFLClassifier(**OPTIONS | {"rounds": 150}).fit(*seen)
    assert model.score(*later) > 0.95


def test_a_new_client_and_more_rows_of_it(tmp_path):
    x, y, _ = table(45, seed=3)
    model = PACPFLClassifier(**OPTIONS | {"rounds": 0}).fit(*table())
    model.personalize(x[:6], y[:6], group=7)
    before = model.predict_proba(x, [7] * 45)
    model.update(x[6:], y[6:], group=7)
    after = model.predict_proba(x, [7] * 45)
    assert np.abs(after - before).max() > 1e-3
    at_once = PACPFLClassifier(**OPTIONS | {"rounds": 0}).fit(*table())
    at_once.personalize(x, y, group=7)
    np.testing.assert_allclose(after, at_once.predict_proba(x, [7] * 45), rtol=1e-8)
    model.save(tmp_path / "model", groups=[7, "two"])
    loaded = PACPFLClassifier.load(tmp_path / "model")
    assert loaded.clients_ == [7, "two"]
    np.testing.assert_array_equal(loaded.predict_proba(x, [7] * 45), after)
    assert loaded.classes_.dtype == model.classes_.dtype


def test_classes_that_cannot_be_used_are_named(fitted):
    x, _, groups = table()
    with pytest.raises(InputError, match="'bear' was not among those fitted"):
        fitted.personalize(x[:2], ["lynx", "bear"], group="late")
    assert "late" not in fitted.clients_
    with pytest.raises(InputError, match="one class, 'owl'"):
        PACPFLClassifier(**OPTIONS).fit(x, ["owl"] * 45, groups)


@pytest.mark.parametrize(
    ("labels", "words"), [([False, True], ("false", "true")), ([1.0, 2.0], ("1", "2"))]
)
def test_the_command_line_reads_its_classes(labels, words):
    """It writes them as cells of a table are read."""
    x = table()[0]
    model = PACPFLClassifier(**OPTIONS | {"rounds": 0}).fit(x, np.array(labels)[np.arange(45) % 2])
    assert model._shared.schema.classes == words
    assert model.predict(x[:1]).dtype == np.array(labels).dtype


def test_without_data_the_prior_answers():
    x, _, _ = table()
    model = PACPFLClassifier(**OPTIONS | {"unseen_groups": "prior"}).fit(*table())
    probabilities = model.predict_proba(x[:3], ["stranger"] * 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert not np.allclose(probabilities, model.predict_proba(x[:3], ["one"] * 3))
