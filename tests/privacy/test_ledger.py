"""The ledger: written before the release, continued, never shortened, changed or opened twice."""

from __future__ import annotations

import json
import multiprocessing
import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from patience import patience
from refusals import refused

from pacpfl.errors import InputError
from pacpfl.privacy import ledger as ledgers
from pacpfl.privacy.accounting import Plan
from pacpfl.privacy.ledger import Ledger, open_ledger, read_ledger, start_over

PLAN = Plan("laplace", "all", 4, 4, 10.0, 0.0, 2.0, 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ledgers.FILE


def opened(path: Path, plan: Plan = PLAN, identity: str = "me") -> Ledger:
    return open_ledger(path, plan, identity, True)


def fill(path: Path) -> str:
    """Two releases, closed; the place where it ends."""
    with closing(opened(path)) as ledger:
        ledger.release(0, 3)
        ledger.release(3, 8)
        place = ledger.position
    return place


def test_what_was_released_is_counted_again_after_it_was_closed(path: Path) -> None:
    assert read_ledger(path) == []
    fill(path)
    with closing(opened(path)) as ledger:
        assert ledger.released == 8
        ledger.release(5, 8)  # from an older checkpoint: these rounds are paid for twice
        assert ledger.released == 11
    (run,) = read_ledger(path)
    assert run.plan == PLAN and run.private and run.identity == "me"
    assert run.releases == ((0, 3), (3, 8), (5, 8))
    assert run.spent().epsilon == pytest.approx(11 / 10.0)
    assert run.spent().adjacency == "add-remove"


def test_a_release_is_on_disk_when_it_is_said_to_be(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with closing(opened(path)) as ledger:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            synced.append(os.fstat(descriptor).st_size)

        monkeypatch.setattr(os, "fsync", fsync)
        ledger.release(0, 1)
        assert synced == [path.stat().st_size]
        assert json.loads(path.read_bytes().splitlines()[-1])["last"] == 1


def test_a_line_that_was_being_written_is_dropped(path: Path) -> None:
    """Its rounds were not released: they wait for the line to be on disk."""
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "release", "first": 8, "la')
    with closing(opened(path)) as ledger:
        assert ledger.released == 8
        ledger.release(8, 9)
    assert path.read_bytes().startswith(whole)
    assert read_ledger(path)[0].released == 9


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], lines[1].replace(b'"last": 3', b'"last": 1'), lines[2]],
        lambda lines: [*lines, b'{"kind": "release", "first": 8, "last": 9}'],
        lambda lines: [lines[0], b"no json", *lines[1:]],
        lambda lines: [lines[0], b"[1, 2]", *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [lines[0].replace(b'"multiplier": 10.0', b'"multiplier": 99.0'), *lines[1:]],
    ],
)
def test_every_change_is_found(path: Path, damage: object) -> None:
    fill(path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(damage(lines)) + b"\n")  # type: ignore[operator]
    for use in (opened, read_ledger):
        refused(partial(use, path), r"damaged \(line")


@pytest.mark.parametrize(
    "change",
    [
        {"plan": None}, {"plan": {}}, {"plan": {"mode": "none"}}, {"plan": {"clients": 2}},
        {"plan": {"multiplier": 0}}, {"plan": {"multiplier": "10"}}, {"plan": {"delta": -1}},
        {"plan": {"sampling": "some"}}, {"plan": {"unit": 3}}, {"plan": {"extra": 1}},
        {"private": 1}, {"started": 4}, {"first": 4}, {"last": "3"}, {"last": 10**12}, {"first": -1},
        {"kind": "release", "first": 0, "last": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_ledger_chained_anew_that_makes_no_sense_is_refused(path: Path, change: dict) -> None:
    """Whoever can write the file can chain it: what it says is checked as well."""
    fill(path)
    entries, chain = [json.loads(line) for line in path.read_bytes().splitlines()], ledgers.START
    one = entries[1 if {"first", "last"} & change.keys() - {"kind"} and "kind" not in change else 0]
    if isinstance(change.get("plan"), dict) and change["plan"]:
        change = {"plan": one["plan"] | change["plan"]}
    one |= change
    for entry in entries:
        content = {name: value for name, value in entry.items() if name != "chain"}
        chain = entry["chain"] = ledgers._chain(chain, content)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    refused(lambda: read_ledger(path), "cannot have been")


def test_a_checkpoint_refuses_a_ledger_that_does_not_lead_to_it(path: Path) -> None:
    place = fill(path)
    lines = path.read_bytes().splitlines(keepends=True)
    with closing(opened(path)) as ledger:
        ledger.release(8, 9)
        ledger.check(place)  # a continuation is what a killed run leaves
    path.write_bytes(b"".join(lines[:2]))  # rolled back
    with closing(opened(path)) as ledger:
        refused(lambda: ledger.check(place), "put the right ledger back")
    path.unlink()  # deleted
    with closing(opened(path)) as ledger:
        for claimed in (place, "", "1 ", f"1 {'0' * 64}"):
            refused(partial(ledger.check, claimed), "not the ledger")
        refused(lambda: read_ledger(path, place), "not the ledger")


def test_a_new_start_keeps_what_was_spent(path: Path) -> None:
    assert start_over(path) == 0
    assert not path.exists()
    fill(path)
    assert start_over(path) == 1
    with closing(opened(path)) as ledger:
        assert ledger.released == 0
        ledger.release(0, 2)
    assert [run.released for run in read_ledger(path)] == [8, 2]
    # Another plan or configuration is another run, too.
    for plan, identity in ((replace(PLAN, multiplier=5.0), "me"), (PLAN, "you")):
        with closing(opened(path, plan, identity)) as ledger:
            assert ledger.released == 0
    assert [run.released for run in read_ledger(path)] == [8, 2, 0, 0]


def try_to_open(path: Path, queue: multiprocessing.Queue[str]) -> None:
    try:
        opened(path).close()
        queue.put("opened")
    except InputError as error:
        queue.put(str(error))


def test_one_process_at_a_time(path: Path) -> None:
    with closing(opened(path)):
        context = multiprocessing.get_context("spawn")
        queue: multiprocessing.Queue[str] = context.Queue()
        other = context.Process(target=try_to_open, args=(path, queue))
        other.start()
        assert "Another process" in queue.get(timeout=patience(60))
        other.join(60)
    opened(path).close()


def test_a_full_disk_stops_the_release(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(path)) as ledger:

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        refused(lambda: ledger.release(0, 5), "could not be written")
    refused(lambda: opened(path.parent / "missing" / "ledger"), "cannot be written")
