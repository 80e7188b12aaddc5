"""What a site's tables give away: nothing that its own file does not name, whatever the server asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authority import Authority
from local_sites import RUN, Local
from typer.testing import CliRunner

from pacpfl import __version__
from pacpfl import config as configuration
from pacpfl.cli.app import app
from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings, TableSettings
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.sites import said, wire
from pacpfl.sites.limits import FILE, read_site_file, write_site_file
from pacpfl.sites.recipe import recipe_of
from pacpfl.sites.segment import FORM, AtSites
from pacpfl.sites.sharing import Columns, Sharing, draft, site_federation
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Reply, Terms
from pacpfl.sites.trainer import make_site
from pacpfl.types import Federation

ROWS = 12
SECRETS = [f"canary{i:02d}" for i in range(40)]  # in every place where a site's data have words
TABLES = """
[tables]
targets = ["kWh"]
columns = ["load", "panel"]
client = "house"
[categories]
panel = ["new", "old"]
"""
ASKED = TableSettings(source="theirs", target="kWh")


def table(number: int) -> str:
    """Two clients; a column of words that may leave, and four that may not."""
    secret = iter(SECRETS[20 * number :])
    names = [next(secret), next(secret)]
    words = {name: [next(secret) for _ in range(4)] for name in ("name", "diagnosis", "note")}
    lines = ["house,load,panel,name,diagnosis,note,odd,kWh"]
    for row in range(2 * ROWS):
        own = [words[name][row % 4] for name in ("name", "diagnosis", "note")]
        odd = next(secret, "7") if row % 5 == 0 else str(row)
        panel = ("old", "new", SECRETS[19 + 20 * number])[row % 3]
        load = np.sin(row + number)
        cells = [names[row // ROWS], f"{load:.3f}", panel, *own, odd, f"{2 * load:.3f}"]
        lines.append(",".join(cells))
    return "\n".join([*lines, ""])


@pytest.fixture(autouse=True)
def single() -> None:
    runtime.configure("float32")


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    def make(sharing: str = TABLES, number: int = 0) -> Site:
        folder = tmp_path / f"site{number}"
        data = folder / f"{SECRETS[0]}.csv"
        folder.mkdir(exist_ok=True)
        data.write_text(table(number))
        (folder / FILE).unlink(missing_ok=True)
        write_site_file(folder / FILE, data)
        with (folder / FILE).open("a") as file:
            file.write(sharing)
        return make_site(f"site{number}", folder)

    return make


def config_for(tables: TableSettings = ASKED, **more: Any) -> Config:
    return Config(
        data=DataSettings(name="tables"),
        tables=tables,
        train=TrainSettings(rounds=3, particles=2),
        run=RunSettings(methods=("pacpfl",)),
        **more,
    )


class Conversation:
    """A server that says what it likes to a site, and all bytes that came back."""

    def __init__(self, site: Site) -> None:
        self.site, self.heard = site, b""

    def ask(self, params: Any = None, **about: Any) -> dict[str, Any]:
        text = wire.to_text({"run": RUN, **about})
        arrays, said = self.site.answer(wire.empty() if params is None else params, text)
        self.listen(arrays, said)
        return wire.from_text(said)

    def listen(self, arrays: Any, said: Any) -> None:
        self.heard += said.encode() + b"".join(n.encode() + a.tobytes() for n, a in arrays.items())

    def hello(self, config: Config) -> dict[str, Any]:
        text = configuration.dump(config)
        return self.ask(task="hello", version=__version__, config=text, method="pacpfl")

    @property
    def leaked(self) -> list[str]:
        return [secret for secret in SECRETS if secret.encode() in self.heard]


def test_all_secrets_are_in_the_data() -> None:
    whole = table(0) + table(1)
    assert [secret for secret in SECRETS if secret not in whole] == []


@pytest.mark.parametrize("kind", ["plain", "private", "secure"])
def test_a_run_within_what_is_allowed_gives_nothing_else_away(
    kind: str, site: Callable[..., Site], tmp_path: Path
) -> None:
    """All messages of a run. Features are those that the sites' files name, whatever the rows hold."""
    privacy = (
        {"privacy": PrivacySettings(mode="gaussian", epsilon=8.0)} if kind == "private" else {}
    )
    config, authority = config_for(**privacy), Authority()
    here = {f"site{number}": site(number=number) for number in (0, 1)}
    heard = {name: Conversation(one) for name, one in here.items()}
    for name, one in here.items():
        one._passport = authority.passport(name)

    def listen(name: str, about: Any, reply: Reply) -> Reply:
        assert "refused" not in wire.from_text(reply.text), reply.text
        heard[name].listen(reply.params, reply.text)
        return reply

    terms, run = Terms(RUN, 1, secure=kind == "secure"), tmp_path / "run"
    net, recipe = Local(here, spoil=listen), recipe_of(config, "pacpfl")
    outcome = AtSites(net, recipe, configuration.dump(config), terms, run, authority.pem).serve()
    assert outcome.finished, outcome
    assert {about["task"] for about, _, _ in net.asked} == {
        *("hello", "begin", "finish"),
        "secure" if kind == "secure" else "train",
    }
    form = json.loads((run / FORM).read_text())["form"]
    assert form["features"] == ["load", "panel=new", "panel=old"] and form["clients"] == 4
    assert all(one.heard and one.leaked == [] for one in heard.values())


