"""What has left a site: a line for every answer, on disk before it leaves, and the same in plain words.

There is no switch: an answer that cannot be written down does not leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pacpfl import files
from pacpfl.files import Facts

FILE = "said.jsonl"
REMEDY = "look at it before the site answers again: what has left is written there"


def note(folder: Path, asked: Facts, arrays: Mapping[str, np.ndarray], message: Facts) -> None:
    """Write down an answer: what was asked, the words in it, and how many numbers."""
    entry: Facts = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: asked[name] for name in ("task", "run", "round", "step") if name in asked},
        "numbers": sum(int(array.size) for array in arrays.values()),
        "bytes": sum(int(array.nbytes) for array in arrays.values()),
        "words": {name: value for name, value in message.items() if name not in ("site", "run")},
    }
    files.append_line(folder / FILE, entry, private=True)


def sentences(folder: Path) -> Iterator[str]:
    """Say run by run what has left the site."""
    lines = files.read_lines(folder / FILE, REMEDY)
    if not lines:
        yield "Nothing has left this site."
    for run in dict.fromkeys(str(line.get("run", "")) for line in lines):
        own = [line for line in lines if str(line.get("run", "")) == run]
        name = f"Run {run}" if run else "Requests that name no run"
        yield f"{name}, {own[0]['time']} to {own[-1]['time']}:"
        yield from (f"  {words}" for words in _of_run(own))


def _of_run(lines: list[Facts]) -> Iterator[str]:
    refused = Counter(str(line["words"]["refused"]) for line in lines if "refused" in line["words"])
    told = [line for line in lines if "refused" not in line["words"]]
    for form in {
        repr(line["words"].get("data")): line["words"].get("data") for line in told
    }.values():
        if form:
            yield _form(form)
    if any("introduction" in line["words"] for line in told):
        yield "the keys and the certificate with which it takes part in secure rounds"
    for task, words in (
        ("train", "updates, in the open"),
        ("secure", "masked messages of secure rounds"),
    ):
        own = [line for line in told if line.get("task") == task]
        if own:
            rounds = {line.get("round") for line in own}
            size = sum(line["bytes"] for line in own)
            yield f"{words}: {len(rounds)} rounds, {size / 1000:,.1f} kB, at most " + (
                f"{max(line['numbers'] for line in own)} numbers each"
            )
    for code, often in sorted(refused.items()):
        yield f"the refusal {code!r}, {often} times"


def _form(form: Facts) -> str:
    names = ", ".join(map(str, form.get("features", ())))
    text = f"that it has {form.get('clients')} clients, the target {form.get('target')!r} and the features "
    text += names + (f", {form['classes']} classes" if form.get("classes") else "")
    sizes = form.get("sizes")
    return text + (f", and clients of {', '.join(map(str, sizes))} samples" if sizes else "")
