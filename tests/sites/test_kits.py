"""Kits: what is in them, what they allow, how they are renewed; and commands given the wrong one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psutil
import pytest
from authority import Authority
from deployment import ADMIN, Deployment
from typer.testing import CliRunner

from pacpfl.cli.app import app
from pacpfl.errors import InputError
from pacpfl.sites.kits import settle

PROJECT = """
name = "houses"
sites = ["north", "south"]

[server]
host = "127.0.0.1"
port = 8123

[run]
quorum = 2
"""


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


def test_what_a_kit_says_and_allows(kits: Path) -> None:
    """A site runs one class and obeys nobody; the authority keeps no keys but its own."""
    resources = read(kits / "north" / "local" / "resources.json")
    assert resources["class_allow_list"] == ["pacpfl.sites.executor.SiteExecutor"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    permissions = read(kits / "north" / "local" / "authorization.json")["permissions"]
    assert set(permissions) == {"project_admin"}
    for right in ("byoc", "shell_commands", "operate"):
        assert permissions["project_admin"][right] == "none"
    state = read(kits / "authority" / "houses" / "state" / "cert.json")
    assert set(state) == {"root_cert", "root_pri_key"}
    assert (kits / "authority").stat().st_mode & 0o077 == 0
    about = read(kits / ADMIN / "pacpfl.json")
    assert about["terms"] == {"quorum": 2} and about["sites"] == ["north", "south"]


def test_the_server_keeps_its_jobs_in_its_own_kit(kits: Path) -> None:
    settle(kits / "server")
    text = (kits / "server" / "local" / "resources.json").read_text()
    assert str(kits / "server" / "store" / "jobs") in text and "/tmp/nvflare" not in text
    classes = read(kits / "server" / "local" / "resources.json")["class_allow_list"]
    assert classes == ["pacpfl.sites.controller.SitesController"]


def test_a_site_is_added_and_a_kit_renewed_by_the_same_authority(kits: Path) -> None:
    project = ["--project", str(kits.parent / "sites.toml"), "--out", str(kits)]

    def part(name: str, file: str = "rootCA.pem") -> str:
        return (kits / name / "startup" / file).read_text()

    before = {name: part(name, "client.crt") for name in ("north", "south")}
    said = pacpfl("sites", "add", "west", *project)
    assert said.split() == [str(kits / "west")]
    root = part("north")
    assert part("west") == root
    for name, words in (("west", "already"), ("../west", "no name")):
        with pytest.raises(InputError, match=words):
            pacpfl("sites", "add", name, *project)
    shutil.rmtree(kits / "south")
    said = pacpfl("sites", "provision", str(kits.parent / "sites.toml"), "--out", str(kits))
    assert said.split() == [str(kits / "south")]
    assert part("south") == root
    assert part("south", "client.crt") != before["south"]
    assert part("north", "client.crt") == before["north"]
    said = pacpfl("sites", "provision", str(kits.parent / "sites.toml"), "--out", str(kits))
    assert "to renew one, delete its folder first" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("server", "start", "--kit", "north"), "kit of north, and the server's is needed"),
        (("site", "start", "--kit", "server"), "kit of server, and a site's is needed"),
        (("site", "start", "--kit", "none"), "is no kit"),
        (("site", "start", "--kit", "north"), "with --data"),
        (("site", "start", "--kit", "north", "--data", "none"), "There are no data"),
        (("site", "start", "--kit", "north", "--data", "empty"), "There are no data"),
        (("site", "personalize", "--kit", "north"), "no result of a run"),
        (("sites", "status", "--kit", "north"), "and the administrator's is needed"),
        (("sites", "status", "--kit", ADMIN, "--run", "empty"), "no run across sites"),
        (("sites", "status", "--kit", ADMIN), "does not answer"),
        (("sites", "provision", "none"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(
    words: tuple[str, ...], said: str, kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kits / "empty").mkdir(exist_ok=True)
    monkeypatch.chdir(kits)
    with pytest.raises(InputError, match=said) as error:
        pacpfl(*words)
    assert str(error.value).count(". ") == 0, "one sentence"


def test_a_certificate_that_ends_is_told_in_time(kits: Path, tmp_path: Path) -> None:
    kit = tmp_path / ADMIN
    shutil.copytree(kits / ADMIN, kit)
    authority, certificate = Authority(), kit / "startup" / "client.crt"
    certificate.write_text(authority.passport("anybody", days=10).certificate)
    result = CliRunner().invoke(app, ["sites", "status", "--kit", str(kit)])
    assert "in 9 days; renew the kit" in result.output
    certificate.write_text(authority.passport("anybody", days=-1).certificate)
    with pytest.raises(InputError, match=r"ended on .*; renew the kit"):
        pacpfl("sites", "status", "--kit", str(kit))


def test_the_server_listens_on_no_other_device_than_its_host_names(deployment: Deployment) -> None:
    process = psutil.Process(deployment.processes["server"].pid)
    every = [process, *process.children(recursive=True)]
    found = [c.laddr for p in every for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert deployment.port in {address.port for address in found}
    assert {address.ip for address in found} == {"127.0.0.1"}


def test_a_renewed_kit_connects(deployment: Deployment) -> None:
    """Of the new kit the site takes the folder with certificate and key, and keeps all else."""
    kit, old = deployment.kits / "west", deployment.folder / "old"
    deployment.kill("west")
    kit.rename(old)
    pacpfl("sites", "provision", str(deployment.file), "--out", str(deployment.kits))
    shutil.rmtree(old / "startup")
    (kit / "startup").rename(old / "startup")
    shutil.rmtree(kit)
    old.rename(kit)
    deployment.start("west")
    deployment.wait_connected("west")
