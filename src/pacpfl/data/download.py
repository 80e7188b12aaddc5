"""Downloads that end with the whole, checked file or with nothing in its place.

Bytes gather in `<file>.partial`; the file itself appears in one step, when its length and its checksum
are right. A broken connection or a busy server is tried again, going on where it stopped. A part left
by an earlier run is continued only where a checksum will tell whether the whole is right.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pacpfl import files
from pacpfl.errors import InputError

Progress = Callable[[int, int | None], None]  # bytes received, bytes in all where that is known
_CHUNK = 1 << 18
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE_REFUSED = 416


class Source(NamedTuple):
    """Where a set is published. Without a checksum that its publishers' users agree on, none is checked."""

    url: str
    file: str
    unpack: str | None = None  # pattern of the names to take out of a zip archive
    sha256: str | None = None
    md5: str | None = None

    @property
    def checked(self) -> bool:
        return self.sha256 is not None or self.md5 is not None


# LEAF publishes no FEMNIST files, only scripts that make its JSON from NIST's Special Database 19.
SOURCES = {
    "emnist": Source(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "emnist-gzip.zip",
        unpack="emnist-byclass-*-ubyte.gz",
        md5="58c8d27c78d21e728a6bc7b3cc06412e",
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
    """Get one of SOURCES into `folder`; returns what `load_images` reads."""
    if name not in SOURCES:
        raise InputError(f"No set is called {name!r}; choose one of {', '.join(SOURCES)}.")
    source = SOURCES[name]
    file = fetch(source.url, folder / source.file, source.sha256, md5=source.md5, progress=progress)
    if source.unpack is None:
        return file
    unpacked = unpack(file, source.unpack, folder / name)
    return unpacked[0] if len(unpacked) == 1 else folder / name


def fetch(
    url: str,
    path: Path,
    sha256: str | None = None,
    *,
    md5: str | None = None,
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
    digests = {kind: value.lower() for kind, value in (("sha256", sha256), ("md5", md5)) if value}
    partial = path.with_name(f"{path.name}.partial")
    try:
        if path.exists() and _mismatch(path, digests) is None:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not digests:
            partial.unlink(missing_ok=True)
        _receive_all(url, partial, digests, tries, wait, timeout, progress)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            f"{path} could not be written ({error.strerror or error}); make room or choose another folder."
        ) from error
    return path


def unpack(archive: Path, pattern: str, folder: Path) -> list[Path]:
    """Take the files whose names match out of a zip archive, into `folder` itself: all, or none."""
    targets: list[Path] = []
    try:
        with ExitStack() as together, zipfile.ZipFile(archive) as content:
            # Only the last part of a name counts, so an archive cannot write outside of the folder.
            members = [
                m
                for m in content.infolist()
                if not m.is_dir() and fnmatch.fnmatch(Path(m.filename).name, pattern)
            ]
            if not members:
                raise InputError(f"{archive} holds no file {pattern}; download it again.")
            for member in members:
                targets.append(folder / Path(member.filename).name)
                file = together.enter_context(files.replacing(targets[-1]))
                with content.open(member) as packed:
                    shutil.copyfileobj(packed, file, _CHUNK)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{archive} could not be unpacked into {folder} ({error}); download it again or make room."
        ) from error
    return sorted(targets)


def _receive_all(
    url: str,
    partial: Path,
    digests: dict[str, str],
    tries: int,
    wait: float,
    timeout: float,
    progress: Progress | None,
) -> None:
    """Fill `partial` with the whole, right file."""
    version: str | None = None  # what the server calls the file's present version
    for attempt in range(tries):
        try:
            before = partial.stat().st_size if partial.exists() else 0
            with _open(url, partial, version, timeout) as response:
                version = _version(response)
                _receive(response, partial, progress)
            wrong = _mismatch(partial, digests)
            if wrong is None:
                return
            partial.unlink()
            if not before:
                raise InputError(
                    f"{url} did not arrive as expected ({wrong}), so nothing was kept; try again later, or "
                    "get the file elsewhere and give its path."
                )
            reason = wrong  # the part that was there may be to blame
        except _Temporary as error:
            reason = str(error)
        if attempt + 1 < tries:
            time.sleep(wait * 2**attempt)
    if not digests:
        partial.unlink(missing_ok=True)
    raise InputError(
        f"{url} could not be downloaded in {tries} tries ({reason}); check the connection and run it "
        "again."
    )


def _open(url: str, partial: Path, version: str | None, timeout: float) -> Any:
    """The server's answer to a request for what `partial` lacks."""
    start = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": "pacpfl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version  # another version by now: the server sends the whole
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _RANGE_REFUSED:
            partial.unlink(missing_ok=True)
        if error.code in _BUSY or error.code == _RANGE_REFUSED:
            raise _Temporary(f"the server answered {error.code} {error.reason}") from error
        raise InputError(
            f"{url} cannot be had: the server answered {error.code} {error.reason}; check the address or "
            "get the file elsewhere and give its path."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _version(response: Any) -> str | None:
    """What the server calls this version of the file. A weak tag does not promise the same bytes."""
    tag = response.headers.get("ETag", "")
    return response.headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag


def _receive(response: Any, partial: Path, progress: Progress | None) -> None:
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
        received = _copy(response, file, received, total, progress)
    if total is not None and received < total:
        raise _Temporary(f"only {received} of {total} bytes arrived")


def _copy(
    response: Any, file: BinaryIO, received: int, total: int | None, progress: Progress | None
) -> int:
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Temporary(f"the connection broke after {received} bytes ({error})") from error
        if not chunk:
            return received
        file.write(chunk)
        received += len(chunk)
        if progress is not None:
            progress(received, total)


def _mismatch(path: Path, digests: dict[str, str]) -> str | None:
    """What is wrong with a file's checksums, if anything."""
    for kind, expected in digests.items():
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != expected:
            return f"its {kind} is {found} and not {expected}"
    return None