HOSTILE = [
    {"target": "name"}, {"target": "diagnosis"}, {"target": "note", "task": "classes"},
    {"target": "odd"}, {"target": SECRETS[0]}, {"target": "house"},
    {"client": "name"}, {"client": "kWh"}, {"columns": ("name", "diagnosis", "note")},
    {"columns": ("odd",)}, {"columns": ("house",)}, {"columns": ("load", "nothing")},
    {"columns": ("load",), "categorical": ("load",)}, {"columns": ("load",), "dates": ("load",)},
    {"columns": ("panel",), "dates": ("panel",)}, {"unseen": "error"}, {"task": "classes"},
    {"split": "time", "split_by": "note"}, {"split": "column", "split_by": "diagnosis"},
    {"split": "time", "split_by": "panel"}, {"split": "column", "split_by": "load"},
    {"new": (SECRETS[0],)}, {"new_by": "name"}, {"new_by": "panel"}, {"held_out": 0.9},
]  # fmt: skip


@pytest.mark.parametrize("sharing", [TABLES, "", TABLES.replace('panel = ["new", "old"]', "")])
def test_a_hostile_server_reads_nothing(sharing: str, site: Callable[..., Site]) -> None:
    """Forty words that stand in no file's name of a column, in all that comes back to such requests."""
    here = Conversation(site(sharing))
    told = [here.hello(config_for(replace(ASKED, **change))) for change in ({}, *HOSTILE)]
    told += [here.hello(config_for(privacy=PrivacySettings(mode="gaussian", epsilon=8.0)))]
    told += [here.hello(Config()), here.ask(task="train"), here.ask(task="secure", step="x")]
    told += [here.ask(task=SECRETS[0][:3], config=None), here.ask(task="hello")]
    assert here.leaked == []
    assert {answer["refused"] for answer in told if "refused" in answer} <= set(wire.REASONS)
    for answer in told:
        assert set(answer) <= {"refused", "site", "version", "data", "run"}
    assert sum("data" in answer for answer in told) == (2 if sharing == TABLES else 0)
    noted = (here.site.folder / wire.REFUSALS).read_text()
    assert len(noted.splitlines()) == sum("refused" in answer for answer in told)
    if not sharing:
        assert "pacpfl site allow --data PATH" in noted


def test_all_that_leaves_is_written_down_first(site: Callable[..., Site], monkeypatch: Any) -> None:
    there = site()
    assert list(said.sentences(there.folder)) == ["Nothing has left this site."]
    talk = Conversation(there)
    form = talk.hello(config_for())["data"]
    talk.hello(config_for(replace(ASKED, target="name")))
    talk.ask(task="begin", data=form, seats={"site0": 0}, encoding="exact")
    talk.ask(task="x" * 10**5)
    spoken = "\n".join(said.sentences(there.folder))
    for words in (
        f"Run {RUN}",
        "2 clients, the target 'kWh'",
        "load, panel=new",
        "'tables', 1 times",
    ):
        assert words in spoken, spoken
    assert not [secret for secret in SECRETS if secret in spoken] and len(spoken) < 2000
    assert (there.folder / said.FILE).stat().st_mode & 0o077 == 0

    def full(*_: object, **__: object) -> None:
        raise InputError("no room")

    monkeypatch.setattr(said, "note", full)
    heard = talk.heard
    with pytest.raises(InputError, match="no room"):
        talk.hello(config_for())
    assert talk.heard == heard


def test_arrays_of_a_folder_say_no_more(tmp_path: Path) -> None:
    """Files whose names are secrets, one of which cannot be read."""
    for secret in SECRETS[:2]:
        np.savez(tmp_path / f"{secret}.npz", x=np.ones((3, 2)), y=np.arange(3.0))
    write_site_file(tmp_path / FILE, tmp_path)
    here = Conversation(make_site("site", tmp_path))
    assert here.hello(config_for())["data"]["clients"] == 2
    np.savez(tmp_path / f"{SECRETS[2]}.npz", x=np.full((3, 2), np.nan), y=np.arange(3.0))
    assert here.hello(config_for())["refused"] == "data" and here.leaked == []
    assert SECRETS[2] in (tmp_path / wire.REFUSALS).read_text()


