"""Every code block of the README and of the pages in docs/ is run, or checked and listed with a reason."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import sklearn
import typer
import typer.main
from commands import several, with_settings

from pacpfl import config
from pacpfl.cli.app import app
from pacpfl.cli.common import shipped
from pacpfl.errors import InputError
from reproduction import __main__ as reproduction

# Commands that are checked (options and arguments, settings, targets, extras) and not run here, and why.
NOT_RUN = {
    "make": "sets up an environment from a package index",
    "pip install": "needs a package index",
    "pip download": "needs a package index",
    "python scripts/reference_years.py": "needs files; reproduction/tests/test_reference_years.py runs it",
    "python -m scripts.stations": "needs files; reproduction/tests/test_stations.py runs it",
    "tensorboard": "a server, and a package of an extra",
    "mlflow": "a server, and a package of an extra",
    "python -m reproduction": "minutes to hours; reproduction/tests runs each with few rounds",
    "python -c": "looks for a GPU",
    "pacpfl sites": "machines of several sites",
    "pacpfl tune": "many trainings; tests/test_tune_cli.py runs it",
    "pacpfl run pv": "two minutes; tests/data/test_pv.py makes its houses, and reproduction trains on them",
    "pacpfl run digits": "compiles long; tests/test_classification_cli.py runs it",
    "pacpfl run certify-": "trains for a minute; tests/certify/test_certify_document.py runs smaller ones",
    "pacpfl certify runs/certify-": "needs such a run",
}
# Pages whose Python another test runs, because it checks more than that it runs.
PYTHON_ELSEWHERE = {
    "CONTRIBUTING.md": "tests/recipes.py",
    "docs/serving.md": "tests/docs/test_serving.py",
    "docs/secure-aggregation.md": "tests/secagg/test_secagg_round.py",
}
LANGUAGES = {"sh", "python", "toml", "json", "text", "indented", "inline"}
PROGRAMS = ("pacpfl", "make", "pip", "python", "tensorboard", "mlflow")
# What stands in a command for something of the reader's.
PLACEHOLDERS = {"SEED": "1", "SIZE": "10", "FOLDER": "folder", "RUN": "run", "PATH": "path"}
# Few rounds of little priors: what is appended to the commands that are run.
SMALL = ("rounds=2", "clients=3", "new_clients=1", "samples=4", "test_samples=4", "alone.steps=2")
WARNINGS_ARE_ERRORS = "import warnings\nwarnings.simplefilter('error')\n"
TINY = {
    "run": (*SMALL, "prior.kernel=ard", "prior.mean=zero", 'methods=["pacpfl"]'),
    "fit": ("rounds=2", "particles=2", "prior.mean=zero", 'methods=["pacpfl"]'),
}


def command_lines(block: Any) -> Iterator[list[str]]:
    """The words of each command of a block; lines that end in a backslash go on."""
    if block.language not in ("sh", "indented", "inline"):
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        if not re.match(r"([A-Z_]+=\S+ )*(" + "|".join(PROGRAMS) + r")( |$)", line.strip()):
            continue
        words = shlex.split(line, comments=True)
        while "=" in words[0]:  # variables set for this command
            words = words[1:]
        yield [re.sub("|".join(PLACEHOLDERS), lambda m: PLACEHOLDERS[m[0]], word) for word in words]


def found(words: list[str], app: typer.Typer = app) -> tuple[Any, list[str]]:
    """The command that words name, through groups of commands, and what is left of them."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            raise ValueError(f"there is no command {' '.join(words)}")
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def check_pacpfl(words: list[str]) -> None:
    """Options, arguments, shipped configurations, studies and settings are as the program knows them."""
    if words[1:] == [] or words[-1] == "--help":
        return
    command, rest = found(words)
    given = command.make_context(words[1], rest).params
    if words[1] == "run":
        base = shipped(given["dataset"]) if given["dataset"] else config.Config()
        config.override(base, list(given["settings"] or ()))


