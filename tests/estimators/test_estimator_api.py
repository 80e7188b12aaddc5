"""The estimators among scikit-learn's tools, tables of all kinds, files, and mistakes."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from commands import called
from refusals import refused
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pacpfl
from pacpfl import PACPFLClassifier, PACPFLRegressor
from pacpfl.client import ClientModel, save
from pacpfl.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:PACPFL.* is fitted without groups")

QUICK = {
    "rounds": 0, "particles": 2, "mean": "linear", "kernel": "ard", "random_state": 0,
    "precision": "float64",
}  # fmt: skip


# scikit-learn's own checks of what an estimator is: none is excused. They ask about conventions, not
# about learning: no rounds of training, and what a client learns from its own rows alone is enough.
REGRESSOR = PACPFLRegressor(
    rounds=0, particles=1, mean="constant", kernel="ard", precision="float64"
)
CLASSIFIER = PACPFLClassifier(
    rounds=0, particles=1, networks=2, widths=(16,), initial_std=1.0,
    precision="float64", settings={"posterior.steps": 200, "posterior.learning_rate": 0.1},
)  # fmt: skip


@parametrize_with_checks([REGRESSOR, CLASSIFIER])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


def table(rows: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(8)
    x = random.normal(size=(rows, 3))
    y = x[:, 0] + 0.1 * random.normal(size=rows)
    return x, y, np.array(["a", "b", "c"])[np.arange(rows) % 3]


@pytest.fixture(scope="module")
def fitted() -> PACPFLRegressor:
    return PACPFLRegressor(**QUICK).fit(*table())


def test_frames_and_names_of_all_kinds_give_the_same(fitted):
    x, y, groups = table()
    expected = fitted.predict(x, groups)
    for frame in (pd.DataFrame(x, columns=["u", "v", "w"]), pl.DataFrame(x, ["u", "v", "w"])):
        column = type(frame)({"g": groups})["g"]
        model = PACPFLRegressor(**QUICK).fit(frame, y, groups=column)
        assert list(model.feature_names_in_) == ["u", "v", "w"]
        np.testing.assert_allclose(model.predict(frame, column), expected, rtol=1e-12)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[["v", "u", "w"]], column)
    numbers, mixed = np.arange(24) % 3, np.array(["b", "a", 10], object)[np.arange(24) % 3]
    for names in (numbers, numbers.tolist(), mixed, pd.Series(groups, dtype="category")):
        model = PACPFLRegressor(**QUICK).fit(x, y, names)
        np.testing.assert_allclose(model.predict(x, names), expected)
        assert model.clients_ == list(dict.fromkeys(names))  # in the order of appearance


def test_columns_of_true_and_false_keep_their_unit():
    x, y, groups = table()
    for kind in (pd.DataFrame, pl.DataFrame):
        frame = kind({"u": x[:, 0], "yes": x[:, 1] > 0})
        shared = PACPFLRegressor(**QUICK).fit(frame, y, groups)._shared
        assert shared.schema.unscaled == ("yes",)
        assert shared.scaler.x_std[1] == 1 != shared.scaler.x_std[0]


@pytest.mark.parametrize("groups", [[None] * 24, [float("nan")] * 24, [("a",)] * 24])
def test_a_name_that_no_file_could_hold_is_refused(groups):
    x, y, _ = table()
    holder = np.empty(24, object)
    holder[:] = groups
    fit = PACPFLRegressor(**QUICK).fit
    refused(lambda: fit(x, y, holder), "name clients by text or whole numbers")


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_it_stands_at_the_end_of_a_pipeline_without_and_with_routing(fitted):
    x, y, groups = table()
    expected = fitted.predict(x, groups)
    plain = make_pipeline(StandardScaler(), PACPFLRegressor(**QUICK))
    plain.fit(x, y, pacpflregressor__groups=groups)
    np.testing.assert_allclose(plain.predict(x, groups=groups), expected, rtol=1e-8)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), PACPFLRegressor(**QUICK)).fit(x, y, groups=groups)
        np.testing.assert_allclose(routed.predict(x, groups=groups), expected, rtol=1e-8)
        assert routed.score(x, y, groups=groups) == pytest.approx(fitted.score(x, y, groups))


def test_a_grid_search_over_rows_gives_every_fold_its_clients(routing):
    x, y, groups = table()
    halves = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(PACPFLRegressor(**QUICK), {"noise": [0.2, 2.0]}, cv=halves)
    search.fit(x, y, groups=groups)
    by_hand = [
        PACPFLRegressor(**QUICK, noise=0.2).fit(x[a], y[a], groups[a]).score(x[b], y[b], groups[b])
        for a, b in halves.split(x)
    ]
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(by_hand))
    assert search.best_params_ == {"noise": 0.2}
    assert search.best_estimator_.clients_ == ["a", "b", "c"]


def test_a_grid_search_over_clients_asks_the_prior(routing):
    x, y, groups = table()
    model = PACPFLRegressor(**QUICK, unseen_groups="prior").set_fit_request(groups=True)
    options = {"cv": GroupKFold(3), "refit": False, "error_score": "raise"}
    search = GridSearchCV(model, {"tau": [1.0]}, **options).fit(x, y, groups=groups)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    strict = GridSearchCV(model.set_params(unseen_groups="error"), {"tau": [1.0]}, **options)
    with pytest.raises(InputError, match="is not known"):
        strict.fit(x, y, groups=groups)


def test_cross_validation_without_groups_is_one_client():
    x, y, _ = table()
    held_out = cross_val_predict(PACPFLRegressor(**QUICK), x, y, cv=KFold(2))
    np.testing.assert_allclose(
        held_out[:12], PACPFLRegressor(**QUICK).fit(x[12:], y[12:]).predict(x[:12]), rtol=1e-10
    )


def test_an_unknown_client_is_an_error_with_the_way_out(fitted):
    x, y, groups = table()
    refused(
        lambda: fitted.predict(x[:2], ["a", "z"]), "'z' is not known; give it a model with pers"
    )
    refused(lambda: fitted.predict(x), "fitted with groups; give groups")
    refused(lambda: fitted.predict(x, groups[:3]), "give the client of every row")
    refused(lambda: fitted.update(x, y, group="z"), "there are 3: 'a', 'b', 'c'")
    refused(lambda: fitted.personalize(x, y, group="a"), "has a model already")
    forgetful = PACPFLRegressor(**QUICK).fit(x, y, groups).forget("b")
    assert forgetful.clients_ == ["a", "c"]
    refused(lambda: forgetful.predict(x[:1], ["b"]), "'b' is not known")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"particles": 0}, "particles must be at least 1"),
        ({"particles": "four"}, "particles must be a whole number"),
        ({"tau": float("nan")}, "tau must be above 0"),
        ({"tau": float("inf")}, "tau must be above 0"),
        ({"tau": object()}, "tau must be a number"),
        ({"kernel": "rbf"}, "kernel = 'rbf' is not known"),
        ({"standardize": "rows"}, "standardize = 'rows' is not one of"),
        ({"unseen_groups": "guess"}, "unseen_groups = 'guess' is not one of"),
        ({"settings": {"beta": 1.0}}, "such as train.batch"),
        ({"settings": {"train.betta": 1.0}}, "did you mean"),
        ({"settings": {"privacy.mode": "laplace"}}, "cannot use 'privacy.mode'; for the others"),
        ({"clients_per_round": 4}, "4 clients per round cannot be chosen from 3"),
        ({"random_state": -1}, "random_state"),
        ({"precision": "half"}, "precision = 'half' is not one of"),
    ],
)
def test_a_wrong_parameter_is_named_when_fitting(change, words):
    refused(lambda: PACPFLRegressor(**QUICK | change).fit(*table()), words)


def test_what_is_given_takes_the_place_of_auto():
    x, y, groups = table()
    options = {"random_state": 0, "rounds": 0, "settings": {"train.schedule": "constant"}}
    auto = PACPFLRegressor(**options).fit(x, y, groups).config_
    given = {"kernel": "ard", "batch": np.int64(5), "tau": np.float32(2)}
    model = clone(PACPFLRegressor(**options, **given)).fit(x, y, groups)
    train, prior = model.config_.train, model.config_.prior
    assert (prior.kernel, train.batch, train.tau) == ("ard", 5, 2.0)
    assert (prior.mean, train.rounds, train.hyper_std) == (
        auto.prior.mean, auto.train.rounds, auto.train.hyper_std,
    )  # fmt: skip
    assert train.schedule == "constant"


def test_clients_of_one_row_and_features_that_never_change():
    x, y, groups = table()
    groups = groups.astype(object)
    x[:, 2] = np.where(groups == "a", 1.0, 2.0)  # constant at each client
    groups[0] = "alone"
    model = PACPFLRegressor(**QUICK, standardize="client").fit(x, y, groups)
    mean, std = model.predict(x, groups, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    flat = PACPFLRegressor(**QUICK).fit(np.ones((4, 2)), np.full(4, 3.0))
    np.testing.assert_allclose(flat.predict(np.ones((1, 2))), 3.0, atol=0.5)


def test_a_client_with_too_many_rows_is_told_so(monkeypatch):
    monkeypatch.setattr("pacpfl.client.LARGEST_FACTOR", 1000)
    monkeypatch.setattr("pacpfl.client.PLAIN", 0)
    x, y, groups = table()
    model = PACPFLRegressor(**QUICK)
    refused(lambda: model.fit(x, y, groups).predict(x, groups), "too many for exact Gaussian")


def test_models_that_are_not_kept_are_made_again(monkeypatch):
    x, y, groups = table()
    model = PACPFLRegressor(**QUICK).fit(x, y, groups)
    expected = model.predict(x, groups)
    monkeypatch.setattr("pacpfl.estimators.base.KEPT", 1)
    np.testing.assert_array_equal(model.predict(x, groups), expected)
    assert sum("personal" in vars(owner) for owner in model._owners.values()) == 1
    assert len(pickle.dumps(model)) < 40_000  # rows and particles, no factors


def test_a_file_holds_all_there_is(tmp_path):
    x, y, groups = table()
    frame = pd.DataFrame(x, columns=["u", "v", "größe"])
    model = PACPFLRegressor(**QUICK, standardize="client", unseen_groups="prior")
    model.set_params(random_state=np.random.RandomState(3), mean_widths=np.array([4, 4]))
    model.fit(frame, y, groups).personalize(frame[:5], y[:5], group="späť")
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = PACPFLRegressor.load(path)
    kept = model.get_params() | {"random_state": None, "mean_widths": [4, 4]}
    assert loaded.get_params() == kept
    assert loaded.clients_ == ["a", "b", "c", "späť"]
    asked = [*groups[:20], "späť", "späť", "x", "x"]
    np.testing.assert_array_equal(loaded.predict(frame, asked), model.predict(frame, asked))
    assert loaded.config_ == model.config_
    loaded.update(frame[:2], y[:2], group="a").predict(frame, asked)
    model.save(path, groups=[])
    empty = PACPFLRegressor.load(path)
    assert empty.clients_ == []
    np.testing.assert_array_equal(empty.predict(frame), model.predict(frame, ["x"] * 24))


def test_files_that_are_damaged_or_of_another_kind_are_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    refused(lambda: PACPFLClassifier.load(path), r"load it with PACPFLRegressor\.load")
    path.write_bytes(path.read_bytes()[:-8])
    refused(lambda: PACPFLRegressor.load(path), r"is damaged .* make it again")
    refused(lambda: PACPFLRegressor.load(tmp_path / "nothing there"), "There is no file")
    refused(lambda: fitted.save(path / "model"), "could not be written")


def test_the_command_line_and_the_estimators_open_each_others_files(fitted, tmp_path, monkeypatch):
    """A model of one client as it is; one of several, and what a training shares, when asked so."""
    x, y, _ = table()
    asked = tmp_path / "asked.csv"
    pd.DataFrame(x[:3], columns=["x0", "x1", "x2"]).to_csv(asked, index=False)

    def predicted(file, *options):
        out = tmp_path / "out.csv"
        command = ("predict", "--model", str(file), "--data", str(asked), "--out", str(out))
        ended = called(*command, *options)
        return ended.errors if ended.code else pd.read_csv(out)["mean"].to_numpy()

    monkeypatch.setattr("pacpfl.engine.runtime.configure", lambda *_: None)
    one, several = tmp_path / "one.safetensors", tmp_path / "several.safetensors"
    fitted.save(one, groups=["b"])
    fitted.save(several)
    expected = fitted.predict(x[:3], ["b"] * 3)
    np.testing.assert_allclose(predicted(one), expected, rtol=1e-12)
    np.testing.assert_allclose(predicted(several, "--client", "b"), expected, rtol=1e-12)
    assert "choose one with --client NAME" in predicted(several)
    frame = pd.DataFrame(x, columns=["x0", "x1", "x2"])
    opened = pacpfl.load_model(several, "b").predict(x[:3]).mean
    np.testing.assert_allclose(opened, expected, rtol=1e-12)

    shared = pacpfl.client.load_shared(one)
    ours = tmp_path / "ours.safetensors"
    ClientModel.condition(shared, "new", x[:9], y[:9]).save(ours)
    save(tmp_path / "prior.safetensors", shared)
    loaded = PACPFLRegressor.load(ours)
    later = PACPFLRegressor.load(tmp_path / "prior.safetensors")
    later.personalize(frame[:9], y[:9], group="new")
    here = pacpfl.load_model(ours).predict(x[:3]).mean
    for estimator in (loaded, later):
        np.testing.assert_allclose(estimator.predict(frame[:3], ["new"] * 3), here, rtol=1e-12)
    assert loaded.get_params()["kernel"] == "ard"
    assert clone(loaded).fit(frame[:3], y[:3]).config_.prior == loaded.config_.prior
    refused(lambda: PACPFLClassifier.load(ours), "holds a PACPFLRegressor")


def test_a_notebook_shows_the_diagram_and_the_clients(fitted):
    html = fitted._repr_mimebundle_()["text/html"]
    assert "<td>a</td><td>8</td><td>trained</td>" in html
    assert "3 clients; 2 particles" in html
    x, y, _ = table()
    names = [f"<b>{number}" for number in range(24)]
    many = PACPFLRegressor(**QUICK).fit(x, y, names)._repr_html_()
    assert "&lt;b&gt;0" in many and "<b>0" not in many and "and 12 more" in many
    shown = PACPFLRegressor()._repr_html_().partition("</style>")[2].lower()
    assert "clients" not in shown.replace("clients_per_round", "")


def test_progress_is_shown_where_it_is_wanted(capsys):
    x, y, groups = table()
    PACPFLRegressor(**QUICK | {"rounds": 3, "verbose": True}).fit(x, y, groups)
    assert "3/3" in capsys.readouterr().out
