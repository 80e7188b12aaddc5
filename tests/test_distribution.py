"""The wheel: complete, and what it installs runs outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from patience import patience

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pacpfl"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that pyproject.toml names, as `pip` does it, from the files as they are."""
    out = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("pacpfl-*-py3-none-any.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel):
    """Code, py.typed, configurations, templates and scripts: whatever lies in the package's folder."""
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(about).decode()
    assert names == expected
    assert "pacpfl/py.typed" in names
    for ending in (".toml", ".j2"):
        assert any(name.endswith(ending) for name in names)
    assert "Requires-Python: >=3.11" in metadata
    assert wheel.stat().st_size < 2_000_000


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are those of the running environment,
    lent by a path file, so that nothing is downloaded. The repository is not on the path."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    scheme = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def outside(python: Path, code: str, folder: Path) -> str:
    """What a program prints that runs in a folder of its own, without the caller's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [python, "-c", code],
        cwd=folder,
        env={**kept, "MPLBACKEND": "agg", "PACPFL_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_command_runs_outside_the_repository(installed, tmp_path):
    code = (
        "import sys, pacpfl; from importlib.metadata import distribution; print(pacpfl.__file__); "
        "(command,) = distribution('pacpfl').entry_points; main = command.load(); "
        "sys.argv = ['pacpfl', 'run', 'polynomial', '--out', 'run', "
        "'--set', 'rounds=2', '--set', 'particles=1', '--set', 'clients=2', "
        "'--set', 'new_clients=1', '--set', 'prior.mean=constant', '--set', 'prior.kernel=ard', "
        "'--set', 'run.methods=[\"pacpfl\"]']; main()"
    )
    printed = outside(installed, code, tmp_path)
    assert Path(printed.splitlines()[0]).is_relative_to(installed.parents[1])
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "run" / "metrics.json").is_file()
