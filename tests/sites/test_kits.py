"""Kits: what is in them, what they allow, how they are renewed; and commands given the wrong one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pacpfl.cli_sites import add_to
from pacpfl.errors import InputError

PROJECT = """
name = "houses"
sites = ["north", "south"]

[server]
host = "127.0.0.1"
port = 8123

[run]
quorum = 2
"""

app = typer.Typer()
add_to(app)


def pacpfl(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "sites.toml").write_text(PROJECT)
    pacpfl("sites", "provision", str(folder / "sites.toml"), "--out", str(folder / "kits"))
    return folder / "kits"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_a_site_runs_one_class_and_obeys_nobody(kits: Path) -> None:
    resources = read(kits / "north" / "local" / "resources.json")
    assert resources["class_allow_list"] == ["pacpfl.engines.flare.executor.SiteExecutor"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    permissions = read(kits / "north" / "local" / "authorization.json")["permissions"]
    assert set(permissions) == {"project_admin"}
    for right in ("byoc", "shell_commands", "operate"):
        assert permissions["project_admin"][right] == "none"


def test_the_server_keeps_its_jobs_in_its_own_kit(kits: Path) -> None:
    from pacpfl.engines.flare.provision import settle

    settle(kits / "server")
    text = (kits / "server" / "local" / "resources.json").read_text()
    assert str(kits / "server" / "store" / "jobs") in text and "/tmp/nvflare" not in text
    classes = read(kits / "server" / "local" / "resources.json")["class_allow_list"]
    assert classes == ["pacpfl.studies.site_server.SitesController"]


def test_the_authority_keeps_no_keys_but_its_own(kits: Path) -> None:
    state = read(kits / "authority" / "houses" / "state" / "cert.json")
    assert set(state) == {"root_cert", "root_pri_key"}
    assert (kits / "authority").stat().st_mode & 0o077 == 0


def test_the_administrators_kit_says_how_runs_go(kits: Path) -> None:
    about = read(kits / "admin@houses.org" / "pacpfl.json")
    assert about["terms"] == {"quorum": 2} and about["sites"] == ["north", "south"]


def test_a_site_is_added_and_a_kit_renewed_by_the_same_authority(kits: Path) -> None:
    project = ["--project", str(kits.parent / "sites.toml"), "--out", str(kits)]
    before = {
        name: (kits / name / "startup" / "client.crt").read_text() for name in ("north", "south")
    }
    said = pacpfl("sites", "add", "west", *project)
    assert said.split() == [str(kits / "west")]
    root = (kits / "north" / "startup" / "rootCA.pem").read_text()
    assert (kits / "west" / "startup" / "rootCA.pem").read_text() == root
    with pytest.raises(InputError, match="already"):
        pacpfl("sites", "add", "west", *project)
    with pytest.raises(InputError, match="no name"):
        pacpfl("sites", "add", "../west", *project)
    shutil.rmtree(kits / "south")
    said = pacpfl("sites", "provision", str(kits.parent / "sites.toml"), "--out", str(kits))
    assert said.split() == [str(kits / "south")]
    assert (kits / "south" / "startup" / "rootCA.pem").read_text() == root
    assert (kits / "south" / "startup" / "client.crt").read_text() != before["south"]
    assert (kits / "north" / "startup" / "client.crt").read_text() == before["north"]


def test_the_wrong_kit_is_named(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the kit of north"):
        pacpfl("server", "start", "--kit", str(kits / "north"))
    with pytest.raises(InputError, match="is no kit"):
        pacpfl("site", "start", "--kit", str(tmp_path), "--data", str(tmp_path))
    with pytest.raises(InputError, match="There are no data"):
        pacpfl("site", "start", "--kit", str(kits / "north"), "--data", str(tmp_path / "none"))
    with pytest.raises(InputError, match="pacpfl site start --data"):
        pacpfl("site", "start", "--kit", str(kits / "north"))
    with pytest.raises(InputError, match="does not answer"):
        pacpfl("sites", "status", "--kit", str(kits / "admin@houses.org"))
