"""The classification study: what is built, what is run, what is kept, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl import memory
from pacpfl.build import build_federation
from pacpfl.config import Config, identity, override
from pacpfl.data.store import from_clients
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.excerpts import DOUBTED, SURE, WRONG, examples
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.models import build_model
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.registry import build_method, entry
from pacpfl.priors.bnn import BNNPrior
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.networks import CNN, MLP
from pacpfl.run import Watcher, run_method
from pacpfl.types import Client, Data, Federation, Probabilities, Samples
from reproduction import classification, table
from reproduction.classification import DATASETS, PUBLISHED, ROWS, cells, run_cell, run_cells
from reproduction.classification_summary import describe, summary
from reproduction.outcomes import Cell, Kept, Progress, read_outcomes
from reproduction.study import write_study
from reproduction.table import Outcome, rows

TINY = (
    *("data.clients=3", "data.new_clients=2", "data.samples=6", "network.kind=mlp"),
    *("network.widths=[6]", "train.rounds=3", "train.particles=2", "train.clients_per_round=2"),
    *("posterior.networks=2", "posterior.steps=2", "alone.steps=2", "alone.networks=2"),
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight writers with thirty images of 5 x 4 pixels each; the class is the row with ink."""
    random = np.random.default_rng(0)
    labels = random.integers(5, size=240)
    pixels = random.integers(60, size=(240, 5, 4)).astype(np.uint8)
    pixels[np.arange(240), labels] += 150
    path = tmp_path_factory.mktemp("images") / "writers.npz"
    np.savez(path, images=pixels, labels=labels, writer=np.repeat(np.arange(8), 30), classes=5)
    return path


@pytest.fixture(scope="module")
def tiny(images: Path) -> Callable[..., list[Cell]]:
    """The study's runs on those images with one seed, for the rows that are named."""

    def make(*names: str, settings: tuple[str, ...] = ()) -> list[Cell]:
        every = cells([0], {"femnist": images}, settings=(*TINY, *settings))
        return [c for c in every if c.dataset == "femnist-20" and c.name in names]

    return make


# ---------------------------------------------------------------------------------------- building


def federation(classes: int | None = 5, shape: tuple[int, ...] | None = (5, 4)) -> Federation:
    random = np.random.default_rng(1)

    def samples(count: int) -> Samples:
        x = random.uniform(size=(count, 20)).astype(np.float32)
        return Samples(x, (np.arange(count) % 5).astype(np.float32))

    def client(name: str) -> Client:
        return Client(name, samples(7), test=samples(4))

    return Federation(
        "toy", (client("a"), client("b")), (client("c"),),
        tuple(f"pixel {n}" for n in range(20)), "label", classes, shape,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "mlp") for name in ROWS),
        *((name, "cnn") for name in ("pacpfl", "pfedgp", "vanilla")),
    ],
)
def test_every_method_of_the_table_gives_probabilities_of_the_classes(name: str, kind: str) -> None:
    """Traced, not run: shapes alone tell whether network, likelihood and method fit together."""
    small = ["network.filters=[2, 3]", "network.hidden=4", "network.widths=[6]", "particles=2"]
    config = override(Config(), ["data.clients=2", f"network.kind={kind}", *small])
    toy = federation()
    method: Any = build_method(name, config, toy.form)
    data = Data(jnp.zeros((7, 20)), jnp.zeros(7), jnp.ones(7, bool))
    key = jax.random.key(0)

    def one_round(data: Data) -> Probabilities:
        state = method.init(key, data)
        update, own = method.client_update(state, method.init_client(state, data, key), data, key)
        updates = jax.tree.map(lambda a: a[None], update)
        state = method.server_update(state, updates, jnp.ones(1), key)
        predictions: Probabilities = method.personalize(state, own, data, key)(data.x[:4])
        return predictions

    shapes = jax.eval_shape(one_round, data)
    assert isinstance(shapes, Probabilities)
    assert shapes.log_probabilities.shape == (4, 5)


