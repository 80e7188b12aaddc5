"""`python -m reproduction fuzz`: damaged and hostile inputs for every format, message and command.

Input number i is drawn from the seed and i alone, so a fault is played again by its number. An input that
is refused in a sentence is well; any other exception, an input that takes longer than PATIENCE, and a word
of a site's data in what it sends are faults.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl import config as configuration
from pacpfl.cli import app as commands
from pacpfl.config import Config, override
from pacpfl.data.settings import TableSettings
from pacpfl.data.site_folder import read_site_folder
from pacpfl.data.store import open_store
from pacpfl.data.tables.read import load_own
from pacpfl.engine import runtime
from pacpfl.engine.training import Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.errors import InputError, Interrupted, SecureAggregationError
from pacpfl.privacy import ledger as ledgers
from pacpfl.privacy.accounting import Plan
from pacpfl.report.folder import read_run
from pacpfl.report.page import render
from pacpfl.secagg import messages
from pacpfl.sites import participation, wire
from pacpfl.sites.kits import read_project
from pacpfl.sites.limits import FILE, read_site_file, write_site_file
from pacpfl.sites.terms import Inquiry, Reply
from pacpfl.sites.trainer import make_site
from pacpfl.version import __version__

PATIENCE = 20  # seconds for one input
WELL = (InputError, Interrupted, SecureAggregationError, wire.Refused)
RUN = "0123456789abcdef"
SECRETS = [f"Geheimnis{number:02d}" for number in range(40)]
WORDS = (
    *("", "nan", "inf", "-1", "0", "1e308", "1e400", "9" * 400, "9" * 5000, "[" * 3000, "{" * 3000),
    *(
        "\x00",
        "\ud800",
        "../../etc/passwd",
        "/dev/null",
        "%s%n",
        "é" * 99,
        "true",
        "[]",
        "{}",
        '"""',
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -1e308, 1e22, "", "x", "nan", [], {}),
    *([[]], [0], [None], {"a": 1}, "9" * 5000, SECRETS[0], [["a", 1]], [1, 2, 3]),
)


class Hang(BaseException):
    """An input that takes too long: no handler of ours may take it for an error of the system."""


class Fault(NamedTuple):
    number: int
    kind: str
    what: str


def mutated(rng: np.random.Generator, content: bytes) -> bytes:
    """Change, cut, double or insert bytes."""
    for _ in range(rng.integers(1, 4)):
        at, to = sorted(rng.integers(0, len(content) + 1, 2))
        how = rng.integers(6)
        if how == 0:
            content = content[:at]
        elif how == 1:
            content = content[:at] + content[to:]
        elif how == 2:
            content = content[:to] + content[at:]
        elif how == 3:
            word = WORDS[rng.integers(len(WORDS))].encode("utf-8", "surrogatepass")
            content = content[:at] + word + content[at:]
        elif how == 4:
            content = content[:at] + rng.bytes(int(rng.integers(1, 9))) + content[at:]
        elif content:
            changed = bytearray(content)
            changed[min(at, len(content) - 1)] ^= 1 << int(rng.integers(8))
            content = bytes(changed)
    return content