def check_other(words: list[str], root: Path) -> None:
    """Targets of make, extras of pip, modules and scripts of Python: they exist."""
    line = " ".join(words)
    if words[0] == "make":
        targets = set(re.findall(r"(?m)^([a-z-]+):", (root / "Makefile").read_text()))
        named = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]+", word)]
        assert set(named) <= targets, line
    elif words[0] == "pip":
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"(?:pacpfl|\.)\[([^\]]+)\]", line):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), line
    elif words[:3] == ["python", "-m", "reproduction"]:
        command, rest = found(words[2:], reproduction.app)
        command.make_context(line, rest)
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None, line
    elif words[0] == "python" and words[1].startswith("scripts/"):
        assert (root / words[1]).is_file(), line


def test_every_block_is_of_a_kind_that_is_checked(pages):
    assert len(pages.blocks) > 500
    odd = [b.place for b in pages.blocks if b.language not in LANGUAGES]
    assert not odd, f"blocks without a language that is known: {odd}"
    texts = [b for b in pages.blocks if b.language == "text"]
    hidden = [b.place for b in texts if re.search(r"(?m)^pacpfl ", b.text)]
    assert not hidden, f"commands in blocks marked as text: {hidden}"


def check_mentioned(words: list[str]) -> None:
    """A command within a sentence may leave out much, but names nothing that is not there."""
    if not any(word.isupper() for word in words[1:2]):  # `pacpfl COMMAND`
        command, rest = found(words)
        options = {option for p in command.params for option in p.opts} | {"--help"}
        unknown = {word for word in rest if word.startswith("--")} - options
        assert not unknown, f"no options {unknown}"


