"""Kits: what is in them, what they allow, how they are renewed; and commands given the wrong one."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from deployment import ADMIN, Deployment
from typer.testing import CliRunner

from pacpfl.cli.app import app
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
    assert resources["class_allow_list"] == ["pacpfl.sites.executor.SiteExecutor"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    permissions = read(kits / "north" / "local" / "authorization.json")["permissions"]
    assert set(permissions) == {"project_admin"}
    for right in ("byoc", "shell_commands", "operate"):
        assert permissions["project_admin"][right] == "none"


def test_the_server_keeps_its_jobs_in_its_own_kit(kits: Path) -> None:
    from pacpfl.sites.kits import settle

    settle(kits / "server")
    text = (kits / "server" / "local" / "resources.json").read_text()
    assert str(kits / "server" / "store" / "jobs") in text and "/tmp/nvflare" not in text
    classes = read(kits / "server" / "local" / "resources.json")["class_allow_list"]
    assert classes == ["pacpfl.sites.controller.SitesController"]


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


def test_when_all_kits_are_there_it_says_so(kits: Path) -> None:
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
    certify(kit / "startup" / "client.crt", days=10)
    result = CliRunner().invoke(app, ["sites", "status", "--kit", str(kit)])
    assert "in 9 days; renew the kit" in result.output
    certify(kit / "startup" / "client.crt", days=-1)
    with pytest.raises(InputError, match=r"ended on .*; renew the kit"):
        pacpfl("sites", "status", "--kit", str(kit))


def certify(path: Path, days: int) -> None:
    """A certificate that is valid for so many days from now; who signed it is no matter here."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anybody")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=90))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


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
