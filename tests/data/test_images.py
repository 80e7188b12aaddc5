"""Labelled images: what is refused, and partitions, with every sample where it belongs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy import stats

from pacpfl.data.image_files import load_images
from pacpfl.data.images import (
    Images,
    by_writer,
    dirichlet,
    divide,
    samples,
    split,
)
from pacpfl.types import Client, Federation, Samples

PIXELS = np.random.default_rng(3).integers(0, 256, (6, 2, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])
GOOD = Images("set", PIXELS, LABELS, 3, np.array(list("aabbcc")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": PIXELS.reshape(6, 6)}, r"images are uint8 of shape \(6, 6\)"),
        ({"images": PIXELS.astype(float)}, "images are float64"),
        ({"images": PIXELS[:0], "labels": LABELS[:0], "writer": None}, r"shape \(0, 2, 3\)"),
        ({"labels": LABELS.astype(float)}, "labels are float64"),
        ({"labels": LABELS[:, None]}, r"labels are int64 of shape \(6, 1\)"),
        ({"labels": LABELS[:5]}, "6 images and 5 labels"),
        ({"classes": 2}, "label in row 2 is 2, and classes are numbered from 0 to 1"),
        ({"labels": LABELS - 1}, "label in row 0 is -1"),
        ({"writer": np.array(list("aab"))}, r"writers have shape \(3,\)"),
    ],
)
def test_what_cannot_be_used(changes: dict[str, Any], words: str) -> None:
    refused(lambda: replace(GOOD, **changes), f"^set: .*{words}")


def test_pixels_become_rows_between_0_and_1() -> None:
    found = samples(GOOD, np.array([4, 1]))
    assert found.x.dtype == found.y.dtype == np.float32
    assert found.y.tolist() == [1, 1]
    expected = [
        [PIXELS[i, row, column] / 255 for row in range(2) for column in range(3)] for i in (4, 1)
    ]
    np.testing.assert_allclose(found.x, expected, rtol=1e-6)
    both = Images("set", np.array([[[0, 255]]], np.uint8), np.array([0]), 2)
    assert samples(both, np.array([0])).x.tolist() == [[0.0, 1.0]]


# ---- partitions ----


def numbered(labels: np.ndarray, writer: np.ndarray | None = None, classes: int = 10) -> Images:
    """Images of three pixels that spell each sample's own number."""
    rows = np.arange(len(labels))
    pixels = np.stack([rows >> 16, rows >> 8 & 255, rows & 255], -1).astype(np.uint8)[:, None, :]
    return Images("numbered", pixels, labels, classes, writer)


def rows_of(*parts: Samples) -> list[int]:
    pixels = np.rint(np.concatenate([part.x for part in parts]) * 255).astype(int)
    return [int(row) for row in pixels @ np.array([1 << 16, 1 << 8, 1])]


def everyone(federation: Federation) -> list[Client]:
    return [*federation.existing, *federation.new]


def all_rows(federation: Federation) -> list[int]:
    return [row for c in everyone(federation) for row in rows_of(c.train, c.test)]


random = np.random.default_rng(81)
SKEWED = numbered(random.integers(0, 10, 3000))
# Writers 100 .. 129 with 12, 15, 18, ... samples.
COUNTS = 12 + 3 * np.arange(30)
WRITER = random.permutation(np.repeat(100 + np.arange(30), COUNTS))
WRITTEN = numbered(random.integers(0, 10, len(WRITER)), WRITER)


# ---- by label ----


@pytest.mark.parametrize("new_clients", [0, 5])
def test_dirichlet_uses_every_sample_once(new_clients: int) -> None:
    found = dirichlet(SKEWED, 20, new_clients, seed=4)
    assert (len(found.existing), len(found.new)) == (20, new_clients)
    assert sorted(all_rows(found)) == list(range(3000))
    for client in everyone(found):
        for part in (client.train, client.test):
            assert part.y.tolist() == SKEWED.labels[rows_of(part)].tolist()
        assert len(client.test) == round(0.2 * len(client.train + client.test))
    assert (found.name, found.classes, found.shape) == ("numbered", 10, (1, 3))
    assert (found.target, found.features) == ("label", ("pixel 0", "pixel 1", "pixel 2"))


def test_the_test_part_has_the_clients_own_labels() -> None:
    for client in everyone(dirichlet(SKEWED, 20, test_fraction=0.3, seed=2)):
        train, test = (
            np.bincount(part.y.astype(int), minlength=10) for part in (client.train, client.test)
        )
        share = test.sum() / (train + test).sum()
        assert np.all(np.abs(test - share * (train + test)) < 1)