def test_what_nobody_thought_of_is_refused_without_its_words(tmp_path: Path) -> None:
    def read() -> Federation:
        raise ZeroDivisionError(SECRETS[0])

    limits = read_site_file_of(tmp_path)
    here = Conversation(
        Site("site", tmp_path, limits, lambda text, method: (recipe_of(config_for(), method), read))
    )
    assert here.hello(config_for())["refused"] == "failed" and here.leaked == []


def read_site_file_of(folder: Path, **limits: Any) -> Any:
    write_site_file(folder / FILE, folder)
    return replace(read_site_file(folder / FILE).limits, **limits)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"methods": ("fedavg",)}, "methods"),
        ({"privacy": "gaussian"}, "privacy"),
        ({"maximum_rounds": 2}, "maximum_rounds"),
        ({"secure": True}, "secure"),
        ({"maximum_hellos": 2}, "maximum_hellos"),
    ],
)
def test_limits_come_before_the_data(limits: dict[str, Any], code: str, tmp_path: Path) -> None:
    """Hellos are counted in all runs and processes together."""
    opened: list[str] = []

    def read() -> Federation:
        opened.append("read")
        raise InputError("no data")

    allowed = read_site_file_of(tmp_path, **limits)
    for number in range(3):
        site = Site(
            "site", tmp_path, allowed, lambda text, method: (recipe_of(config_for(), method), read)
        )
        text = {"task": "hello", "version": __version__, "config": "", "method": "pacpfl"}
        said = site.answer(wire.empty(), wire.to_text({"run": f"aaaaaaa{number}", **text}))[1]
    assert wire.from_text(said)["refused"] == code
    assert opened == ["read"] * 2 * (code == "maximum_hellos")


def test_labels_mean_the_same_at_every_site(tmp_path: Path) -> None:
    """A site without one of the labels still numbers the others as all do."""
    rows = "\n".join(f"{i},{'yes' if i % 2 else 'maybe'}" for i in range(20))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"x,answer\n{rows}\n")
    sharing = Sharing(Columns(("answer",), ("x",)), (("answer", ("maybe", "no", "yes")),))
    federation = site_federation(config_for(TableSettings(target="answer")), tmp_path, sharing)
    assert federation.classes == 3 and set(federation.existing[0].train.y) == {0.0, 2.0}


def test_a_draft_is_read_back_and_lets_no_words_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(re.sub(",canary1[4-8],", ",7,", table(0)))  # no words among numbers
    names = ["--client", "house", "--target", "kWh"]
    told = CliRunner().invoke(app, ["site", "allow", "--data", str(path), *names])
    assert told.exit_code == 0, told.output
    active = [line.partition("#")[0] for line in told.output.splitlines()]
    assert not [secret for secret in SECRETS for line in active if secret in line]
    assert any(line.startswith("# panel = [") for line in told.output.splitlines())
    write_site_file(tmp_path / FILE, path)
    with (tmp_path / FILE).open("a") as file:
        file.write(told.output)
    write_site_file(tmp_path / FILE, path)  # once more: the sections stay
    sharing = read_site_file(tmp_path / FILE).sharing
    assert sharing.columns.targets == ("kWh",) and sharing.columns.client == "house"
    assert "load" in sharing.columns.columns and sharing.words == ()
    federation = site_federation(config_for(), path, sharing)
    assert "name" not in federation.features and "load" in federation.features


def test_a_draft_of_classes_fixes_their_order(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = "\n".join(f"{i / 7},{i % 2}" for i in range(20))
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{rows}\n")
    text = draft(tmp_path, "y")
    assert 'y = ["0", "1"]' in text and text.startswith("[tables]")
    np.savez(tmp_path / "c.npz", x=np.ones((3, 2)), y=np.arange(3.0))
    with pytest.raises(InputError, match="nothing to allow"):
        draft(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tables]\ntarget = 'y'", "no key 'target'"),
        ("[tables]\ntargets = 'y'", "a list of str"),
        ("[categories]\npanel = 'new'", "panel must be a list"),
        ("[categories]\npanel = ['a', 'a']", "different words"),
        ("[categories]\npanel = []", "different words"),
    ],
)
def test_a_section_that_cannot_be_used_says_so(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"data = '.'\n{text}\n")
    with pytest.raises(InputError, match=words):
        read_site_file(tmp_path / FILE)
