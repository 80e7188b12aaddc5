"""What a site allows: its file, and that requests beyond it are refused and written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_sites import RUN, World, recipe_for
from toys import StatelessToy, make_store

from pacpfl import __version__
from pacpfl.errors import InputError
from pacpfl.sites import wire
from pacpfl.sites.limits import Limits, read_site_file, write_site_file
from pacpfl.sites.site import Site
from pacpfl.sites.terms import read_section
from pacpfl.sites.wire import Refused
from pacpfl.types import Form

pytestmark = pytest.mark.usefixtures("x64")

STORE = make_store((3, 5, 4))
SHARES = {"a": range(0, 2), "b": range(2, 3)}


def recipe_of(**more: Any) -> Any:
    return recipe_for(lambda n: StatelessToy(), 4, **more)


def world_in(folder: Path, **limits: Limits) -> World:
    return World(folder, STORE, SHARES, lambda n: StatelessToy(), 4, limits)


def ask(site: Site, params: Any = None, **about: Any) -> dict[str, Any]:
    """Return the answer; of a refusal, of which a code leaves the site, what the site wrote down."""
    text = wire.to_text({"run": RUN, **about})
    answer = wire.from_text(site.answer(wire.empty() if params is None else params, text)[1])
    if "refused" in answer:
        assert answer["refused"] in wire.REASONS
        noted = (site.folder / wire.REFUSALS).read_text().splitlines()[-1]
        return {"refused": json.loads(noted)["reason"]}
    return answer


HELLO = {"task": "hello", "version": __version__, "config": "", "method": "toy"}
TRAIN = {"task": "train", "round": 0, "saved": 0, "take": {"a": [[0, -1]]}}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return world_in(tmp_path).sites()["a"]


@pytest.fixture
def begun(site: Site) -> Site:
    """The same, when it has been told of the other sites."""
    ask(site, **HELLO)
    form = Form(("x0", "x1"), clients=3)._asdict()
    ask(site, task="begin", data=form, seats={"a": 0}, encoding="exact")
    return site


@pytest.mark.parametrize(
    ("limits", "settings", "words"),
    [
        ({"methods": ("fedavg",)}, {}, "method toy is not allowed"),
        ({"privacy": "gaussian"}, {}, "privacy mode gaussian is required"),
        ({"privacy": "none"}, {"privacy": "laplace"}, "privacy mode none is required"),
        ({"clip_norm": 1.0}, {}, "must be clipped"),
        ({"clip_norm": 1.0}, {"clip": 1.5}, "clip norm of 1.5 is above"),
        ({"clip_norm": 1.0}, {"clip": float("nan")}, "clip norm of nan"),
        ({"maximum_rounds": 3}, {}, "4 rounds, and 3 are allowed"),
    ],
)
def test_a_request_beyond_a_limit_is_refused(
    limits: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        Limits(**limits).check_request(recipe_of(**settings))


def test_a_request_within_all_limits_passes() -> None:
    limits = Limits(("toy",), 100, 1.0, 3, 4, privacy="gaussian")
    limits.check_request(recipe_of(privacy="gaussian", clip=1.0))
    limits.check_samples([3, 5])
    limits.check_model(100)
    limits.check_count("rounds", 3)
    Limits().check_request(recipe_of())


def test_a_refusing_site_writes_it_down_and_the_others_train(tmp_path: Path) -> None:
    world = world_in(tmp_path, a=Limits(minimum_samples=4))
    assert world.play().finished
    (noted,) = world.refused("a")
    assert "fewer than the 4 samples" in noted["reason"]
    assert noted["task"] == "hello" and noted["time"].endswith("+00:00")
    asked = [names for about, names, _ in world.net.asked if "round" in about]
    assert {name for names in asked for name in names} == {"b"}


def test_the_model_is_measured_before_it_is_made(tmp_path: Path) -> None:
    world = world_in(tmp_path, a=Limits(largest_model=2))
    assert world.play().finished
    assert "the model has 3 numbers" in world.refused("a")[0]["reason"]


def test_rounds_are_counted_over_all_runs_and_restarts(tmp_path: Path) -> None:
    world, runs = world_in(tmp_path, a=Limits(maximum_rounds=6)), ("aaaaaaaa", "bbbbbbbb")
    for name in runs:
        world.name, world.run = name, tmp_path / name
        world.play()
    counted = json.loads((tmp_path / "a" / "rounds.json").read_text())
    assert counted == dict(zip(runs, (4, 2), strict=True))
    took_part = ["a" in entry["sites"] for entry in world.entries[1:]]
    assert took_part == [True, True, False, False]


def test_sizes_are_told_only_where_allowed(tmp_path: Path) -> None:
    for share, told in ((True, [3, 5]), (False, None)):
        limits = {"a": Limits(share_sizes=share), "b": Limits(share_sizes=True)}
        world = world_in(tmp_path / str(share), **limits)
        world.play()
        sizes = json.loads((world.run / "federation.json").read_text())["sizes"]
        assert sizes == {"a": told, "b": [4]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "sing"}, "no task 'sing'"),
        ({"run": "../../etc"}, "another run"),
        ({"take": {"a": [[7, -1]]}}, "has 2 clients"),
        ({"take": {"a": [[-1, -1]]}}, "has 2 clients"),
        ({"take": {"a": []}}, "without clients"),
        ({"take": {"a": [[0, -1], [0, -1]]}}, "one twice"),
        ({"take": {}}, "makes no sense"),
        ({"round": 4}, "none of the 4"),
        ({"round": "x"}, "makes no sense"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    change: dict[str, Any], words: str, begun: Site
) -> None:
    state = {"value.value": np.zeros(2)}
    assert "refused" not in ask(begun, state, **TRAIN)
    assert words in ask(begun, state, **(TRAIN | change))["refused"]


def test_a_state_that_is_not_as_agreed_is_refused_at_the_site(begun: Site) -> None:
    for bad, words in (
        ({"value.value": np.zeros(3)}, "shape 3 instead of 2"),
        ({"value.value": np.full(2, np.inf)}, "not finite"),
        ({"value.value": [0.0, 0.0]}, "no plain array"),
        ({}, "missing"),
        ({"value.value": np.zeros(2), "value.x": np.zeros(2)}, "nobody asked for"),
    ):
        assert words in ask(begun, bad, **TRAIN)["refused"]


def test_another_major_version_is_refused_with_a_clear_word(site: Site) -> None:
    answer = ask(site, **(HELLO | {"version": "99.1"}))
    assert "pacpfl 99.1" in answer["refused"] and "same major version" in answer["refused"]


@pytest.mark.parametrize("run", ["", "../up", "ABCDEF01", "g" * 8, "0" * 65])
def test_a_runs_name_cannot_lead_out_of_the_sites_folder(run: str, site: Site) -> None:
    assert "8 to 64 digits" in ask(site, **(HELLO | {"run": run}))["refused"]


def test_the_sites_file_is_written_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    write_site_file(path, tmp_path / "one")
    assert read_site_file(path).data == tmp_path / "one" and read_site_file(path).limits == Limits()
    path.write_text(path.read_text().replace("minimum_samples = 2", "minimum_samples = 9"))
    write_site_file(path, tmp_path / "two")
    read = read_site_file(path)
    assert read.data == tmp_path / "two" and read.limits.minimum_samples == 9


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"minimum_sample": 3}, "no key 'minimum_sample'"),
        ({"minimum_samples": -1}, "at least 0"),
        ({"minimum_samples": True}, "whole number"),
        ({"methods": "pacpfl"}, "a list of str"),
        ({"privacy": "perhaps"}, "not one of any, none, paper"),
        ({"share_sizes": 1}, "true or false"),
    ],
)
def test_a_limit_that_is_none_is_an_error(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_section(Limits, table, "limits", "site.toml")


def test_a_site_file_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    with pytest.raises(InputError, match="pacpfl site start --data"):
        read_site_file(path)
    for text, words in (
        ("x = 1", "no key 'x'"),
        ("[limits]", "where the data"),
        ("=", "not valid"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            read_site_file(path)
