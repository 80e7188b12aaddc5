"""Downloads that end with the whole, checked file or with nothing in its place.

Bytes gather in `<file>.partial`; the file itself appears in one step, when its length and its checksum
are right. A broken connection or a busy server is tried again, going on where it stopped. A part left
by an earlier run is continued only where a checksum will tell whether the whole is right.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from pacpfl import files
from pacpfl.errors import InputError, explained, reason

Progress = Callable[[int, int | None], None]  # bytes received, bytes in all where that is known
_CHUNK = 1 << 18
_RANGE_REFUSED = 416
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, _RANGE_REFUSED})  # most say: too busy


class Source(NamedTuple):
    """Where a set is published. Without a checksum that its publishers' users agree on, none is checked."""

    url: str
    file: str
    unpack: str | None = None  # pattern of the names to take out of a zip archive
    checksum: str | None = None  # such as "md5:58c8..."


# LEAF publishes no FEMNIST files, only scripts that make its JSON from NIST's Special Database 19.
SOURCES = {
    "emnist": Source(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "emnist-gzip.zip",
        unpack="emnist-byclass-*-ubyte.gz",
        checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ),
    "emnist-matlab": Source(
        "https://biometrics.nist.gov/cs_links/EMNIST/matlab.zip",
        "emnist-matlab.zip",
        unpack="emnist-byclass.mat",
    ),
    "femnist": Source(
        "https://huggingface.co/datasets/flwrlabs/femnist/resolve/main/data/train-00000-of-00001.parquet",
        "femnist.parquet",
    ),
}


class _Temporary(Exception):
    """Worth another try."""


def download(name: str, folder: Path, progress: Progress | None = None) -> Path:
    """Get one of SOURCES into `folder`, and return what `load_images` reads."""
    if name not in SOURCES:
        raise InputError(f"No set is called {name!r}; choose one of {', '.join(SOURCES)}.")
    source = SOURCES[name]
    file = fetch(source.url, folder / source.file, source.checksum, progress=progress)
    if source.unpack is None:
        return file
    unpacked = unpack(file, source.unpack, folder / name)
    return unpacked[0] if len(unpacked) == 1 else folder / name


def fetch(
    url: str,
    path: Path,
    checksum: str | None = None,
    *,
    tries: int = 4,
    wait: float = 1.0,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Path:
    """Download `url` to `path`, unless a file with the right checksum is there already.

    Without a checksum a file that is there is left as it is. Between tries it waits `wait`, 2 `wait`,
    4 `wait`, ... seconds.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url} is no web address; give one that starts with https://.")
    partial = path.with_name(f"{path.name}.partial")
    with explained(f"{path} could not be written", "make room or choose another folder", OSError):
        if path.exists() and not _mismatch(path, checksum):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        if checksum is None:
            partial.unlink(missing_ok=True)
        version, why = None, ""  # what the server calls the file's version; what went wrong last
        for attempt in range(tries):
            if attempt:
                time.sleep(wait * 2 ** (attempt - 1))
            try:
                with _open(url, partial, version, timeout) as response:
                    version = _version(response)
                    _receive(response, partial, progress)
                _check(url, partial, checksum, response.status == 206)
                os.replace(partial, path)
                return path
            except _Temporary as error:
                why = str(error)
        if checksum is None:
            partial.unlink(missing_ok=True)
    raise InputError(
        f"{url} could not be downloaded in {tries} tries ({why}); check the connection and run it again."
    )


def unpack(archive: Path, pattern: str, folder: Path) -> list[Path]:
    """Take the files whose names match out of a zip archive, into `folder` itself: all, or none."""
    targets: list[Path] = []
    what, remedy = (
        f"{archive} could not be unpacked into {folder}",
        "download it again or make room",
    )
    with (
        explained(what, remedy, OSError, EOFError, zipfile.BadZipFile, zlib.error),
        ExitStack() as together,
        zipfile.ZipFile(archive) as content,
    ):
        # Only the last part of a name counts, so an archive cannot write outside of the folder.
        for member in content.infolist():
            name = Path(member.filename).name
            if not member.is_dir() and fnmatch.fnmatch(name, pattern):
                targets.append(folder / name)
                file = together.enter_context(files.replacing(targets[-1]))
                with content.open(member) as packed:
                    shutil.copyfileobj(packed, file, _CHUNK)
    if not targets:
        raise InputError(f"{archive} holds no file {pattern}; download it again.")
    return sorted(targets)


def _open(url: str, partial: Path, version: str | None, timeout: float) -> http.client.HTTPResponse:
    """Ask the server for what `partial` lacks."""
    start = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "pacpfl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version  # another version by now: the server sends the whole
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            answer = f"the server answered {error.code} {error.reason}{_message(error)}"
        if error.code == _RANGE_REFUSED:
            partial.unlink(missing_ok=True)
        if error.code in _AGAIN:
            raise _Temporary(answer) from error
        raise InputError(
            f"{url} cannot be had: {answer}; check the address or get the file elsewhere and give its "
            "path."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _message(answer: urllib.error.HTTPError) -> str:
    """Return what a service like PVGIS says in its own words, or "" where it says nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
        words = json.loads(answer.read(_CHUNK))["message"]
        return f": {' '.join(str(words).split()).rstrip('.')}"
    return ""


def _version(response: http.client.HTTPResponse) -> str | None:
    """Return the server's name of this version of the file. A weak tag does not promise the same bytes."""
    tag = response.headers.get("ETag", "")
    return response.headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag


def _receive(response: http.client.HTTPResponse, partial: Path, progress: Progress | None) -> None:
    """Write the answer to `partial`: after what is there, or, where it is the whole file, in its place."""
    received = 0
    if response.status == 206:
        received = partial.stat().st_size
        if not response.headers.get("Content-Range", "").startswith(f"bytes {received}-"):
            partial.unlink()
            raise _Temporary("the server sent another part than was asked for")
    length = response.headers.get("Content-Length", "")
    total = received + int(length) if length.isdigit() else None
    with open(partial, "ab" if received else "wb") as file:
        while chunk := _chunk(response, received):
            file.write(chunk)
            received += len(chunk)
            if progress is not None:
                progress(received, total)
    if total is not None and received < total:
        raise _Temporary(f"only {received} of {total} bytes arrived")


def _chunk(response: http.client.HTTPResponse, received: int) -> bytes:
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        broke = f"the connection broke after {received} bytes"
        raise _Temporary(f"{broke} ({reason(error)})") from error


def _check(url: str, partial: Path, checksum: str | None, continued: bool) -> None:
    """Delete a file that is not the right one; if it was continued, the part before may be to blame."""
    if wrong := _mismatch(partial, checksum):
        partial.unlink()
        if continued:
            raise _Temporary(wrong)
        raise InputError(
            f"{url} did not arrive as expected ({wrong}), so nothing was kept; try again later, or get "
            "the file elsewhere and give its path."
        )


def _mismatch(path: Path, checksum: str | None) -> str:
    """Say what is wrong with a file's checksum, or "" where nothing is."""
    if checksum is None:
        return ""
    kind, _, expected = checksum.lower().partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    return "" if found == expected else f"its {kind} is {found} and not {expected}"
