"""What a configuration means across sites; the project's file; a site's own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.settings import DataSettings, TableSettings
from pacpfl.errors import InputError
from pacpfl.methods import registry
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.registry import build_method
from pacpfl.methods.transforms import Private
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.sites.kits import Project, read_project
from pacpfl.sites.recipe import recipe_of
from pacpfl.sites.sharing import Columns, Sharing, site_federation
from pacpfl.types import Form

CONFIG = Config(data=DataSettings(clients=5, samples=8))
FORM = Form(("x",), clients=5)


def test_the_method_is_that_of_one_machine() -> None:
    made = recipe_of(CONFIG, "pacpfl").build(FORM)
    expected = build_method("pacpfl", CONFIG, build_federation(CONFIG).form)
    assert isinstance(made, PACPFL) and isinstance(expected, PACPFL)
    assert replace(made, optimizer=expected.optimizer) == expected


def test_lambda_needs_sizes() -> None:
    config = replace(CONFIG, train=TrainSettings(lambda_=20.0))
    with pytest.raises(InputError, match="share_sizes"):
        recipe_of(config, "pacpfl").build(FORM)
    made = recipe_of(config, "pacpfl").build(FORM._replace(sizes=(8,) * 5))
    expected = build_method("pacpfl", config, build_federation(config).form)
    assert made.tau == expected.tau  # type: ignore[attr-defined]


def test_a_private_run_is_private_at_both_ends() -> None:
    config = replace(CONFIG, privacy=PrivacySettings(mode="gaussian", epsilon=2.0, clip=0.7))
    known = recipe_of(config, "pacpfl")
    assert (known.privacy, known.clip) == ("gaussian", 0.7)
    assert isinstance(known.build(FORM), Private)
    assert recipe_of(config, "fedavg").privacy == "none"


def test_a_private_method_of_another_package_is_private_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = {**registry.entries(), "theirs": replace(registry.entry("pacpfl"), name="theirs")}
    monkeypatch.setattr(registry, "entries", lambda: every)
    config = replace(CONFIG, privacy=PrivacySettings(mode="gaussian", epsilon=2.0, clip=0.7))
    known = recipe_of(config, "theirs")
    assert isinstance(known.build(FORM), Private)
    assert (known.privacy, known.clip) == ("gaussian", 0.7)


def test_what_cannot_be_done_across_sites_is_said() -> None:
    with pytest.raises(InputError, match="does not learn in rounds"):
        recipe_of(CONFIG, "ridge")
    with pytest.raises(InputError, match="does not learn in rounds"):
        recipe_of(CONFIG, "nothing")
    config = replace(CONFIG, data=DataSettings(standardize="global"))
    with pytest.raises(InputError, match="in one place"):
        recipe_of(config, "pacpfl")


def test_a_sites_tables_are_read_from_its_own_path(tmp_path: Path) -> None:
    """Whatever source the server's configuration names."""
    rows = "\n".join(f"{i},{2 * i}" for i in range(20))
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text(f"a,b\n{rows}\n")
    config = Config(
        data=DataSettings(name="tables"), tables=TableSettings(source="elsewhere", target="b")
    )
    sharing = Sharing(Columns(("b",), ("a",)))
    federation = site_federation(config, tmp_path, sharing)
    assert [client.name for client in federation.existing] == ["north", "south"]
    assert federation.features == ("a",)
    with pytest.raises(InputError, match="how to read tables"):
        site_federation(CONFIG, tmp_path, sharing)
    with pytest.raises(InputError, match="no data at"):
        site_federation(CONFIG, tmp_path / "nowhere", sharing)


def test_a_site_scales_by_its_own_samples(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=random.normal(5, 3, (50, 2)), y=random.normal(2, 4, 50))
    config = replace(CONFIG, data=DataSettings(standardize="client"))
    train = site_federation(config, tmp_path, Sharing()).existing[0].train
    np.testing.assert_allclose([train.x.mean(), train.y.mean()], 0, atol=1e-12)
    np.testing.assert_allclose([train.x.std(0).min(), train.y.std()], 1, rtol=1e-12)


def test_the_projects_file(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    good = 'name = "houses"\nsites = ["a", "b"]\n[server]\nhost = "here.example.org"\n'
    path.write_text(good)
    expected = Project("houses", ("a", "b"), "here.example.org", 8002, "admin@houses.org")
    assert read_project(path) == expected
    path.write_text(f"{good}[run]\nquorum = 2\ndeadline = 9\n")
    assert dict(read_project(path).terms) == {"quorum": 2, "deadline": 9}
    for change, words in (
        (('["a", "b"]', "[]"), "name the sites"),
        (('["a", "b"]', '["a", "a"]'), "named twice"),
        (('["a", "b"]', '["a", "../b"]'), "no name"),
        (('["a", "b"]', '["server"]'), "is taken"),
        (("host =", "hosts ="), "where sites reach"),
        (("[server]", "[server]\nport = 0"), "no port"),
        (('name = "houses"', 'admin = "me"'), "no address"),
        (("[server]", "[server"), "not valid TOML"),
        (("[server]", "[run]\nquorum = 0\n[server]"), "at least 1"),
        (("[server]", '[run]\nencoding = "int4"\n[server]'), "is not one of exact"),
        (("[server]", "[run]\nsegment = 3\n[server]"), "no key 'segment'"),
    ):
        path.write_text(good.replace(*change))
        with pytest.raises(InputError, match=words):
            read_project(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_project(tmp_path / "none.toml")