@pytest.mark.parametrize("mentioned", [False, True])
def test_all_commands_exist_with_their_options(pages, mentioned):
    blocks = [block for block in pages.blocks if (block.language == "inline") is mentioned]
    commands = [(block.place, words) for block in blocks for words in command_lines(block)]
    assert len(commands) > 20
    check_ours, wrong = check_mentioned if mentioned else check_pacpfl, []
    for place, words in commands:
        try:
            check_ours(words) if words[0] == "pacpfl" else check_other(words, pages.root)
        except Exception as error:
            wrong.append(f"{place}: {' '.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_commands_run(pages, tmp_path):
    """All that NOT_RUN does not name, from top to bottom of each page, in a folder for each page."""
    stories: dict[str, list[list[str]]] = {}
    used = set()
    for block in pages.blocks:
        if block.language == "toml" and (named := re.match(r"# (\S+\.toml)\n", block.text)):
            in_folder(tmp_path, block.page).joinpath(named[1]).write_text(block.text)
        for words in command_lines(block) if block.language != "inline" else ():
            reasons = {start for start in NOT_RUN if " ".join(words).startswith(start)}
            used |= reasons
            if not reasons:
                stories.setdefault(block.page, []).append(words)
    unused = set(NOT_RUN) - used
    assert not unused, f"reasons for commands that no page has: {unused}"
    told = [
        (in_folder(tmp_path, page), words[1] not in TINY, [*words[1:], *tiny(words[1])])
        for page in without_repetitions(stories)
        for words in stories[page]
    ]
    assert len(told) >= 10
    ended = several(told, WARNINGS_ARE_ERRORS)
    assert ended.code == 0, ended.output[-2000:] + ended.errors[-3000:]
    predictions = list(tmp_path.glob("*/predictions.csv"))
    assert predictions
    assert all(path.read_text().count("\n") == 3 for path in predictions)


def tiny(command: str) -> list[str]:
    return with_settings(*TINY.get(command, ()))


def without_repetitions(stories: dict[str, list[list[str]]]) -> list[str]:
    """Pages, but for those whose commands another page has as well, in the same order."""
    lines = {page: [" ".join(words) for words in told] for page, told in stories.items()}
    kept: list[str] = []
    for page in sorted(lines, key=lambda page: -len(lines[page])):
        longer = [iter(lines[other]) for other in kept]
        if not any(all(line in rest for line in lines[page]) for rest in longer):
            kept.append(page)
    return kept


def test_a_story_that_is_part_of_another_is_told_once():
    told = {"a": "123", "b": "13", "c": "31", "d": "4"}
    assert without_repetitions(told) == ["a", "c", "d"]


def in_folder(parent: Path, page: str) -> Path:
    """A page's folder, with the tables that the pages speak of: sites, and a new one."""
    folder = parent / page.replace("/", "-")
    if not folder.exists():
        write_tables(folder)
    return folder


def write_tables(folder: Path) -> None:
    random = np.random.default_rng(0)

    def table(rows: int) -> pd.DataFrame:
        x = random.normal(size=(rows, 2)).round(3)
        columns = {"sun": x[:, 0], "wind": x[:, 1]}
        return pd.DataFrame(columns | {"output": (x.sum(1) + random.normal(size=rows)).round(3)})

    (folder / "sites").mkdir(parents=True)
    for number in range(3):
        table(8).to_csv(folder / "sites" / f"site-{number}.csv", index=False)
    table(4).to_csv(folder / "new.csv", index=False)
    table(2).drop(columns="output").to_csv(folder / "ask.csv", index=False)


@pytest.fixture
def settings_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Pages set what a notebook would: the compiler's cache, and scikit-learn's routing."""
    jax.devices()  # once JAX has started, no page changes its devices
    names = ("jax_enable_x64", "jax_compilation_cache_dir")
    names = (*names, "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    with sklearn.config_context():
        yield
    for name, value in before.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


def test_python_blocks_run(pages, tmp_path, monkeypatch, settings_restored, capsys):
    monkeypatch.chdir(tmp_path)
    namespaces: dict[str, dict[str, Any]] = {}
    ran = 0
    for block in pages.blocks:
        if block.language == "python" and block.page not in PYTHON_ELSEWHERE:
            names = namespaces.setdefault(block.page, {"__name__": "__main__"})
            # Empty lines before it, so that an error names the page's line.
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
            ran += 1
            if block.page == "README.md":
                share = re.fullmatch(r"(\d+)% inside the 90% interval\n", capsys.readouterr().out)
                assert share and 60 <= int(share[1]) <= 100
    assert ran >= 13
    for page, test in PYTHON_ELSEWHERE.items():
        assert Path(page).name in (pages.root / test).read_text(encoding="utf-8")


def test_configurations_load(pages):
    blocks = [b for b in pages.blocks if b.language == "toml" and "# pyproject" not in b.text]
    assert blocks
    for block in blocks:
        config.load(block.text, block.place)
    for block in pages.blocks:
        if block.language == "json":
            json.loads(block.text)


def test_settings_in_sentences_exist(pages):
    """`section.key` and `section.key = value` within a sentence are keys, with values that are allowed."""
    wrong, seen = [], 0
    pattern = re.compile(rf"({'|'.join(config.SECTIONS)})\.(?!{FILES}$)([a-z_]+)(?: = (.+))?")
    for block in pages.blocks:
        key = pattern.fullmatch(block.text) if block.language == "inline" else None
        if not key or f"{key[1]}.{key[2]}" in MODULES:
            continue
        seen += 1
        known = {f.rstrip("_") for f in vars(config.SECTIONS[key[1]])}
        if key[2] not in known:
            wrong.append(f"{block.place}: {block.text}")
        elif key[3] and not key[3].isupper():
            try:
                config.override(config.Config(), [f"{key[1]}.{key[2]}={key[3]}"])
            except InputError as error:  # of this key, not of what it would need beside it
                if str(error).startswith("--set"):
                    wrong.append(f"{block.place}: {error}")
    assert seen > 40
    assert not wrong, "\n".join(wrong)


MODULES = {"data.store", "personal.particle_weights", "privacy.accounting"}
FILES = "py|json|jsonl|safetensors"


@pytest.mark.parametrize(
    "line",
    ["pacpfl fly", "pacpfl run polynomial --sat rounds=2", "pacpfl run polynomial --seed two",
     "pacpfl run polynomials", "pacpfl run polynomial --set round=2"],
)  # fmt: skip
def test_a_wrong_command_is_noticed(line):
    with pytest.raises(Exception, match=r"no|No|not|valid|assert"):
        check_pacpfl(shlex.split(line))
