"""The architecture, checked: imports point down, and each layer keeps to what it may do.

The sources are parsed, not imported, so that an import inside a function counts too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import with_settings
from patience import patience

from scripts import import_graph
from scripts.import_graph import Module, imports, modules


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# From the bottom to the top. A module may import its own layer and those below it.
PLAN = """
errors files settings types version
arrays bounds calibration hyper likelihoods linalg metrics predictive priors privacy svgd tiles warp watch
data secagg
methods personal
engine
build certify client config conformal defaults folder race run tune
sites
cli estimators report __main__ __init__
"""
LAYERS = tuple(map(words, PLAN.strip().splitlines()))
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}

# Which package may be imported by which part only; an empty set means by nobody.
RESERVED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("matplotlib", "rich", "typer"), words("cli estimators report")),
    "cryptography": words("secagg"),
    "jinja2": words("report"),
    "nvflare": words("sites"),
    **dict.fromkeys(("cloudpickle", "dill", "joblib", "pickle", "shelve"), frozenset()),
}

USERS = words("benchmarks reproduction scripts tests")  # lie beside the package and use it

# Packages and calls that reach beyond the process. The mathematics and the methods use none.
OUTSIDE_PACKAGES = words(
    "csv http io json os pathlib requests safetensors shutil socket sqlite3 subprocess tempfile "
    "tomllib urllib"
)
WRITING = words("save_file savefig savetxt savez tofile write_bytes write_text")
OUTSIDE_CALLS = words(
    "fromfile load loadtxt memmap open read_bytes read_csv read_parquet read_text save savetxt savez "
    "to_csv to_parquet tofile write_bytes write_text"
)
REACHES_OUTSIDE = words(
    "build certify cli client config data engine estimators files folder privacy.ledger report run "
    "sites tune methods.registry"  # the last one loads entry points, which are code
)
BEGINNINGS = {"__main__"}  # what `python -m` runs, and nobody imports
MODULES_OF_A_RUN = 80
PRINTS = words("cli report")
# Where files are written: all others call `files`. Logs stay open and are appended to, samples and
# downloads may be larger than memory.
WRITES = words("files data.download data.store privacy.ledger sites.kits sites.participation")


def calls(module: Module) -> Iterator[tuple[int, str, ast.Call]]:
    """Line, last name (`read_text` of `path.read_text()`) and node of every call."""
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.lineno, node.func.attr, node


def part_of(name: str) -> str:
    """The part of pacpfl that an absolute name belongs to.

    A name that the package itself re-exports may come from any layer: it counts as the top.
    """
    part = name.removeprefix("pacpfl").removeprefix(".").split(".")[0]
    return part if part in HEIGHT else "__init__"


def belongs(module: Module, owners: frozenset[str]) -> bool:
    return any(f"{module.name}.".startswith((f"{owner}.", f"{owner}_")) for owner in owners)


def violations(module: Module) -> list[str]:
    """Return what is wrong with one module, as sentences."""
    if module.part not in HEIGHT:
        return [f"{module.name} stands in no layer: add it to LAYERS in this test"]
    found = [(line, reason) for line, name in imports(module) if (reason := _why_not(module, name))]
    pure = not belongs(module, REACHES_OUTSIDE)
    for line, name, node in calls(module):
        if name == "print" and not belongs(module, PRINTS):
            found.append((line, "prints, which is for cli and report"))
        if _writes(name, node) and not belongs(module, WRITES):
            found.append((line, f"writes by {name}, which is for files"))
        elif name in OUTSIDE_CALLS and pure:
            found.append((line, f"calls {name}, but this layer touches no files"))
        if name == "load" and "allow_pickle=True" in ast.unparse(node):
            found.append((line, "allows pickle, which nobody may"))
    return [f"{module.name}:{line} {reason}" for line, reason in found]


def _writes(name: str, node: ast.Call) -> bool:
    """Tell whether a call writes a file of its own: by its name, or by the mode of `open`.

    What is written into a `file` that `files` opened, or a `target` in memory, is not.
    """
    if name == "open":
        modes = [*node.args[1:], *(word.value for word in node.keywords if word.arg == "mode")]
        return any(set("wax+") & set(ast.unparse(mode).strip("'\"")) for mode in modes)
    own = not (node.args and ast.unparse(node.args[0]) in {"file", "target"})
    return name in WRITING and own


def _why_not(module: Module, name: str) -> str:
    """Return why the module may not import this name; empty if it may."""
    root = name.split(".")[0]
    if root == "pacpfl" and HEIGHT[part_of(name)] > HEIGHT[module.part]:
        return f"imports {name}, which is above it"
    if root in USERS:
        return f"imports {root}, which is a user of the package"
    if root in RESERVED and not belongs(module, RESERVED[root]):
        return f"imports {root}, which is for {', '.join(sorted(RESERVED[root])) or 'nobody'}"
    if root in OUTSIDE_PACKAGES and module.name and not belongs(module, REACHES_OUTSIDE):
        return f"imports {root}, but this layer touches no files"
    return ""


def test_every_module_keeps_to_its_layer() -> None:
    every = list(modules())
    assert len(every) > len(LAYERS), "the sources were not found"
    assert [sentence for module in every for sentence in violations(module)] == []


def test_no_import_leads_back() -> None:
    """Imports in functions count too; those for types alone never happen."""
    every = [import_graph.without_types(module) for module in modules()]
    assert import_graph.cycle(import_graph.import_graph(every)) == []
    assert import_graph.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_every_module_is_imported_by_somebody() -> None:
    """Or named in a text of the sources, as FLARE names the classes that it makes."""
    every = list(modules())
    imported = set().union(*import_graph.import_graph(every).values())
    texts = " ".join(module.text for module in every)
    alone = {
        module.name
        for module in every
        if not (module.is_package or module.name in imported | BEGINNINGS)
        and not re.search(rf'"pacpfl\.{re.escape(module.name)}\b', texts)
    }
    assert alone == set()


MAY_BE_ASKED = {"Private"}  # where its sums are protected


def kinds(every: list[Module]) -> set[str]:
    """Return the names of all classes of priors and methods."""
    found = set()
    for module in every:
        for node in ast.walk(ast.parse(module.text)) if module.part in PROTOCOLS else ():
            if isinstance(node, ast.ClassDef):
                made = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                found |= {node.name} if PROTOCOLS[module.part] & made else set()
    return found


PROTOCOLS = {"priors": {"log_evidence"}, "methods": {"client_update", "personalize"}}


def test_no_prior_and_no_method_is_asked_what_it_is() -> None:
    every = list(modules())
    forbidden = kinds(every) - MAY_BE_ASKED
    assert {"GPPrior", "BNNPrior", "PACPFL", "Ridge", "FedAvg"} <= forbidden
    asked = [
        f"{module.name}:{line} asks {ast.unparse(node)}"
        for module in every
        if module.name != "methods.registry"
        for line, name, node in calls(module)
        if name == "isinstance" and forbidden & set(re.findall(r"\w+", ast.unparse(node.args[1])))
    ]
    assert asked == []


def test_a_run_loads_what_it_needs(tmp_path: Path) -> None:
    """Of the package's modules: no site, no secure sum, no table, no other data set."""
    script = (
        "import sys; from pacpfl import cli; sys.argv[0] = 'pacpfl'\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('pacpfl')))"
    )
    settings = ["rounds=1", "clients=2", "new_clients=1", "samples=4", "test_samples=4",
                "prior.kernel=ard", "prior.mean=zero", 'methods=["pacpfl"]']  # fmt: skip
    command = ["run", "polynomial", "--out", str(tmp_path / "run"), *with_settings(*settings)]
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        capture_output=True, text=True, timeout=patience(100),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert "pacpfl.run" in loaded and len(loaded) < MODULES_OF_A_RUN, loaded
    for part in ("secagg", "data.tables.read", "data.digits", "tune", "certify", "estimators"):
        assert f"pacpfl.{part}" not in loaded


