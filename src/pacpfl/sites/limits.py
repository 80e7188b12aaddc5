"""What a site allows, whatever the server asks: a file at the site, read at each start (docs/deploy.md).

A request beyond a limit is refused, and the reason is written down at the site.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.settings import Settings, key
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.sharing import Sharing, read_sharing
from pacpfl.sites.terms import read_section
from pacpfl.sites.wire import REFUSALS, Refused

FILE = "site.toml"
MODES = ("any", "none", "paper", "laplace", "gaussian")


@dataclass(frozen=True)
class Limits(Settings):
    """A site's limits; 0, the empty list and `any` mean: none."""

    methods: tuple[str, ...] = key((), "allowed; none named: all")
    largest_model: int = key(0, "numbers in the server's state, at most", least=0)
    clip_norm: float = key(0.0, "to which updates must be clipped, so privacy must be on", least=0)
    minimum_samples: int = key(2, "of every client that takes part", least=0)
    maximum_rounds: int = key(0, "in all runs together", least=0)
    maximum_hellos: int = key(1000, "answered in all runs together; one opens a segment", least=0)
    privacy: str = key("any", "mode that is required", choices=MODES)
    share_sizes: bool = key(False, "tell the server how many samples each client has")
    secure: bool = key(False, "updates leave in sums over several sites only")

    def check_request(self, recipe: Recipe, secure: bool = False) -> None:
        """Check a run before anything of the data is read for it."""
        for limit, problem in self._problems(recipe, secure):
            raise Refused(problem, limit)
        self.check_clip(recipe.clip or 0.0)

    def _problems(self, recipe: Recipe, secure: bool) -> Iterator[tuple[str, str]]:
        if self.secure and not secure:
            yield (
                "secure",
                "secure aggregation is required here, and the run sends updates in the open; set "
                "secure = true in [run]",
            )
        if self.methods and recipe.method not in self.methods:
            only = ", ".join(self.methods)
            yield "methods", f"method {recipe.method} is not allowed here, only {only}"
        if self.privacy not in ("any", recipe.privacy):
            problem = f"privacy mode {self.privacy} is required here, and the run has "
            yield "privacy", problem + recipe.privacy
        if self.clip_norm and recipe.clip is None:
            yield "clip_norm", "updates must be clipped here, and the run does not clip them"
        if 0 < self.maximum_rounds < recipe.rounds:
            problem = f"the run wants {recipe.rounds} rounds, and {self.maximum_rounds} are "
            yield "maximum_rounds", problem + "allowed here"

    def check_samples(self, samples: list[int]) -> None:
        if few := sum(m < self.minimum_samples for m in samples):
            raise Refused(
                f"{few} clients have fewer than the {self.minimum_samples} samples required here",
                "minimum_samples",
            )

    def check_model(self, numbers: int) -> None:
        if self.largest_model and numbers > self.largest_model:
            raise Refused(
                f"the model has {numbers} numbers, and {self.largest_model} are allowed here",
                "largest_model",
            )

    def check_clip(self, clip: float) -> None:
        """Check the clip norm, also in every round: the server sends it."""
        if self.clip_norm and not clip <= self.clip_norm:
            raise Refused(
                f"a clip norm of {clip:g} is above the {self.clip_norm:g} allowed here", "clip_norm"
            )

    def check_count(self, what: str, answered: int) -> None:
        """Check how many `rounds` or `hellos` were answered in all runs together."""
        limit = f"maximum_{what}"
        if 0 < (most := getattr(self, limit)) <= answered:
            raise Refused(f"all {most} {what} that are allowed here were answered", limit)


class SiteFile(NamedTuple):
    data: Path
    limits: Limits
    sharing: Sharing


def read_site_file(path: Path) -> SiteFile:
    table = files.read_toml(path, "pacpfl site start --data PATH writes it")
    unknown = set(table) - {"data", "limits", "tables", "categories"}
    if unknown:
        raise InputError(
            f"{path}: there is no key {min(unknown)!r}; there are data, [limits], [tables] and "
            "[categories]."
        )
    data, limits = table.get("data"), table.get("limits", {})
    if not isinstance(data, str) or not data:
        raise InputError(f'{path}: say where the data are, data = "PATH".')
    return SiteFile(
        (path.parent / data).resolve(),
        Limits(**read_section(Limits, limits, "limits", str(path))),
        read_sharing(table, str(path)),
    )


def write_site_file(path: Path, data: Path) -> None:
    """Write a new file with every limit at its default, or another path to the data into the old one."""
    line = f"data = {json.dumps(str(data), ensure_ascii=False)}"
    if path.exists():
        top, head, rest = path.read_text(encoding="utf-8").partition("\n[")
        kept = [old for old in top.splitlines() if not old.lstrip().startswith("data")]
        text = "\n".join([line, *kept, ""]).rstrip("\n") + f"\n{head}{rest}"
    else:
        limits = (
            f"{f.name} = {json.dumps(f.default)}  # {f.metadata['help']}" for f in fields(Limits)
        )
        text = "\n".join([line, "", "[limits]", *limits, ""])
    files.write(path, text.encode())


class Tally:
    """Counts by run, in a file of the site; who is killed before an answer leaves has counted it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Counter[str]:
        return Counter(json.loads(self.path.read_text()) if self.path.exists() else {})

    def add(self, run: str) -> None:
        files.write_json(self.path, self.read() + Counter([run]))


def note_refusal(folder: Path, reason: str, asked: Facts) -> None:
    """Append a line for the people at the site: when, what was asked, why not."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason, **asked}
    files.append_line(folder / REFUSALS, entry, private=True)  # it may quote the data
