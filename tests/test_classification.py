"""Classification: what is built, what it takes of memory, and which images are shown."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl.build import build_federation
from pacpfl.config import Config, override
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.folder import DOUBTED, SURE, WRONG, answered, examples
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.registry import build_method, build_model, entry
from pacpfl.priors.bnn import BNNPrior
from pacpfl.priors.gp import GPPrior
from pacpfl.priors.networks import CNN, MLP
from pacpfl.types import Client, Federation, Samples


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


def test_a_convolution_needs_images_and_a_mixture_a_gaussian_process() -> None:
    cnn = override(Config(), ["network.kind=cnn", "data.clients=2"])
    with pytest.raises(InputError, match=r'needs images.*"mlp"'):
        build_method("fedavg", cnn, federation(shape=None).form)
    with pytest.raises(InputError, match="members = 1"):
        build_method("pacpfl", override(cnn, ["members=2"]), federation().form)
    with pytest.raises(InputError, match="two convolutions"):
        override(cnn, ["network.filters=[8]"])


def test_settings_reach_the_prior_and_its_inference() -> None:
    settings = ["bnn.draws=4", "posterior.networks=3", "posterior.inference=variational"]
    config = override(Config(), settings)
    method = build_method("pacpfl", config, federation().form)
    assert isinstance(method, PACPFL)
    prior = method.prior
    assert isinstance(prior, BNNPrior)
    assert (prior.settings, prior.inference) == (config.bnn, config.posterior)


def test_settings_reach_the_baselines() -> None:
    settings = [
        *("local.steps=7", "pfedbayes.zeta=2", "pfedgp.features=9", "pfedgp.tree=number"),
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
        assert alone.prior.settings.initial_std == 0.4
        told = inference.networks, inference.steps, inference.adapt, inference.batch
        assert told == (3, 11, "all", 2)


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
    assert network.activations == total + image.size + 11 + 7
    assert MLP((20, 6, 5)).activations == 31


def test_fewer_clients_at_once_the_more_each_of_them_needs() -> None:
    toy = federation()
    base = override(
        Config(), ["data.clients=2", "network.widths=[512, 512]", "posterior.adapt=all"]
    )

    def count(name: str, *settings: str) -> int:
        config = override(base, list(settings))
        dtype = np.float64 if config.run.precision == "float64" else np.float32
        found = entry(name).clients_at_once(config, toy, dtype)
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
    assert entry("pacpfl").clients_at_once(base, federation(classes=None), np.float32) is None


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
    found = examples(answered(clients, evaluation), (5, 4), each=2)
    kind, shown = found["kind"], found["probabilities"].max(1)
    assert shown[kind == SURE] == pytest.approx([0.9, 0.8]), "from the surer half of 0.9, 0.8, ..."
    assert shown[kind == DOUBTED] == pytest.approx([0.5, 0.6]), "the least sure first"
    assert shown[kind == WRONG] == pytest.approx([0.95, 0.65]), "the surest first"
    rows = [int(np.argmin(np.abs(confidence - value))) for value in shown]
    assert len(set(rows)) == len(rows)
    tests = [client.test for client in clients if client.test is not None]
    pixels = np.concatenate([test.x for test in tests])
    assert found["labels"].tolist() == labels[rows].tolist()
    assert found["client"].tolist() == [row // 4 for row in rows]
    expected = np.rint(255 * pixels[rows]).reshape(-1, 5, 4)
    np.testing.assert_array_equal(found["images"], expected)


def test_examples_of_a_model_that_knows_nothing() -> None:
    clients = federation().existing
    broken = Evaluation([], np.zeros((2, 20, 3)), log_probabilities=[np.full((4, 5), np.nan)] * 2)
    assert examples(answered(clients, broken), (5, 4)) == {}
    assert examples(answered(clients, broken), ()) == {}
    labels = [client.test.y.astype(int) for client in clients if client.test is not None]
    sure = [np.log(np.eye(5)[own] + 1e-9) for own in labels]
    perfect = Evaluation([], np.zeros((2, 20, 3)), log_probabilities=sure)
    kinds = examples(answered(clients, perfect), (5, 4), each=9)["kind"]
    assert sorted(set(kinds.tolist())) == [SURE, DOUBTED]
    assert len(kinds) == 8
