"""Files are whole or not there, whatever happens while they are written, and damage is found."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from pacpfl import files
from pacpfl.errors import InputError

KIND, REMEDY = "pacpfl-test-1", "make it again"
ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "none": np.zeros((0, 4))}
ARRAYS |= {"number": np.array(3.0)}
ABOUT = {"who": "côte", "round": "3"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.safetensors"


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fail(code: int, words: str) -> Callable[..., None]:
    def failing(*_: object) -> None:
        raise OSError(code, words)

    return failing


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(path, monkeypatch, call):
    files.write(path, b"old")
    monkeypatch.setattr(os, call, fail(28, "No space left on device"))
    with pytest.raises(InputError, match="No space left on device") as caught:
        files.write(path, b"new")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old" and names(path) == [path.name]


def test_a_block_that_fails_leaves_the_old_file(path: Path) -> None:
    files.write(path, b"old")
    with pytest.raises(ZeroDivisionError), files.replacing(path) as file:
        file.write(b"ne")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and names(path) == [path.name]


def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(path: Path) -> None:
    files.write(path, b"a file")
    with pytest.raises(InputError, match=r"below\.txt could not be written"):
        files.write(path / "below.txt", b"content")


def test_content_is_on_disk_before_it_gets_its_name(path, monkeypatch):
    """Else a power cut could leave the new name with empty content."""
    events: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    files.write(path, b"content")
    assert events == ["sync", "rename", "sync"]


WRITER = """
import os, sys
from pathlib import Path
from pacpfl import files
path, number = Path(sys.argv[1]), 0
if sys.argv[2:]:
    files.write(path, b"old")
    os.replace = lambda *_: os.kill(os.getpid(), 9)
while True:
    files.write(path, bytes([number % 256]) * 2_000_000)
    number += 1
    print(number, flush=True)
"""


def test_a_kill_between_write_and_rename_leaves_the_old_file(path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITER, str(path), "die"], check=False)
    assert path.read_bytes() == b"old"
    (leftover,) = (path.parent / name for name in names(path) if name != path.name)
    assert leftover.name.startswith(f".{path.name}.")
    files.write(path, b"new")
    assert path.read_bytes() == b"new" and leftover.exists(), "somebody may still be writing it"
    os.utime(leftover, (0, 0))
    files.write(path, b"newer")
    assert path.read_bytes() == b"newer" and names(path) == [path.name]


def test_a_kill_at_any_moment_leaves_a_whole_file(path: Path) -> None:
    random = np.random.default_rng(0)
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(int(random.integers(2, 6))):
            assert writer.stdout.readline()
        writer.kill()
        writer.wait()
        writer.stdout.close()
        content = path.read_bytes()
        assert len(content) == 2_000_000 and set(content) == {content[0]}


def test_a_planted_link_is_not_followed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even of an attacker who knows the random name."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda length: "known")
    victim = path.parent / "victim"
    path.parent.mkdir()
    victim.write_bytes(b"precious")
    planted = path.parent / f".{path.name}.known.partial"
    planted.symlink_to(victim)
    with pytest.raises(InputError, match="File exists"):
        files.write(path, b"content")
    assert victim.read_bytes() == b"precious" and not path.exists()


def test_a_link_in_the_place_of_the_file_is_replaced_itself(path: Path) -> None:
    victim = path.parent / "victim"
    files.write(victim, b"precious")
    path.symlink_to(victim)
    files.write(path, b"content")
    assert victim.read_bytes() == b"precious"
    assert path.read_bytes() == b"content" and not path.is_symlink()


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_neither_replaced_nor_written_to(path: Path, linked: bool) -> None:
    """A pipe stands for devices: root's `--out /dev/full` would put a file in its place."""
    path.parent.mkdir()
    pipe = path.with_name("pipe") if linked else path
    os.mkfifo(pipe)
    if linked:
        path.symlink_to(pipe)
    refused(lambda: files.write(path, b"content"), "is no file")
    refused(lambda: files.append_line(path, {}), "is no file")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and path.is_symlink() == linked
    path.unlink()
    path.symlink_to(path.with_name("victim"))
    path.with_name("victim").write_bytes(b"precious")
    refused(lambda: files.append_line(path, {}), "symbolic links")
    assert path.read_bytes() == b"precious"