def test_shares_follow_the_dirichlet_distribution() -> None:
    """A part's share of a class is Beta(alpha, (K - 1) alpha), and independent between classes."""
    parts, alpha, generator = 5, 0.4, np.random.default_rng(12)
    labels = np.repeat([0, 1], 2000)
    shares = np.array(
        [
            [
                np.bincount(labels[rows], minlength=2) / 2000
                for rows in divide(labels, parts, alpha, generator)
            ]
            for _ in range(800)
        ]
    )  # [draw, part, class]
    for part in range(parts):
        # Half a sample of rounding hides the distribution's peak at 0: compare above that.
        large = shares[:, part, 0]
        for level in (0.002, 0.05, 0.2, 0.5, 0.9):
            expected = stats.beta(alpha, (parts - 1) * alpha).cdf(level)
            error = 4 * np.sqrt(expected * (1 - expected) / 800)
            assert abs(np.mean(large <= level) - expected) < error
    assert abs(np.corrcoef(shares[:, 0, 0], shares[:, 0, 1])[0, 1]) < 0.15


def test_small_clients_are_drawn_again_and_else_the_first_draw_stands() -> None:
    first = divide(SKEWED.labels, 20, 1.0, np.random.default_rng([4003, 0]))
    found = dirichlet(SKEWED, 20, alpha=1.0, seed=0)
    assert [sorted(rows_of(c.train, c.test)) for c in found.existing] == list(map(sorted, first))
    once = divide(SKEWED.labels, 20, 0.1, np.random.default_rng([4003, 3]))
    assert min(map(len, once)) < 30, "the first draw must be one that is rejected"
    found = dirichlet(SKEWED, 20, alpha=0.1, least=30, seed=3)
    assert min(len(c.train) + len(c.test) for c in everyone(found)) >= 30
    assert sorted(all_rows(found)) == list(range(3000))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 400}, "some of the 400 clients always had fewer than 10"),
        ({"clients": 0}, "0 existing"),
        ({"new_clients": -1}, "-1 new clients"),
        ({"alpha": 0.0}, "alpha = 0.0"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"test_fraction": 1.0}, "test_fraction = 1.0"),
        ({"least": 2}, "fewer than 2 for training"),
        ({"least": 10, "test_fraction": 0.9}, "fewer than 2 for training"),
    ],
)
def test_impossible_divisions(arguments: dict[str, Any], words: str) -> None:
    refused(lambda: dirichlet(SKEWED, **({"draws": 3} | arguments)), words)


# ---- train and test ----


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    part=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_splits_are_exact_and_stratified(labels: list[int], part: float, seed: int) -> None:
    values = np.array(labels)
    test_count = round(part * len(labels))
    train, test = split(values, test_count, np.random.default_rng(seed))
    assert len(test) == test_count
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        share = np.sum(values == label) * test_count / len(labels)
        assert abs(np.sum(values[test] == label) - share) < 1


def test_every_sample_is_tested_equally_often() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 0])
    generator, draws = np.random.default_rng(5), 4000
    tested, first = np.zeros(7), np.zeros(7)
    for _ in range(draws):
        train, test = split(labels, 3, generator)
        tested[test] += 1
        first[train[0]] += 1
    for counts, chance in ((tested, 3 / 7), (first, 1 / 7)):
        assert np.all(
            np.abs(counts / draws - chance) < 4.5 * np.sqrt(chance * (1 - chance) / draws)
        )


def test_any_two_samples_of_a_class_may_be_tested_together() -> None:
    generator, draws = np.random.default_rng(6), 3000
    together = np.zeros((6, 6))
    for _ in range(draws):
        _, test = split(np.zeros(6, int), 2, generator)
        together[min(test), max(test)] += 1
    pairs = together[np.triu_indices(6, 1)] / draws
    assert np.all(np.abs(pairs - 1 / 15) < 4.5 * np.sqrt(1 / 15 * 14 / 15 / draws))


# ---- by writer ----


def test_each_client_is_one_writer() -> None:
    found = by_writer(WRITTEN, 12, 5, samples=20, seed=3)
    assert (len(found.existing), len(found.new)) == (12, 5)
    names = [client.name for client in everyone(found)]
    assert len(set(names)) == 17
    rows = all_rows(found)
    assert len(rows) == len(set(rows))
    for client in everyone(found):
        own = rows_of(client.train, client.test)
        assert {f"writer {WRITER[row]}" for row in own} == {client.name}
        assert len(client.train) == 20
        assert len(client.test) == round(0.2 * int(COUNTS[int(client.name.split()[1]) - 100]))
        assert client.train.y.tolist() == WRITTEN.labels[rows_of(client.train)].tolist()


