"""The figures show the numbers of the run: what is drawn is read back and compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import make_run
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle

from pacpfl.report import figures, particles, style
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import judge
from pacpfl.report.measures import CE, NLL, RSMSE


@pytest.fixture(autouse=True)
def drawn_in_style() -> Iterator[None]:
    with style.drawing():
        yield


@pytest.fixture
def run(polynomial: Path) -> Run:
    return read_run(polynomial)


def made(shown: style.Shown | None) -> Figure:
    assert shown is not None
    style.as_svg(shown.figure)  # lays it out, and fails on whatever cannot be drawn
    return shown.figure


def line(axes: Axes, colour: str, marker: str | None = None) -> np.ndarray:
    """The data of the one line in this colour, [n, 2]."""
    found = [
        drawn
        for drawn in axes.lines
        if drawn.get_color() == colour and (marker is None or drawn.get_marker() == marker)
    ]
    assert len(found) == 1
    return np.asarray(found[0].get_xydata())


def test_gains_are_lines_from_alone_to_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge(run)
    figure = made(figures.gains(run, judged))
    look = style.looks(list(run.titles))
    for axes, group in zip(figure.axes, ("existing", "new"), strict=True):
        own, alone = (line(axes, look[m].colour, look[m].marker) for m in (run.main, run.alone))
        rows = judged[judged["group"] == group].sort_values("gain", kind="stable")
        np.testing.assert_allclose(own[:, 0], rows["own"])
        np.testing.assert_allclose(alone[:, 0], rows["alone"])
        (between,) = axes.collections
        ends = np.array([segment[:, 0] for segment in between.get_segments()])
        np.testing.assert_allclose(ends, rows[["alone", "own"]])
        loses = np.array(
            [to_rgb(colour[:3]) == to_rgb(style.INK) for colour in between.get_color()]
        )
        np.testing.assert_array_equal(loses, rows["gain"] < 0)
        better = int((rows["gain"] > 0).sum())
        assert axes.get_title("left").endswith(f"{better} of {len(rows)} gain")
    monkeypatch.setattr(figures, "GAINS_DRAWN", 3)
    few = figures.gains(run, judged)
    assert few is not None and "Of each group 3 are drawn" in few.caption
    assert figures.gains(run, judged.assign(gain=np.nan)) is None


def test_boxes_are_the_quartiles_and_dots_the_clients(run: Run) -> None:
    figure = made(figures.boxes(run))
    assert len(figure.axes) == 3 * 2
    looks = style.looks(list(run.titles))
    for axes, (measure, group) in zip(
        figure.axes, itertools.product((RSMSE, CE, NLL), ("existing", "new")), strict=True
    ):
        assert axes.get_xlabel().startswith(measure.title)
        boxes = [patch for patch in axes.patches if isinstance(patch, PathPatch)]
        for box, method in zip(boxes, run.titles, strict=True):
            values = run.rows(method, group)[measure.key].to_numpy()
            horizontal = box.get_path().vertices[:, 0]
            np.testing.assert_allclose(
                [horizontal[:-1].min(), horizontal[:-1].max()], np.quantile(values, [0.25, 0.75])
            )
            assert box.get_edgecolor() == to_rgba(looks[method].colour)
            dots = line(axes, looks[method].colour, looks[method].marker)
            np.testing.assert_allclose(np.sort(dots[:, 0]), np.sort(values))
        medians = [drawn for drawn in axes.lines if drawn.get_color() == style.INK]
        for drawn, method in zip(medians, run.titles, strict=True):
            expected = np.median(run.rows(method, group)[measure.key])
            np.testing.assert_allclose(np.asarray(drawn.get_xdata()), expected)


def test_boxes_without_uncertainty_say_so(solar: Path) -> None:
    run = read_run(solar)
    figure = made(figures.boxes(run))
    words = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert words == [[], [], *[["not measured"]] * 4]
    assert figure.axes[2].texts[0].get_position()[1] == list(run.titles).index("fedavg")
    alone = run.clients[run.clients["method"] == "fedavg"]
    record = {"methods": {"fedavg": run.methods["fedavg"]}}
    figure = made(figures.boxes(replace(run, clients=alone, record=record)))
    assert [axes.get_xlabel() for axes in figure.axes] == ["RSMSE (lower is better)"] * 2


def test_one_method_far_off_does_not_squeeze_the_others(run: Run) -> None:
    far = run.clients["method"] == "pooled"
    run.clients.loc[far, "rsmse"] *= 1000
    run.clients.loc[far, "nll"] = np.inf
    figure = made(figures.boxes(run))
    assert figure.axes[0].get_xscale() == "log"
    assert figure.axes[0].get_xlabel() == "RSMSE (lower is better, logarithmic)"
    assert [text.get_text() for text in figure.axes[4].texts] == ["not finite"]


def test_calibration_is_the_mean_over_clients_with_quartiles(run: Run) -> None:
    figure = made(figures.calibration(run))
    looks = style.looks(list(run.titles))
    for axes, group in zip(figure.axes, run.groups, strict=True):
        np.testing.assert_allclose(line(axes, style.INK), [[0, 0], [1, 1]])
        for method, band in zip(run.titles, axes.collections, strict=True):
            values = run.arrays[f"calibration/{method}/{group}"]
            drawn = line(axes, looks[method].colour)
            np.testing.assert_allclose(drawn[:, 0], run.arrays["calibration/levels"])
            np.testing.assert_allclose(drawn[:, 1], values.mean(axis=0), rtol=1e-6)
            corners = band.get_paths()[0].vertices
            middle = np.isclose(corners[:, 0], run.arrays["calibration/levels"][10])
            np.testing.assert_allclose(
                [corners[middle, 1].min(), corners[middle, 1].max()],
                np.quantile(values[:, 10], [0.25, 0.75]),
                rtol=1e-5,
            )
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*run.titles.values(), "perfect"]


def test_calibration_skips_clients_without_a_curve(run: Run) -> None:
    values = run.arrays["calibration/pacpfl/new"] = run.arrays["calibration/pacpfl/new"].copy()
    values[3] = np.nan
    drawn = line(made(figures.calibration(run)).axes[1], style.COLOURS[0])
    np.testing.assert_allclose(drawn[:, 1], np.nanmean(values, axis=0), rtol=1e-6)


def edges(axes: Axes, number: int, at: float) -> list[float]:
    """Lower and upper end of a shade at one place."""
    corners = axes.collections[number].get_paths()[0].vertices
    here = corners[np.isclose(corners[:, 0], at, atol=1e-6), 1]
    return [here.min(), here.max()]


@pytest.mark.parametrize("group", ["existing", "new"])
def test_bands_with_one_feature_are_drawn_against_it(run: Run, group: str) -> None:
    figure = made(figures.bands(run, group))
    ranked = run.rows("pacpfl", group).sort_values("rsmse")["client"].tolist()
    clients = [axes.get_title(loc="left") for axes in figure.axes]
    assert sorted(clients) == sorted(ranked[place] for place in (0, 8, 15, 23))
    assert clients == sorted(clients), "in the order of the table"
    for axes, client in zip(figure.axes, clients, strict=True):
        part = run.predictions(group)[client]
        for number, (low, high) in enumerate(((0, 5), (1, 4), (2, 3))):
            expected = part["quantiles"][[low, high], 17]
            np.testing.assert_allclose(edges(axes, number, part["x"][17]), expected, rtol=1e-5)
        mean = line(axes, style.COLOURS[0])
        np.testing.assert_allclose(mean, np.stack([part["x"], part["mean"]], axis=1))
        for colour, method in zip(style.COLOURS[1:3], ("vanilla", "pooled"), strict=True):
            np.testing.assert_allclose(line(axes, colour)[:, 1], part[f"{method}/mean"])
        rings, diamonds = (
            np.asarray(drawn.get_xydata())
            for marker in ("o", "D")
            for drawn in axes.lines
            if drawn.get_marker() == marker
        )
        np.testing.assert_allclose(rings[:, 1], part["y"])
        np.testing.assert_allclose(diamonds, np.stack([part["train_x"], part["train_y"]], axis=1))


def test_bands_with_several_features_are_drawn_against_the_index(solar: Path) -> None:
    run = read_run(solar)
    figure = made(figures.bands(run, "new"))
    mean = line(figure.axes[1], style.COLOURS[0])
    client = figure.axes[1].get_title(loc="left")
    np.testing.assert_array_equal(mean[:, 0], np.arange(100))
    np.testing.assert_allclose(mean[:, 1], run.predictions("new")[client]["mean"][:100])
    assert figure.axes[-1].get_xlabel() == "index of the test sample"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "PAC-PFL"
    assert "training point" not in labels
    assert labels[-1] == "FedAvg"


def test_training_shows_means_of_blocks_between_their_extremes(run: Run) -> None:
    figure = made(particles.training(run))
    for axes, key in zip(figure.axes, ("log_evidence", "diversity"), strict=True):
        blocks = run.arrays[f"curve/{key}"].astype(float).reshape(150, 10)
        drawn = line(axes, style.COLOURS[0])
        np.testing.assert_allclose(drawn[:, 1], blocks.mean(axis=1), rtol=1e-5)
        np.testing.assert_allclose(drawn[:, 0], np.arange(1, 1501).reshape(150, 10).mean(axis=1))
        np.testing.assert_allclose(
            edges(axes, 0, drawn[40, 0]), [blocks[40].min(), blocks[40].max()], rtol=1e-5
        )
    first = float(run.arrays["curve/log_evidence"][0])
    (note,) = figure.axes[0].texts
    assert note.get_text() == f"round 1 is below the axis, at \N{MINUS SIGN}{-first:.2f}"
    assert figure.axes[0].get_ylim()[0] > first


def test_training_survives_rounds_without_a_number(run: Run) -> None:
    run.arrays["curve/log_evidence"] = np.array([np.nan, -3.0, -2.0, np.inf, -1.0])
    del run.arrays["curve/diversity"]
    drawn = line(made(particles.training(run)).axes[0], style.COLOURS[0])
    np.testing.assert_allclose(drawn, [[2, -3], [3, -2], [5, -1]])


def tiles(axes: Axes) -> np.ndarray:
    """The strengths of the tiles, [rows, columns], read back from their opacity."""
    patches = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    places = [(round(p.get_y() + 0.46), round(p.get_x() + 0.47)) for p in patches]
    result = np.full(np.max(places, axis=0) + 1, np.nan)
    for place, patch in zip(places, patches, strict=True):
        result[place] = patch.get_facecolor()[3] / particles.STRONGEST
    return result


def test_diversity_writes_every_difference_and_the_words(run: Run) -> None:
    axes, beside = made(particles.diversity(run)).axes
    pairwise = run.arrays["diversity/pairwise"]
    written = np.array([float(text.get_text()) for text in axes.texts]).reshape(4, 4)
    np.testing.assert_allclose(written, pairwise, atol=0.005)
    np.testing.assert_allclose(tiles(axes), pairwise / 0.9, rtol=1e-5)
    (words,) = (text.get_text().replace("\n", " ") for text in beside.texts)
    assert "0.310" in words and "0.900" in words


def test_weights_have_a_tile_for_every_client_and_particle(run: Run) -> None:
    for axes, group in zip(made(particles.weights(run)).axes, run.groups, strict=True):
        values = run.arrays[f"weights/{group}"]
        np.testing.assert_allclose(tiles(axes), values.T, atol=1e-6)
        assert [label.get_text() for label in axes.get_xticklabels()] == run.names(group)
        means = [float(text.get_text()) for text in axes.texts[1:]]
        np.testing.assert_allclose(means, values.mean(axis=0), atol=0.005)


def test_responsibilities_are_sorted_by_kind_and_name_it(mixture: Path) -> None:
    run = read_run(mixture)
    for axes, group in zip(made(particles.responsibilities(run)).axes, run.groups, strict=True):
        shown = [label.get_text() for label in axes.get_xticklabels()]
        assert sorted(shown) == sorted(run.names(group))
        order = [run.names(group).index(name) for name in shown]
        kinds = [run.kinds(group)[number] for number in order]
        assert kinds == sorted(kinds)
        assert [text.get_text() for text in axes.texts[: len(kinds)]] == kinds
        values = run.arrays[f"responsibilities/{group}"][order]
        np.testing.assert_allclose(tiles(axes), np.clip(values.T, 0, 1), atol=1e-6)


def test_many_clients_and_particles_still_make_a_figure(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=90, test=5, methods=("pacpfl",)))
    random = np.random.default_rng(2)
    for group in run.groups:
        run.arrays[f"weights/{group}"] = random.dirichlet(np.ones(32), size=90)
    run.arrays["diversity/pairwise"] = random.uniform(size=(32, 32))
    figure = made(particles.weights(run))
    assert figure.axes[0].get_xlabel() == "64 of 90 clients, evenly chosen"
    assert not list(made(particles.diversity(run)).axes[0].texts)


@pytest.mark.parametrize(
    "draw",
    [
        figures.calibration, lambda run: figures.bands(run, "new"), particles.training,
        particles.diversity, particles.weights, particles.responsibilities,
    ],
)  # fmt: skip
def test_what_was_not_written_is_not_drawn(
    run: Run, draw: Callable[[Run], style.Shown | None]
) -> None:
    run.arrays.clear()
    assert draw(run) is None


def test_thinning_keeps_both_ends() -> None:
    np.testing.assert_array_equal(figures.thinned(4, 9), [0, 1, 2, 3])
    chosen = figures.thinned(1000, 7)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 999, 7)


def test_every_method_keeps_its_look_whoever_else_is_there() -> None:
    alone = style.looks(["pooled", "mine"])
    together = style.looks(["pacpfl", "vanilla", "pooled", "mine", "other"])
    assert alone["pooled"] == together["pooled"]
    assert len({(look.marker, look.dash) for look in together.values()}) == 5
    many = style.looks([f"method {number}" for number in range(12)])
    assert len(set(many.values())) == 12


def linear(colour: str) -> np.ndarray:
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of linear RGB."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    ratios = to_xyz @ np.clip(light, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", [style.COLOURS, style.DARK_COLOURS])
def test_colours_can_be_told_apart_by_everybody(palette: tuple[str, ...], sight: str) -> None:
    seen = [lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in palette]
    gaps = [float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)]
    assert min(gaps) >= 14