def bent(rng: np.random.Generator, value: Any) -> Any:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = list(value)[rng.integers(len(value))]
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return value | {name: bent(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.integers(len(value))
        return [*value[:at], bent(rng, value[at]), *value[at + 1 :]]
    return VALUES[rng.integers(len(VALUES))]


def rechained(lines: list[dict[str, Any]]) -> str:
    """Return a ledger whose chain holds, whatever it says."""
    chain, written = ledgers.START, []
    for line in lines:
        content = {name: value for name, value in line.items() if name != "chain"}
        chain = ledgers._chain(chain, content)
        written.append(json.dumps(content | {"chain": chain}) + "\n")
    return "".join(written)


class Fuzzer:
    """Sound examples of everything, in a folder of its own, and what each kind of input is made of."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "input"
        self.place.mkdir()
        self.config = override(Config(), ["data.samples=5", "particles=2"])
        self.toml = configuration.dump(self.config).encode()
        self.template = {"a": np.zeros((3, 2)), "b": np.zeros(2, np.int32)}, ()
        save_checkpoint(folder / "c", Checkpoint(3, self.template, {"v": np.zeros(3)}), "me")
        plan = Plan("laplace", "all", 4, 4, 10.0, 0.0, 2.0, 20)
        with closing(ledgers.open_ledger(folder / ledgers.FILE, plan, "me", True)) as ledger:
            ledger.release(0, 3)
            ledger.release(3, 8)
        text = (folder / ledgers.FILE).read_text()
        self.ledger = [json.loads(line) for line in text.splitlines()]
        rows = np.random.default_rng(0).normal(size=(40, 2))
        self.table = "client,x,word,day,y\n" + "".join(
            f"c{i // 10},{x:.3f},{SECRETS[i]},2024-01-{1 + i % 28:02d},{y:.3f}\n"
            for i, (x, y) in enumerate(rows)
        )
        self.site = self._site()
        self.kinds: dict[str, Callable[[np.random.Generator], None]] = {
            name.removeprefix("of_"): getattr(self, name) for name in dir(self) if name[:3] == "of_"
        }

    def _site(self) -> Any:
        place = self.folder / "site"
        place.mkdir()
        (place / "own.csv").write_text(self.table)
        write_site_file(place / FILE, place / "own.csv")
        with (place / FILE).open("a") as file:
            file.write('[tables]\ntargets = ["y"]\ncolumns = ["x"]\nclient = "client"\n')
        text = (place / FILE).read_text().replace("maximum_hellos = 1000", "maximum_hellos = 0")
        (place / FILE).write_text(text)
        return make_site("north", place)

    def put(self, name: str, content: bytes) -> Path:
        path = self.place / name
        path.write_bytes(content)
        return path

    # One kind of input each.

    def of_config(self, rng: np.random.Generator) -> None:
        path = self.put("my.toml", mutated(rng, self.toml))
        configuration.load_file(path)

    def of_settings(self, rng: np.random.Generator) -> None:
        names = [line.split(" = ")[0] for line in self.toml.decode().splitlines() if " = " in line]
        name, word = names[rng.integers(len(names))], WORDS[rng.integers(len(WORDS))]
        override(Config(), [f"{name}={word}" if rng.random() < 0.8 else word])

    def of_checkpoint(self, rng: np.random.Generator) -> None:
        path = self.put("c", mutated(rng, (self.folder / "c").read_bytes()))
        load_checkpoint(path, self.template, "me")

    def of_ledger(self, rng: np.random.Generator) -> None:
        lines = json.loads(json.dumps(self.ledger))
        at = rng.integers(len(lines))
        changed = bent(rng, lines[at])
        lines[at] = changed if isinstance(changed, dict) else {}
        content = rechained(lines).encode()
        path = self.put(ledgers.FILE, content if rng.random() < 0.7 else mutated(rng, content))
        if runs := ledgers.read_ledger(path):
            ledgers.total(runs, 1e-5)

    def of_rounds(self, rng: np.random.Generator) -> None:
        lines: list[Any] = [
            {"kind": "segment", "segment": 1, "start": 0, "roster": [["a", 2], ["b", 1]]},
            {"kind": "round", "round": 0, "clients": [0, 2], "sites": ["a", "b"]},
        ]
        at = rng.integers(2)
        lines[at] = bent(rng, lines[at])
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        participation.read(self.put("p", content if rng.random() < 0.7 else mutated(rng, content)))

    def of_npz(self, rng: np.random.Generator) -> None:
        arrays: dict[str, Any] = {"x": np.zeros((4, 2)), "y": np.arange(4.0) % 3, "classes": 3}
        odd = [
            *(np.array(v) for v in (7, -1, 1.5, np.nan, "word", 1j, True, 2**63 - 1)),
            *(np.zeros(s) for s in (0, 3, (4, 1), (4, 2, 1), (0, 2))),
            np.array(["2024"], "M8[D]"), np.zeros(4, [("a", float)]), np.array([7, -1, 1.5, 0]),
        ]  # fmt: skip
        names = ["x", "y", "classes", "shape", "x_test", "y_later"]
        arrays[names[rng.integers(6)]] = odd[rng.integers(len(odd))]
        file = io.BytesIO()
        np.savez(file, **arrays)
        content = file.getvalue()
        shutil.rmtree(self.place / "npz", ignore_errors=True)
        (self.place / "npz").mkdir()
        self.put("npz/c.npz", mutated(rng, content) if rng.random() < 0.4 else content)
        read_site_folder(self.place / "npz")

    def of_store(self, rng: np.random.Generator) -> None:
        about = {"features": 2, "longest": 3, "clients": 2, "version": 1}
        parts = {"x.f32": b"\0" * 40, "y.f32": b"\0" * 20}
        parts["offsets.i64"] = np.array([0, 2, 5]).tobytes()
        parts["store.json"] = json.dumps(bent(rng, about)).encode()
        name = list(parts)[rng.integers(4)]
        parts[name] = mutated(rng, parts[name])
        for one, content in parts.items():
            self.put(one, content)
        open_store(self.place)

    def of_site_file(self, rng: np.random.Generator) -> None:
        content = (self.folder / "site" / FILE).read_bytes()
        read_site_file(self.put(FILE, mutated(rng, content)))

    def of_project(self, rng: np.random.Generator) -> None:
        content = (
            b'name = "houses"\nsites = ["a", "b"]\n[server]\nhost = "h.org"\n[run]\nquorum = 2\n'
        )
        read_project(self.put("sites.toml", mutated(rng, content)))

    def of_table(self, rng: np.random.Generator) -> None:
        path = self.put("t.csv", mutated(rng, self.table.encode()))
        load_own(TableSettings(source=str(path), client="client", target="y"), 0)

    def of_request(self, rng: np.random.Generator) -> None:
        """Whatever a server says, no word of the data leaves the site."""
        text = configuration.dump(override(Config(), ["data.name=tables", *self._asked(rng)]))
        hello = {
            "task": "hello",
            "run": RUN,
            "version": __version__,
            "config": text,
            "method": "pacpfl",
        }
        form = {"features": ["x"], "target": "y", "clients": 4, "later": 0}
        others = [
            {"task": "begin", "run": RUN, "data": form, "seats": {"north": 0}, "encoding": "exact"},
            {"task": "train", "run": RUN, "round": 0, "saved": 0, "take": {"north": [[0, -1]]}},
            {"task": "finish", "run": RUN, "rounds": 3, "data": form, "encoding": "exact"},
            {"task": "secure", "run": RUN, "step": "advertise", "round": 0, "saved": 0, "take": {}},
        ]
        about = hello if rng.random() < 0.3 else others[rng.integers(4)]
        said = json.dumps(bent(rng, about))
        params = [wire.empty(), None, {"value": np.zeros(3)}, {SECRETS[0]: np.zeros(1)}]
        arrays, answer = self.site.answer(params[rng.integers(4)], said)
        sent = answer + "".join(arrays) + "".join(repr(a.tobytes()) for a in arrays.values())
        assert not (leaked := [word for word in SECRETS if word in sent]), f"{leaked} left the site"
        wire.from_text(answer)

    def _asked(self, rng: np.random.Generator) -> list[str]:
        columns = ["client", "x", "word", "day", "y", "nobody"]
        asked = {name: columns[rng.integers(6)] for name in ("target", "client")}
        return ["tables.source=t", *(f"tables.{name}={value}" for name, value in asked.items())]

    def of_reply(self, rng: np.random.Generator) -> None:
        """Whatever a site says, a server refuses it or reads it."""
        form = {"features": ["x"], "target": "y", "clients": 4, "later": 0, "sizes": [1, 2, 3, 4]}
        form |= {"classes": None, "shape": None}
        said: Any = bent(rng, {"version": __version__, "data": form, "round": 0})
        pattern = {"a": np.zeros((2, 3), np.float32)}
        arrays = [
            *(wire.to_wire(pattern), None, {}, {"value['a']": [1]}, {"value['a']": np.zeros(3)}),
            {"value['a']": np.full((2, 3), np.nan, np.float32)},
            {"value['a']": np.array([[object()]])},
        ]
        text = json.dumps(said) if rng.random() < 0.8 else WORDS[rng.integers(len(WORDS))]
        reply = Reply("a", arrays[rng.integers(len(arrays))], text)

        class Net:
            def ask(self, *_: Any) -> list[Reply]:
                return [reply]

        def read(reply: Reply, about: dict[str, Any]) -> Any:
            wire.same_major(__version__, about.get("version"))
            wire.to_form(about.get("data"))
            return wire.from_wire(reply.params, pattern)

        Inquiry(Net(), RUN, 1.0).ask("hello", ["a"], wire.empty(), read)  # type: ignore[arg-type]

    def of_secure(self, rng: np.random.Generator) -> None:
        kinds: list[Any] = [
            messages.Envelope,
            messages.Advertisement,
            messages.SealedShares,
            messages.Revealed,
        ]
        start = [b"", rng.bytes(int(rng.integers(1, 300))), b"\0" * 64, b"\xff" * 64][
            rng.integers(4)
        ]
        kinds[rng.integers(4)].decode(mutated(rng, start + rng.bytes(32)))

    def of_command(self, rng: np.random.Generator) -> None:
        """Commands that read files: their end is an exit code, never a traceback."""
        names = {
            "my.toml": self.toml, "t.csv": self.table.encode(), "m.safetensors": b"",
            "c.safetensors": (self.folder / "c").read_bytes(), "run.json": b'{"methods": {}}',
        }  # fmt: skip
        for name, content in names.items():
            self.put(name, mutated(rng, content))
        first = bent(rng, self.ledger[0])
        chained = rechained([first] if isinstance(first, dict) else [])
        self.put(ledgers.FILE, chained.encode())
        p = str(self.place)
        lines = [
            ["privacy", p], ["report", p], ["certify", p], ["check", f"{p}/my.toml"],
            ["check", f"{p}/t.csv", "--target", "y", "--client", "client"],
            ["init", f"{p}/t.csv", "--target", "y", "--out", f"{p}/new.toml"],
            ["predict", "--model", f"{p}/c.safetensors", "--data", f"{p}/t.csv", "--out", f"{p}/o.csv"],
            ["predict", "--run", p, "--data", f"{p}/t.csv", "--out", f"{p}/o.csv"],
            ["evaluate", f"{p}/m.safetensors", f"{p}/t.csv"],
            ["personalize", f"{p}/c.safetensors", f"{p}/t.csv", "--out", f"{p}/m2.safetensors"],
            ["sites", "provision", f"{p}/my.toml", "--out", f"{p}/kits"],
            ["site", "allow", "--data", f"{p}/t.csv"],
            ["run", WORDS[rng.integers(len(WORDS))].replace("\x00", "")],
            ["run", "polynomial", "--set", WORDS[rng.integers(len(WORDS))], "--out", f"{p}/r/x"],
        ]  # fmt: skip
        line = lines[rng.integers(len(lines))]
        if rng.random() < 0.2:
            line = [*line, WORDS[rng.integers(len(WORDS))]]
        before = sys.argv
        sys.argv = ["pacpfl", *line]
        sink = io.StringIO()
        try:
            with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                commands.main()
        except SystemExit:
            pass
        finally:
            sys.argv = before
        assert "Traceback" not in sink.getvalue()

    def of_page(self, rng: np.random.Generator) -> None:
        place = self.place / "page"
        place.mkdir(exist_ok=True)
        record = {"methods": {"ridge": {"title": "Ridge"}}, "status": "complete", "clients": {}}
        metrics = {"ridge": {"new": {"rsmse": {"mean": 1.0, "ci95": 0.1, "n": 2}}}}
        rows = (
            "method,group,client,kind,samples,later,test,rsmse,ce,nll\nridge,new,a,,5,0,5,1,0.1,2\n"
        )
        (place / "run.json").write_text(json.dumps(record))
        (place / "metrics.json").write_text(json.dumps(metrics))
        (place / "clients.csv").write_bytes(mutated(rng, rows.encode()))
        render(read_run(place), [])


def alarm(*_: Any) -> None:
    raise Hang


def play(inputs: int, seed: int = 0, only: str = "", first: int = 0) -> Iterator[Fault | None]:
    """Play inputs and yield the fault of each, or None."""
    runtime.configure()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        names = [name for name in fuzzer.kinds if only in name]
        before = signal.signal(signal.SIGALRM, alarm)
        try:
            for number in range(first, first + inputs):
                kind, fault = names[number % len(names)], None
                signal.alarm(PATIENCE)
                try:
                    with suppress(*WELL):
                        fuzzer.kinds[kind](np.random.default_rng([seed, number]))
                except Hang:
                    fault = Fault(number, kind, f"no end within {PATIENCE} s")
                except Exception as error:  # what the fuzzer is for
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    said = str(error)[:150]
                    where = f"{Path(last.filename).name}:{last.lineno}"
                    fault = Fault(number, kind, f"{type(error).__name__} at {where}: {said}")
                finally:
                    signal.alarm(0)
                yield fault
        finally:
            signal.signal(signal.SIGALRM, before)


def fuzz(inputs: int, seed: int, only: str, first: int) -> Counter[str]:
    """Play inputs, print each kind of fault once, and return how often each was met."""
    met: Counter[str] = Counter()
    for fault in play(inputs, seed, only, first):
        if fault is not None:
            place = f"{fault.kind}: {fault.what.partition(': ')[0]}"
            if not met[place]:
                print(f"input {fault.number}, {fault.kind}: {fault.what}", flush=True)
            met[place] += 1
    return met