HOLD = """
import sys
from pathlib import Path
from pacpfl import files
with files.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_written_by_one_process_and_the_other_told_by_whom(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        refused(lambda: files.locked(folder).__enter__(), f"written by process {holder.pid} of")
        holder.kill()  # by the system, with the lock held
    with files.locked(folder), files.locked(folder / ".." / "run"):
        assert f"process {os.getpid()} of" in (folder / files.LOCK).read_text()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_every_file_has_the_mode_that_the_umask_leaves(path, umask, mask):
    umask(mask)
    plain = path.parent / "plain"
    files.write(path, b"content")
    files.save_arrays(path.with_name("arrays"), KIND, ARRAYS)
    files.append_line(path.with_name("lines"), {})
    plain.touch()
    modes = {mode(entry) for entry in path.parent.iterdir()}
    assert modes == {mode(plain)} == {0o666 & ~mask}


@pytest.mark.parametrize("mask", [0, 0o022])
def test_private_files_are_for_the_user_alone(path, umask, mask):
    umask(mask)
    files.write(path, b"public")
    files.write(path, b"secret", private=True)
    assert mode(path) == 0o600


def test_arrays_and_texts_come_back(path: Path) -> None:
    saved = ARRAYS | {"turned": ARRAYS["a"].T}
    files.save_arrays(path, KIND, saved, ABOUT)
    arrays, about = files.load_arrays(path, KIND, REMEDY)
    assert about == ABOUT and set(arrays) == set(saved)
    for name, array in saved.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)


def refusal(path: Path, kind: str = KIND) -> str:
    return refused(lambda: files.load_arrays(path, kind, REMEDY), str(path), f"; {REMEDY}\\.$")


def test_arrays_of_another_kind_are_refused(path: Path) -> None:
    assert "no file" in refusal(path)
    files.save_arrays(path, KIND, ARRAYS, ABOUT)
    assert "pacpfl-test-1" in refusal(path, "pacpfl-test-2")
    assert "pacpfl-other" in refusal(path, "pacpfl-other-1")
    path.write_bytes(files.save(ARRAYS))  # by somebody else
    assert "pacpfl-test" in refusal(path)


def test_every_damage_to_arrays_is_found(path: Path) -> None:
    """Refused, or without any effect (a blank that is another blank); never used changed."""
    files.save_arrays(path, KIND, ARRAYS, ABOUT)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole + bytes(8))
    refusal(path)
    for place in range(len(whole)):
        for bit in (0, 2, 5):
            flipped = bytes([whole[place] ^ (1 << bit)])
            path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
            try:
                arrays, about = files.load_arrays(path, KIND, REMEDY)
            except InputError:
                continue
            assert about == ABOUT
            assert all((arrays[name] == array).all() for name, array in ARRAYS.items())


def test_json_has_null_for_numbers_that_are_none(path: Path) -> None:
    value = {"a": [1.5, float("nan")], "b": {"c": float("inf")}, "d": (True, None, "x")}
    files.write_json(path, value)
    expected = {"a": [1.5, None], "b": {"c": None}, "d": [True, None, "x"]}
    assert files.read_json(path, REMEDY) == expected


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"nothing", b"[" * 10**5])
def test_json_that_holds_no_object_is_refused(path: Path, content: bytes) -> None:
    refused(lambda: files.read_json(path, REMEDY), r"no file .*make it again")
    files.write(path, content)
    refused(lambda: files.read_json(path, REMEDY), r"damaged .*make it again\.$")


def test_lines_are_appended_after_whole_lines_only(path: Path) -> None:
    assert files.read_lines(path, REMEDY) == []
    files.append_line(path, {"n": 0, "x": float("nan")})
    with open(path, "ab") as file:
        file.write(b'{"n": 1')  # and killed
    assert files.read_lines(path, REMEDY) == [{"n": 0, "x": None}]
    files.append_line(path, {"n": 2})
    assert [entry["n"] for entry in files.read_lines(path, REMEDY)] == [0, 2]
    assert len(path.read_bytes().splitlines()) == 2
    path.write_bytes(b'{"n": ')
    files.append_line(path, {"n": 3})
    assert json.loads(path.read_bytes()) == {"n": 3}


@pytest.mark.parametrize("line", [b"garbage", b"\xff", b"3"])
def test_a_damaged_line_is_named(path: Path, line: bytes) -> None:
    files.write(path, b'{"n": 0}\n' + line + b'\n{"n": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        files.read_lines(path, REMEDY)


def test_a_line_that_does_not_fit_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail(28, "No space left on device"))
    with pytest.raises(InputError, match="No space left on device"):
        files.append_line(path, {})
