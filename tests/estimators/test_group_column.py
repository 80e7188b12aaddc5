"""X carries the client: scikit-learn's tools give what a loop written by hand gives."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from refusals import refused
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import r2_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    cross_val_predict,
    learning_curve,
)

from pacpfl import NewClientSplit, PACPFLClassifier, PACPFLRegressor, new_client_scores

QUICK = {
    "rounds": 0, "particles": 2, "mean": "linear", "kernel": "ard", "random_state": 0,
    "precision": "float64", "unseen_groups": "prior",
}  # fmt: skip

random = np.random.default_rng(8)
PLACES = np.array(["Basel", "Chur", "Genf", "Olten"], object)[np.arange(48) % 4]
NUMBERS = random.normal(size=(48, 2))
Y = NUMBERS[:, 0] + (PLACES == "Chur") + 0.1 * random.normal(size=48)
FRAME = pd.DataFrame({"u": NUMBERS[:, 0], "place": PLACES, "v": NUMBERS[:, 1]})
CARRIERS = {
    "frame": (FRAME, "place"),
    "number of a frame": (FRAME, 1),
    "polars": (pl.DataFrame(FRAME.to_dict("list")), "place"),
    "objects": (FRAME.to_numpy(), 1),
    "codes": (np.column_stack([NUMBERS[:, 0], pd.factorize(PLACES)[0], NUMBERS[:, 1]]), 1),
}  # fmt: skip


def by_hand(train: np.ndarray, test: np.ndarray, **changes: object) -> np.ndarray:
    model = PACPFLRegressor(**QUICK | changes).fit(NUMBERS[train], Y[train], PLACES[train])
    return model.predict(NUMBERS[test], PLACES[test])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_kind_of_table_carries_its_clients(carrier):
    X, column = CARRIERS[carrier]
    model = PACPFLRegressor(**QUICK, group_column=column).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), by_hand(np.arange(48), np.arange(48)), rtol=1e-10)
    rows = X[X["place"] == "Genf"] if carrier == "frame" else None
    if rows is not None:
        model.forget("Genf").personalize(rows[:4], Y[PLACES == "Genf"][:4])
        assert model.clients_ == ["Basel", "Chur", "Olten", "Genf"]
        refused(lambda: model.personalize(X, Y), "rows of 4 clients; give those of one")


@pytest.mark.parametrize(
    "folds", [LeaveOneGroupOut(), GroupKFold(2), KFold(3, shuffle=True, random_state=1),
              NewClientSplit(rows=3, n_splits=2, random_state=0)], ids=lambda f: type(f).__name__,
)  # fmt: skip
def test_cross_validation_is_the_loop_by_hand(folds):
    expected, asked = np.zeros(48), []
    groups = None if isinstance(folds, KFold) else PLACES
    for train, test in folds.split(NUMBERS, Y, groups):
        expected[test] = by_hand(train, test)
        asked.append(test)
    asked = np.concatenate(asked)
    model = PACPFLRegressor(**QUICK, group_column="place")
    if len(asked) == 48:
        found = cross_val_predict(model, FRAME, Y, groups=groups, cv=folds)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    else:  # cross_val_predict wants every row to be asked about
        assert len({*asked}) == len(asked) == 48 - 4 * 3
        scores = GridSearchCV(model, {"tau": [1.0]}, cv=folds, refit=False)
        by_fold = [r2_score(Y[t], expected[t]) for _, t in folds.split(NUMBERS, Y, PLACES)]
        found = scores.fit(FRAME, Y, groups=PLACES).cv_results_["mean_test_score"][0]
        assert found == pytest.approx(np.mean(by_fold))


def test_searches_curves_and_explanations_are_loops_by_hand():
    model = PACPFLRegressor(**QUICK, group_column="place")
    folds = KFold(2, shuffle=True, random_state=1)
    search = GridSearchCV(model, {"noise": [0.2, 2.0]}, cv=folds).fit(FRAME, Y)
    for noise, score in zip([0.2, 2.0], search.cv_results_["mean_test_score"], strict=True):
        scores = [r2_score(Y[b], by_hand(a, b, noise=noise)) for a, b in folds.split(Y)]
        assert score == pytest.approx(np.mean(scores))

    sizes, _, scores = learning_curve(model, FRAME, Y, train_sizes=[12, 24], cv=folds)
    for size, row in zip(sizes, scores, strict=True):
        hand = [r2_score(Y[b], by_hand(a[:size], b)) for a, b in folds.split(Y)]
        np.testing.assert_allclose(row, hand)

    fitted = model.fit(FRAME, Y)
    found = permutation_importance(fitted, FRAME, Y, n_repeats=2, random_state=5)
    assert found.importances.shape == (3, 2)
    draws = np.random.RandomState(np.random.RandomState(5).randint(np.iinfo(np.int32).max + 1))
    mixed = FRAME.copy()
    order = np.arange(48)
    draws.shuffle(order)
    mixed["place"] = PLACES[order]
    loss = fitted.score(FRAME, Y) - fitted.score(mixed, Y)
    assert found.importances[1, 0] == pytest.approx(loss) and loss > 0.05

    at = partial_dependence(fitted, FRAME, ["u"], grid_resolution=3)
    for value, average in zip(at["grid_values"][0], at["average"][0], strict=True):
        moved = np.column_stack([np.full(48, value), NUMBERS[:, 1]])
        hand = PACPFLRegressor(**QUICK).fit(NUMBERS, Y, PLACES).predict(moved, PLACES)
        assert average == pytest.approx(hand.mean())


def test_a_newcomers_rows_take_no_part_in_the_training():
    model = PACPFLRegressor(**QUICK, group_column="place")
    table = new_client_scores(model, FRAME, Y, rows=5, n_splits=None, shuffle=False)
    assert {*table["client"]} == {*PLACES} and not hasattr(model, "particles_")
    for _, row in table.iterrows():
        own = np.flatnonzero(row["client"] == PLACES)
        others = np.flatnonzero(row["client"] != PLACES)
        hand = PACPFLRegressor(**QUICK).fit(NUMBERS[others], Y[others], PLACES[others])
        hand.personalize(NUMBERS[own[:5]], Y[own[:5]], group=row["client"])
        error = hand.predict(NUMBERS[own[5:]], PLACES[own[5:]]) - Y[own[5:]]
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
        assert (row["rows"], row["asked"]) == (5, 7)
    classes = PACPFLClassifier(rounds=1, networks=2, widths=(4,), random_state=0)
    settings = {"posterior.steps": 5}
    table = new_client_scores(
        classes.set_params(settings=settings), NUMBERS, Y > 0, PLACES, rows=4, n_splits=1 + 1
    )
    assert table["accuracy"].between(0, 1).all() and len(table) == 4


def test_mistakes_are_named():
    model = PACPFLRegressor(**QUICK, group_column="plaza")
    refused(lambda: model.fit(FRAME, Y), "no column 'plaza', which group_column names")
    refused(lambda: model.set_params(group_column=7).fit(NUMBERS, Y), "no column 7")
    refused(lambda: next(NewClientSplit(rows=12).split(NUMBERS, Y, PLACES)), "lower rows")
    refused(lambda: next(NewClientSplit().split(NUMBERS, Y)), "needs groups")
    with pytest.warns(UserWarning, match="fitted without groups"):
        PACPFLRegressor(**QUICK).fit(NUMBERS, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PACPFLRegressor(**QUICK).fit(NUMBERS, Y, PLACES)


def test_text_and_gaps_are_read_as_the_command_line_reads_them(tmp_path):
    rough = FRAME.assign(roof=np.where(NUMBERS[:, 1] > 0, "flat", "steep"))
    rough.loc[3, "v"] = np.nan
    rough.loc[5, "roof"] = None
    model = PACPFLRegressor(**QUICK, group_column="place").fit(rough, Y)
    assert list(model.feature_names_in_) == ["u", "v", "roof=flat", "roof=steep"]
    clean = rough.assign(
        v=rough["v"].fillna(rough["v"].median()),
        **{f"roof={kind}": (rough["roof"] == kind).astype(bool) for kind in ("flat", "steep")},
    ).drop(columns="roof")
    expected = PACPFLRegressor(**QUICK, group_column="place").fit(clean, Y).predict(clean)
    np.testing.assert_allclose(model.predict(rough), expected, rtol=1e-10)
    model.save(tmp_path / "model.safetensors")
    loaded = PACPFLRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(loaded.predict(rough), expected, rtol=1e-10)
    dates = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=48)})
    refused(lambda: PACPFLRegressor(**QUICK).fit(dates, Y, PLACES), "all hold dates")
