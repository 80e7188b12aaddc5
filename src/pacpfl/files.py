"""Files are written here: whole or not at all, and on the disk when a call returns.

A file is written under a random name of its own beside its place, synced, and only then renamed: a
process that is killed, a full disk and two writers at once leave the old file or a new one, never a
half. Devices and pipes are never replaced, links never followed. What is read back (arrays, JSON) is
checked, and what is wrong with it is told in one sentence.
"""

from __future__ import annotations

import fcntl
import getpass
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pacpfl.errors import InputError, explained, reason

Facts = dict[str, Any]  # a JSON object

LEFTOVER_SECONDS = 3600.0  # no write takes as long, so what is older belongs to nobody
MAKE_ROOM = "make room or choose another folder"
LOCK = ".lock"  # in a folder: held by the process that writes it, which it names
_held: set[Path] = set()  # folders that this process has locked


def write(path: Path, content: bytes, private: bool = False) -> None:
    """Put `content` into the file, whole or not at all; folders above it are made.

    Only the user may read what is `private` (0600); of other files the umask decides.
    """
    with replacing(path, private) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends, and is deleted if it fails.

    Without `private` the mode is what the umask leaves of 0666, as with `open`. A link that somebody
    planted where the temporary file goes is not followed, because that file must be new.
    """
    check_regular(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    remedy = f"{MAKE_ROOM}, and start again: what was there before is intact"
    with explained(f"{path} could not be written", remedy, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        descriptor = os.open(temporary, flags, 0o600 if private else 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def check_regular(path: Path) -> None:
    """Refuse to write where a device, a pipe or a link to one is: root would replace it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is there and is no file; choose another name.")


def append(path: Path, private: bool = False) -> BinaryIO:
    """Open a file to append to and to read; a new one has its mode as in `replacing`."""
    check_regular(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o600 if private else 0o666), "a+b")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made, for this process; another one is told who holds it."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with explained(f"{folder} cannot be written", "choose another --out", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve()
        if place in _held:
            yield
            return
        file = append(folder / LOCK, private=True)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip() or "another process"
            raise InputError(
                f"{folder} is being written by {holder}; wait until it has ended, or choose another "
                "--out."
            ) from None
        file.truncate(0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):  # a full disk: the lock holds without a name
            file.write(f"process {os.getpid()} of {_user()} since {since}\n".encode())
            file.flush()
        _held.add(place)
        try:
            yield
        finally:
            _held.discard(place)
            if made and os.listdir(folder) == [LOCK]:  # nothing came of it: leave no trace
                with suppress(OSError):
                    (folder / LOCK).unlink()
                    for path in made:
                        path.rmdir()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return f"user {os.getuid()}"


def keep(path: Path, before: Path) -> None:
    """Keep what a file holds under a second name, also while the file itself is written anew."""
    check_regular(path)
    temporary = before.with_name(f".{before.name}.{secrets.token_hex(8)}.partial")
    with explained(f"{before} could not be written", MAKE_ROOM, OSError):
        try:
            os.link(path, temporary, follow_symlinks=False)
        except OSError:  # file systems without hard links
            shutil.copyfile(path, temporary, follow_symlinks=False)
        os.replace(temporary, before)


class Damaged(InputError):
    """A file does not hold what was saved in it."""


def save_arrays(
    path: Path,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    about: Mapping[str, str] | None = None,
    private: bool = False,
) -> None:
    """Write named arrays as safetensors, with what is said of them and a digest of everything.

    `kind` says what the file holds and in which version, such as "pacpfl-model-1".
    """
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {**(about or {}), "format": kind}
    write(path, save(arrays, metadata | {"digest": _digest(arrays, metadata)}), private)


def load_arrays(path: Path, kind: str, remedy: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays and texts, by name, of a file that `save_arrays` wrote.

    `remedy` is the way out: it ends every sentence about a file that is missing, of another kind or
    version, or not as it was saved.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}; {remedy}.")
    try:
        with safe_open(path, framework="numpy") as file:
            about = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise damaged(path, error, remedy) from error
    saved, (family, _, _) = about.get("format", ""), kind.rpartition("-")
    if saved != kind and saved.rpartition("-")[0] == family:
        raise InputError(f"{path} has the format {saved}, not the present one, {kind}; {remedy}.")
    if saved != kind:
        raise InputError(f"{path} is no file of the kind {family}; {remedy}.")
    digest = about.pop("digest", None)
    if digest != _digest(arrays, about):
        raise damaged(path, "its content is not what was saved", remedy)
    del about["format"]
    return arrays, about


def damaged(path: Path, why: Exception | str, remedy: str) -> Damaged:
    """Return the error that says that a file does not hold what it should, and why."""
    words = why if isinstance(why, str) else reason(why)
    return Damaged(f"{path} is damaged ({words}); {remedy}.")


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Write a JSON file for people and programs: indented, numbers that are none as null."""
    write(path, (json.dumps(finite(value), indent=2) + "\n").encode(), private)


def read_json(path: Path, remedy: str) -> Facts:
    """Return the object in a JSON file; InputError with `remedy` if there is none."""
    try:
        return _object(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}; {remedy}.") from error
    except (OSError, ValueError) as error:
        raise damaged(path, error, remedy) from error


def read_toml(path: Path, remedy: str) -> Facts:
    """Return the table in a TOML file; InputError with `remedy` if there is no file."""
    with explained(f"{path} cannot be read", remedy, OSError, UnicodeDecodeError):
        return parse_toml(path.read_text(encoding="utf-8"), str(path))


def parse_toml(text: str, origin: str) -> Facts:
    """Return the table that TOML says; errors name `origin`, a file."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise InputError(f"{origin} is not valid TOML: {reason(error)}.") from error


def finite(value: Any) -> Any:
    """Return the value with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_line(path: Path, entry: Mapping[str, Any], private: bool = False) -> None:
    """Append one JSON object to a file of lines; it is on the disk when this returns.

    A last line that was cut off, when a process was killed while it wrote, is removed first.
    """
    with explained(f"{path} could not be written", MAKE_ROOM, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with append(path, private) as file:
            _cut_half_line(file)
            file.write(json.dumps(finite(entry)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(path.parent)


def read_lines(path: Path, remedy: str) -> list[Facts]:
    """Return the JSON objects in a file of lines, or none where there is no file.

    Only the last line may be half written, and then does not count.
    """
    if not path.exists():
        return []
    with explained(f"{path} cannot be read", remedy, OSError):
        content = path.read_bytes()
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            found.append(_object(line))
        except ValueError as error:
            raise damaged(path, f"line {number}: {reason(error)}", remedy) from error
    return found


def _object(content: bytes) -> Facts:
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def _cut_half_line(file: BinaryIO) -> None:
    """Shorten a file, open for reading and appending, to its whole lines."""
    length = file.seek(0, os.SEEK_END)
    if not length:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _remove_leftovers(path: Path) -> None:
    """Delete what processes that were killed long ago left of this file."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.lstat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()


def sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    """Return a hash of the arrays and of what is said about them: a changed text is damage, too."""
    total = hashlib.sha256(repr(sorted(about.items())).encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()