def test_every_size_has_the_same_test_images() -> None:
    """FEMNIST (20) and FEMNIST (all) differ in the training part only, and the 20 are among all."""
    few, some, full = (
        by_writer(WRITTEN, 12, 5, samples=samples, seed=3) for samples in (5, 20, None)
    )
    for a, b, c in zip(everyone(few), everyone(some), everyone(full), strict=True):
        assert a.name == b.name == c.name
        assert rows_of(a.test) == rows_of(b.test) == rows_of(c.test)
        assert rows_of(a.train) == rows_of(b.train)[:5] == rows_of(c.train)[:5]
        assert rows_of(b.train) == rows_of(c.train)[:20]
        own = np.flatnonzero(int(c.name.split()[1]) == WRITER)
        assert sorted(rows_of(c.train, c.test)) == own.tolist()


def test_new_writers_do_not_move_the_existing_ones() -> None:
    small, large = by_writer(WRITTEN, 8, 2, seed=3), by_writer(WRITTEN, 8, 9, seed=3)
    assert [c.name for c in small.existing] == [c.name for c in large.existing]
    assert [c.name for c in small.new] == [c.name for c in large.new[:2]]
    assert rows_of(small.existing[0].train) == rows_of(large.existing[0].train)


def test_the_seed_chooses_writers_and_samples() -> None:
    first, again, other = (by_writer(WRITTEN, 12, samples=20, seed=seed) for seed in (1, 1, 2))
    assert all_rows(first) == all_rows(again)
    assert {c.name for c in first.existing} != {c.name for c in other.existing}
    both = {c.name: c for c in first.existing}
    shared = [(both[c.name], c) for c in other.existing if c.name in both]
    assert any(rows_of(a.test) != rows_of(b.test) for a, b in shared)


@pytest.mark.parametrize("samples", [5, 20])
def test_writers_with_too_few_are_left_out(samples: int) -> None:
    # 12 + 3 i samples less 20% of them (rounded) for the test: 20 remain from 27 on, so i = 0 .. 4 go.
    chosen = {client.name for client in by_writer(WRITTEN, 25, samples=samples).existing}
    assert chosen == {f"writer {number}" for number in range(105, 130)}
    assert len(by_writer(WRITTEN, 30, samples=5, least=5).existing) == 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"clients": 26},
            r"has 25 writers with at least 20 samples .*\(5 have fewer\) and 26 are asked",
        ),
        ({"samples": 200}, "has 0 writers with at least 200"),
        ({"clients": 0}, "0 existing"),
        ({"samples": 1}, "samples = 1 is too few"),
        ({"least": 1}, "least = 1 is too few"),
        ({"test_fraction": 0.0}, "test_fraction = 0.0"),
    ],
)
def test_impossible_choices(arguments: dict[str, Any], words: str) -> None:
    refused(lambda: by_writer(WRITTEN, **({"clients": 12} | arguments)), words)


def test_images_without_writers() -> None:
    refused(lambda: by_writer(SKEWED, 3), "does not say who wrote what")


# ---- the real handwriting that lies beside the repository, where it does ----

FOLDER = Path(__file__).parents[3] / "shared" / "data"


def real(name: str, classes: int | None = None) -> Images:
    file = FOLDER / name
    if not file.exists():
        pytest.skip(f"the real data set {name} is not beside the repository (shared/data)")
    return load_images(file, classes)


def test_forty_writers_with_twenty_digits_each() -> None:
    handwriting = real("digits_by_writer.npz")
    few, full = (by_writer(handwriting, 40, 40, samples, seed=1) for samples in (20, None))
    assert {*few.form.sizes} == {20}
    assert 85 < np.mean(full.form.sizes) < 95
    assert few.classes == 10
    assert few.shape == (28, 28)
    x = few.existing[0].train.x
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert x.mean() < 0.3, "ink is high and rare"


def test_leafs_writers() -> None:
    every = real("femnist_leaf_28_writers.npz")
    assert (len(every), every.classes) == (1761, 62)
    assert len(set(every.writer.tolist())) == 28
    assert every.writer[0].startswith("f")
    assert len(by_writer(every, 20, 6, 20).new) == 6
    refused(lambda: by_writer(every, 20, 7, 20), "2 have fewer")  # those with 8 and 14 samples
    only = real("femnist_leaf_28_writers.npz", classes=10)
    assert only.classes == 10
    np.testing.assert_array_equal(only.images, every.images[every.labels < 10])


def test_eighty_clients_share_emnist() -> None:
    """Every one of the 81,425 samples is used once: images that spell their number stand for the real."""
    every = real("emnist_byclass_81425.npz")
    assert (len(every), every.classes, every.shape) == (81425, 62, (28, 28))
    found = dirichlet(numbered(every.labels, classes=62))
    assert len(found.existing) == 80
    assert sorted(all_rows(found)) == list(range(81425))
    # Label skew: a client's classes are far from evenly spread.
    counts = np.bincount(found.existing[0].train.y.astype(int), minlength=62)
    assert counts.max() > 5 * np.median(counts)