def test_the_page_on_architecture_has_every_part() -> None:
    page = (import_graph.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = re.findall(r"(?m)^  (\w+)(?:\.py|/) +\S", page)
    parts = {path.stem for path in import_graph.PACKAGE.iterdir() if path.name[0] not in "_."}
    assert sorted(tree) == sorted(parts - {"py"})


def test_the_picture_of_the_imports_is_of_today() -> None:
    """`python scripts/import_graph.py` draws it again."""
    assert import_graph.PICTURE.read_text(encoding="utf-8") == import_graph.drawn()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("types", "from pacpfl.priors import gp"),
        ("svgd", "import pacpfl.methods.pacpfl"),
        ("priors.gp", "from ..methods import pacpfl"),
        ("hyper", "from . import personal"),
        ("methods.pacpfl", "def update():\n    from pacpfl.engine.simulate import run"),
        ("engine.simulate", "from pacpfl import config"),
        ("engine.simulate", "from pacpfl import SomethingExported"),
        ("cli", "def reproduce():\n    from reproduction import study"),
        ("errors", "import pacpfl"),
        ("elsewhere", "x = 1"),
        ("engine.simulate", "import rich.progress"),
        ("engine.training", "import pickle"),
        ("engine.flareless", "import nvflare"),
        ("metrics", "from pathlib import Path"),
        ("bounds", "text = open('table').read()"),
        ("privacy", "import numpy as np\nx = np.load('noise.npy')"),
        ("engine.simulate", "print('round')"),
        ("folder", "from pathlib import Path\nPath('run.json').write_text('{}')"),
        ("report.page", "open('page.html', mode='w')"),
        ("data.tables.read", "import numpy as np\nnp.savez('rows.npz', x=1)"),
        ("data.store", "import numpy as np\nx = np.load('x.npy', allow_pickle=True)"),
    ],
)
def test_a_breach_is_found(name: str, text: str) -> None:
    assert len(violations(Module(name, text))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cli", "from pacpfl import __version__\nfrom pacpfl.report import page\nimport rich"),
        ("report.html", "import jinja2, json\nfrom .plots import draw\nfrom ..types import Data"),
        ("sites.controller", "import nvflare\nfrom pacpfl.methods import pacpfl"),
        ("engine.training", "import os\nfrom pacpfl import errors\nopen('x')"),
        ("methods.pacpfl", "from pacpfl import personal, svgd\nfrom .base import Method"),
        ("priors.gp", "from pacpfl.linalg import factor\nfrom pacpfl.types import Data"),
        ("data.store", "import numpy as np\nx = np.load('x.npy', allow_pickle=False)"),
    ],
)
def test_what_is_allowed_passes(name: str, text: str) -> None:
    assert violations(Module(name, text)) == []


def test_relative_imports_of_packages_are_resolved() -> None:
    package = Module("priors", "from . import gp\nfrom .. import types", is_package=True)
    assert [name for _, name in imports(package)] == ["pacpfl.priors.gp", "pacpfl.types"]
    module = Module("priors.gp", "from .networks import mlp\nfrom ..types import Data")
    assert [name for _, name in imports(module)] == [
        "pacpfl.priors.networks.mlp",
        "pacpfl.types.Data",
    ]