def test_a_name_means_another_model_where_the_target_is_a_class() -> None:
    config = override(Config(), ["data.clients=2"])
    classes, numbers = federation(), federation(classes=None, shape=None)
    ours = build_method("pacpfl", config, classes.form)
    assert isinstance(ours, PACPFL) and isinstance(ours.prior, BNNPrior)
    assert ours.prior.likelihood == Categorical(5)
    theirs = build_method("pacpfl", config, numbers.form)
    assert isinstance(theirs, PACPFL) and isinstance(theirs.prior, GPPrior)
    assert build_model(config, numbers.form).likelihood == Gaussian(1.0)
    for name in ("vanilla", "pooled"):
        assert "BNN" in entry(name).title_for(classes.form)
        assert "GP" in entry(name).title_for(numbers.form)
        assert type(build_method(name, config, classes.form)) is not type(
            build_method(name, config, numbers.form)
        )


@pytest.mark.parametrize("name", ["ridge", "ard", "vanilla-deep", "pooled-deep"])
def test_a_method_for_numbers_is_refused_for_classes(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is not made for classes.*pacpfl"):
        build_method(name, Config(), federation().form)
    with pytest.raises(InputError, match=f"{name} is not made for classes.*pacpfl"):
        override(Config(), ["data.name=digits", f'methods=["{name}"]'])


def test_a_convolution_needs_images_and_a_mixture_a_gaussian_process() -> None:
    cnn = override(Config(), ["network.kind=cnn", "data.clients=2"])
    with pytest.raises(InputError, match=r'needs images.*"mlp"'):
        build_method("fedavg", cnn, federation(shape=None).form)
    with pytest.raises(InputError, match="members = 1"):
        build_method("pacpfl", override(cnn, ["members=2"]), federation().form)
    with pytest.raises(InputError, match="two convolutions"):
        override(cnn, ["network.filters=[8]"])


def test_settings_reach_the_prior_and_its_inference() -> None:
    settings = [
        *("bnn.draws=4", "bnn.noise=own", "bnn.objective=elbo", "bnn.std_per=layer"),
        *("bnn.initial_std=0.07", "bnn.std_spread=0.6", "posterior.inference=variational"),
        *("posterior.networks=3", "posterior.adapt=all", "posterior.steps=9"),
        *("posterior.learning_rate=0.2", "posterior.temperature=0.5", "posterior.batch=4"),
        *("posterior.optimizer=sgd", "posterior.svgd_kernel=imq", "data.clients=2"),
    ]
    config = override(Config(), settings)
    method = build_method("pacpfl", config, federation().form)
    assert isinstance(method, PACPFL)
    prior = method.prior
    assert isinstance(prior, BNNPrior)
    assert (prior.settings, prior.inference) == (config.bnn, config.posterior)


def test_how_clients_infer_changes_nothing_about_the_training() -> None:
    base = identity(Config())
    for name in ("steps=9", "inference=laplace", "networks=2", "temperature=0.5"):
        assert identity(override(Config(), [f"posterior.{name}"])) == base, name
    for name in ("bnn.draws=3", "network.hidden=9", "pfedbayes.zeta=3", "pfedgp.features=9"):
        assert identity(override(Config(), [name])) != base, name


def test_settings_reach_the_baselines() -> None:
    settings = [
        *("local.steps=7", "local.batch=3", "pfedbayes.zeta=2", "pfedbayes.mixing=0.5"),
        *("pfedbayes.draws=2", "pfedbayes.networks=6", "pfedbayes.personal_steps=8"),
        *("pfedgp.features=9", "pfedgp.tree=number", "pfedgp.support=4", "data.clients=2"),
        *("alone.initial_std=0.4", "alone.networks=3", "alone.steps=11", "alone.batch=2"),
    ]
    config, toy = override(Config(), settings), federation()
    bayes: Any = build_method("pfedbayes", config, toy.form)
    assert (bayes.local, bayes.settings) == (config.local, config.pfedbayes)
    gp: Any = build_method("pfedgp", config, toy.form)
    assert (gp.network.sizes[-1], gp.settings) == (9, config.pfedgp)
    for name in ("vanilla", "pooled"):
        alone: Any = build_method(name, config, toy.form)
        assert alone.central == (name == "pooled")
        inference = alone.prior.inference
        assert (alone.prior.settings.initial_std, inference.networks, inference.steps) == (
            0.4,
            3,
            11,
        )
        assert (inference.adapt, inference.batch) == ("all", 2)


def test_images_without_a_path_are_asked_for() -> None:
    for name in ("femnist", "emnist"):
        with pytest.raises(InputError, match=f"{name} needs images.*--data PATH"):
            build_federation(override(Config(), [f"data.name={name}"]))


def test_labels_are_never_standardised() -> None:
    with pytest.raises(InputError, match="digits cannot be standardised"):
        override(Config(), ["data.name=digits", "standardize=client"])


def test_digits_come_as_the_configuration_asks() -> None:
    settings = ["data.name=digits", "clients=4", "new_clients=3", "samples=9"]
    found = build_federation(override(Config(), [*settings, "test_fraction=0.5"]))
    assert (len(found.existing), len(found.new), found.classes, found.shape) == (4, 3, 10, (8, 8))
    assert {len(client.train) for client in found.existing} == {9}


# -------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("side", "padding"), [(28, "valid"), (9, "same")])
def test_activations_are_those_of_the_network(side: int, padding: str) -> None:
    network = CNN(side, side, 7, filters=(4, 6), hidden=11, padding=padding)
    image, total = jnp.zeros((1, 1, side, side)), 0
    for filters in network.filters:
        rows = jax.lax.conv_general_dilated_patches(image, (5, 5), (1, 1), padding.upper())
        _, _, height, width = rows.shape
        total += rows.size + height * width * filters
        image = jnp.zeros((1, filters, height // 2, width // 2))
    assert memory.activations(network) == total + image.size + 11 + 7
    assert memory.activations(MLP((20, 6, 5))) == 31


def test_fewer_clients_at_once_the_more_each_of_them_needs() -> None:
    toy = federation()
    base = override(
        Config(), ["data.clients=2", "network.widths=[512, 512]", "posterior.adapt=all"]
    )

    def count(name: str, *settings: str) -> int:
        found = memory.clients_at_once(name, override(base, list(settings)), toy)
        assert found is not None
        return found

    usual = count("pacpfl")
    assert usual > 1
    assert count("pacpfl", "particles=8") < usual
    assert count("pacpfl", "posterior.networks=10") < usual
    assert count("pacpfl", "network.widths=[2048, 2048]") < usual
    assert count("pacpfl", "precision=float64") < usual
    assert count("pacpfl", "posterior.adapt=last") > usual
    assert count("vanilla", "alone.networks=9") < count("vanilla", "alone.networks=2")
    assert count("fedavg") > usual
    assert count("pacpfl", "network.widths=[200000, 2000]") == 1, "one client always goes"
    assert memory.clients_at_once("pacpfl", base, federation(classes=None)) is None


# ------------------------------------------------------------------------------------ the runs


def test_the_study_has_every_row_on_the_same_data(images: Path) -> None:
    both = cells([3, 4], {"femnist": images, "emnist": images})
    assert len(both) == 2 * len(DATASETS) * len(ROWS)
    assert {c.dataset for c in cells([0], {"emnist": images})} == {"emnist"}
    for dataset in DATASETS:
        mine = [cell for cell in both if cell.dataset == dataset and cell.config.seed == 3]
        assert [cell.name for cell in mine] == list(ROWS)
        assert len({(cell.config.data, cell.config.images) for cell in mine}) == 1
        assert all(cell.config.images.path == str(images) for cell in mine)
    sizes = {cell.dataset: cell.config.data for cell in both}
    assert (sizes["femnist-20"].samples, sizes["femnist-all"].samples) == (20, 0)
    assert (sizes["femnist-20"].clients, sizes["femnist-20"].new_clients) == (40, 200)
    same = replace(sizes["femnist-all"], samples=20, new_clients=200)
    assert sizes["femnist-20"] == same, "the same writers train"
    assert (sizes["emnist"].clients, sizes["emnist"].new_clients) == (80, 0)


def test_a_file_of_its_own_changes_a_row_and_never_its_data(
    monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    files = {
        "femnist.toml": '[data]\nname = "femnist"\nclients = 9\n[train]\nclients_per_round = 5',
        "classification/femnist-20/maml.toml": "[data]\nclients = 7\n[train]\nlearning_rate = 0.5",
    }
    monkeypatch.setattr(classification, "_packaged", files.get)
    plain = classification.cell_config("femnist-20", "fedavg", images, 1)
    own = classification.cell_config("femnist-20", "maml", images, 1)
    assert own.data == plain.data
    assert own.train == replace(plain.train, learning_rate=0.5)
    assert (own.train.clients_per_round, own.seed) == (5, 1)


def test_a_run_is_known_by_what_its_numbers_depend_on(
    tiny: Callable[..., list[Cell]], images: Path
) -> None:
    (ours,), (fedavg,) = tiny("pacpfl"), tiny("fedavg")

    def changed(cell: Cell, *settings: str) -> bool:
        after = replace(cell, config=override(cell.config, list(settings)))
        return after.identity != cell.identity

    assert changed(ours, "posterior.steps=5") and changed(ours, "weights=evidence")
    assert changed(ours, "bnn.draws=3") and changed(ours, "seed=5")
    assert changed(ours, "rounds=4") and changed(ours, "precision=float64")
    assert not changed(ours, "local.steps=9") and not changed(ours, "checkpoint_rounds=7")
    assert changed(fedavg, "local.steps=9") and not changed(fedavg, "posterior.steps=5")
    assert not changed(ours, f"images.path=elsewhere/{images.name}")
    assert changed(ours, "images.path=elsewhere/others.npz")
    assert ours.identity != fedavg.identity


@pytest.fixture(scope="module")
def kept(
    tiny: Callable[..., list[Cell]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Cell], list[str]]:
    """One row, run; where it is kept, which it was, and what was said meanwhile."""
    path = tmp_path_factory.mktemp("study") / "outcomes.jsonl"
    every, told = tiny("fedavg"), list[str]()

    def tell(now: Progress) -> None:
        told.append(f"{now.done} of {now.total}: {now.latest}")

    assert run_cells(every, path, progress=tell) == []
    return path, every, told


def test_the_study_runs_what_a_single_run_runs(kept: tuple[Path, list[Cell], list[str]]) -> None:
    path, (fedavg,), _ = kept
    federation = build_federation(fedavg.config)
    store = from_clients(federation.existing)
    alone = run_method("fedavg", fedavg.config, federation, store, Watcher())
    outcome, clients = read_outcomes(path, [fedavg])[fedavg.place]
    for group, evaluation in alone.groups.items():
        accuracies = [100 * row["accuracy"] for row in evaluation.rows]
        assert outcome.groups[group]["accuracy"] == pytest.approx(np.mean(accuracies))
        assert clients[group]["accuracy"] == pytest.approx(accuracies)
        assert clients[group]["nll"] == pytest.approx([row["nll"] for row in evaluation.rows])
        # All clients' predictions together, by an independent count.
        together = np.exp(np.concatenate(evaluation.log_probabilities))
        labels = np.concatenate(
            [c.test.y for c in federation.groups()[group] if c.test is not None]
        )
        confidence, right = together.max(1), together.argmax(1) == labels
        bins = np.digitize(confidence, np.linspace(0, 1, 21)[1:-1], right=True)
        error = sum(abs(np.sum(right[bins == b] - confidence[bins == b])) for b in range(20))
        assert outcome.groups[group]["ce"] == pytest.approx(error / len(labels))
    assert outcome.seconds == outcome.groups["existing"]["train_seconds"]
    assert outcome.groups["existing"]["compile_seconds"] > 0
    assert "train_seconds" not in outcome.groups["new"]


def test_what_is_kept_is_not_run_again(
    kept: tuple[Path, list[Cell], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, every, told = kept
    assert told[0].startswith("0 of 1: FEMNIST (20), seed 0, FedAvg: training")
    assert told[-1] == "1 of 1: done"
    before = path.read_bytes()

    def refuse(cell: Cell, watcher: Watcher) -> Kept:
        raise InputError(f"{cell.name} was run again.")

    monkeypatch.setattr(classification, "run_cell", refuse)
    assert run_cells(every, path) == []
    other = [replace(c, config=override(c.config, ["local.steps=3"])) for c in every]
    assert run_cells(other, path) == ["fedavg on femnist-20, seed 0: fedavg was run again."]
    assert path.read_bytes() == before


def test_a_study_that_is_stopped_keeps_what_it_has(
    tiny: Callable[..., list[Cell]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, ran = tiny("pacpfl", "fedavg", "mtl"), list[str]()

    def pretend(cell: Cell, watcher: Watcher) -> Kept:
        ran.append(cell.name)
        values = {"accuracy": 1.0, "ce": 0.1, "nll": 0.1, "train_seconds": 1.0}
        return Kept(Outcome(*cell.place, 1.0, {"existing": values}), {"existing": {}})

    monkeypatch.setattr(classification, "run_cell", pretend)
    path = tmp_path / "outcomes.jsonl"
    run_cells(every, path, stop=lambda: bool(ran))
    assert ran == ["pacpfl"]
    run_cells(every, path)
    assert ran == ["pacpfl", "fedavg", "mtl"]
    assert len(read_outcomes(path, every)) == 3


def test_a_model_without_a_federation_is_fitted_in_one_go(tiny: Callable[..., list[Cell]]) -> None:
    (cell,) = tiny("pooled", settings=("data.new_clients=0",))
    outcome, _ = run_cell(cell, Watcher())
    assert outcome.seconds == outcome.groups["existing"]["train_seconds"] > 0
    assert "compile_seconds" not in outcome.groups["existing"]
    assert 0 <= outcome.groups["existing"]["accuracy"] <= 100


# --------------------------------------------------------------------------------- the table


def outcome(dataset: str, method: str, seed: int, accuracy: float, ce: float, time: float) -> Kept:
    existing = {"accuracy": accuracy, "ce": ce, "nll": 0.2, "train_seconds": time}
    groups = {"existing": existing}
    if dataset != "emnist":
        groups["new"] = {"accuracy": accuracy - 0.5, "ce": ce, "nll": 0.2}
    clients = {g: {"accuracy": [accuracy, accuracy + 1], "nll": [0.1, 0.3]} for g in groups}
    return Kept(Outcome(dataset, method, seed, time, groups), clients)


RESULTS = [
    outcome(dataset, method, seed, accuracy + seed, ce, time)
    for seed in (0, 1)
    for dataset, method, accuracy, ce, time in (
        ("femnist-20", "pacpfl", 95.5, 0.015, 6.0),
        ("femnist-20", "fedavg", 94.0, 0.010, 4.0),
        ("emnist", "pacpfl", 87.0, 0.03, 9.0),
        ("emnist", "pooled", 88.0, 0.05, 9.0),
    )
]


def test_the_table_has_the_papers_value_beside_ours() -> None:
    found = {
        (r["dataset"], r["group"], r["method"], r["metric"]): r
        for r in rows([kept.outcome for kept in RESULTS], PUBLISHED)
    }
    row = found["femnist-20", "existing", "pacpfl", "accuracy"]
    assert (row["mean"], row["paper_mean"], row["paper_ci95"]) == (96.0, 94.2, 2.6)
    # Student's t with one degree of freedom: 12.706; standard error 1/2.
    assert row["ci95"] == pytest.approx(12.7062 / 2, rel=1e-5)
    assert found["emnist", "existing", "pooled", "ce"]["paper_mean"] == 0.04
    assert found["femnist-20", "existing", "fedavg", "ce"]["paper_mean"] == ""
    assert found["femnist-20", "new", "pacpfl", "accuracy"]["paper_mean"] == ""
    time = found["femnist-20", "existing", "fedavg", "train_seconds"]
    assert (time["mean"], time["paper_mean"]) == (4.0, 120.0)
    assert math.isnan(time["paper_ci95"])


def test_the_summary_says_who_wins_and_who_does_not() -> None:
    accuracy, calibration, *rest = summary(RESULTS)
    assert "highest mean accuracy in 2 of 3 columns" in accuracy
    assert "EMNIST, existing clients (87.5% against 88.5% of One BNN for all (Pooled))" in accuracy
    assert "lowest calibration error in 1 of 3 columns" in calibration
    assert "(0.015 against 0.010 of FedAvg)" in calibration
    assert "95.5%" not in accuracy
    assert rest[0] == (
        "On FEMNIST (20) it names 96.0% of existing and 95.5% of new clients' images rightly."
    )
    assert "6.0 s, 1.50 times as long as FedAvg's 4.0 s" in rest[1]
    assert len(rest) == 2, "EMNIST has no new clients, and FedAvg was not run there"
    assert list(summary(RESULTS[:1])) == ["There is nothing to compare PAC-PFL with yet."]


def test_the_page_shows_the_study_as_far_as_it_has_come(
    tmp_path: Path, read_study_page: Callable[[Path], str]
) -> None:
    about = describe(RESULTS, range(2), "pacpfl reproduce classification")
    assert list(about["datasets"]) == ["femnist-20", "emnist"]
    assert list(about["methods"]) == ["pacpfl", "fedavg", "pooled"]
    table.write_table(tmp_path, rows([kept.outcome for kept in RESULTS], PUBLISHED), about)
    page = read_study_page(write_study(tmp_path))
    for words in ("96.0 ± 6.4", "94.2 ± 2.6", "(120.0)", "Accuracy, %", "One BNN for all (Pooled)"):
        assert words in page, words
    markdown = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "**96.0 ± 6.4** (94.2 ± 2.6)" in markdown


@pytest.fixture
def read_study_page() -> Callable[[Path], str]:
    """The text of a page, without its figures."""

    def read(path: Path) -> str:
        import re

        text = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", path.read_text("utf-8"), flags=re.S)
        return " ".join(re.sub(r"<[^>]+>", "", text).split())

    return read


# --------------------------------------------------------------------------------- examples


def test_examples_are_the_surest_the_most_doubted_and_the_worst() -> None:
    random = np.random.default_rng(3)
    clients = federation().existing
    # Sample j of all eight is named with confidence c_j; the last three wrongly.
    confidence = np.array([0.9, 0.5, 0.8, 0.6, 0.7, 0.95, 0.55, 0.65])
    labels = np.concatenate([client.test.y for client in clients if client.test]).astype(int)
    probabilities = np.full((8, 5), 0.0)
    for row, (sure, label) in enumerate(zip(confidence, labels, strict=True)):
        probabilities[row] = (1 - sure) / 4
        probabilities[row, label if row < 5 else (label + 1) % 5] = sure
    each = np.split(np.log(probabilities), 2)
    evaluation = Evaluation([], random.uniform(size=(2, 20, 3)), log_probabilities=list(each))
    found = examples("existing", clients, evaluation, (5, 4), each=2)
    kind, shown = found["examples/existing/kind"], found["examples/existing/probabilities"].max(1)
    assert shown[kind == SURE] == pytest.approx([0.9, 0.8]), "from the surer half of 0.9, 0.8, ..."
    assert shown[kind == DOUBTED] == pytest.approx([0.5, 0.6]), "the least sure first"
    assert shown[kind == WRONG] == pytest.approx([0.95, 0.65]), "the surest first"
    rows = [int(np.argmin(np.abs(confidence - value))) for value in shown]
    assert len(set(rows)) == len(rows)
    tests = [client.test for client in clients if client.test is not None]
    pixels = np.concatenate([test.x for test in tests])
    assert found["examples/existing/labels"].tolist() == labels[rows].tolist()
    assert found["examples/existing/client"].tolist() == [row // 4 for row in rows]
    expected = np.rint(255 * pixels[rows]).reshape(-1, 5, 4)
    np.testing.assert_array_equal(found["examples/existing/images"], expected)


def test_examples_of_a_model_that_knows_nothing() -> None:
    clients = federation().existing
    broken = Evaluation([], np.zeros((2, 20, 3)), log_probabilities=[np.full((4, 5), np.nan)] * 2)
    assert examples("new", clients, broken, (5, 4)) == {}
    assert examples("new", clients, broken, ()) == {}
    labels = [client.test.y.astype(int) for client in clients if client.test is not None]
    perfect = Evaluation(
        [],
        np.zeros((2, 20, 3)),
        log_probabilities=[np.log(np.eye(5)[own] + 1e-9) for own in labels],
    )
    kinds = examples("new", clients, perfect, (5, 4), each=9)["examples/new/kind"]
    assert sorted(set(kinds.tolist())) == [SURE, DOUBTED]
    assert len(kinds) == 8
