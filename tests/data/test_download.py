"""Downloads against a server on this machine that breaks in every way a server can."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from refusals import refused
from serving import serving

from pacpfl.data.download import SOURCES, download, fetch, unpack
from pacpfl.data.image_files import load_images

BODY = bytes(range(256)) * 4096  # 1 MiB
SHA256 = "sha256:" + hashlib.sha256(BODY).hexdigest()


class Site:
    """`script` says how the next requests are answered; after it, as a good server does."""

    def __init__(self) -> None:
        self.body = BODY
        self.tag: str | None = '"v1"'
        self.script: list[str] = []
        self.asked: list[dict[str, str]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(handler.headers.items()))
        how = self.script.pop(0) if self.script else "well"
        if how.isdigit():
            handler.send_error(int(how))
        elif how == "silence":
            handler.rfile.read(1)  # until the other side has waited long enough
        elif how != "hang up":
            self.send(handler, how)

    def send(self, handler: BaseHTTPRequestHandler, how: str) -> None:
        start, whole, wanted = 0, len(self.body), handler.headers.get("Range")
        if wanted and how != "no range" and handler.headers.get("If-Range") in (None, self.tag):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= whole:
            return handler.send_error(416)
        rest = self.body[start:]
        handler.send_response(206 if start else 200)
        if start:
            first = start + 1 if how == "other part" else start
            handler.send_header("Content-Range", f"bytes {first}-{whole - 1}/{whole}")
        if how != "no length":
            handler.send_header("Content-Length", str(len(rest)))
        if self.tag:
            handler.send_header("ETag", self.tag)
        handler.end_headers()
        handler.wfile.write(rest[: len(rest) // 2] if how == "cut" else rest)
        return None


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Site()
    with serving(site.answer) as address:
        site.url = f"{address}/set.bin"
        yield site


def ranges(site: Site) -> list[str | None]:
    return [headers.get("Range") for headers in site.asked]


def test_a_whole_file(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(site.url, tmp_path / "a" / "set.bin", SHA256, progress=lambda *n: seen.append(n))
    assert path.read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == (len(BODY), len(BODY))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path, kind: str) -> None:
    right = hashlib.new(kind, BODY).hexdigest()
    path, wrong = tmp_path / "set.bin", "0" * len(right)
    words = f"its {kind} is {right} and not {wrong}"
    refused(lambda: fetch(site.url, path, f"{kind}:{wrong}", wait=0), words)
    assert list(tmp_path.iterdir()) == [] and len(site.asked) == 1
    fetch(site.url, path, f"{kind}:{right.upper()}")


@pytest.mark.parametrize("checksum", [None, SHA256])
def test_a_truncated_file_is_continued(site: Site, tmp_path: Path, checksum: str | None) -> None:
    site.script = ["cut", "cut"]
    path = fetch(site.url, tmp_path / "set.bin", checksum, wait=0)
    assert path.read_bytes() == BODY
    half, quarter = len(BODY) // 2, len(BODY) // 4
    assert ranges(site) == [None, f"bytes={half}-", f"bytes={half + quarter}-"]


def test_a_file_that_stays_truncated(site: Site, tmp_path: Path) -> None:
    site.script = ["cut"] * 9
    path = tmp_path / "set.bin"
    refused(
        lambda: fetch(site.url, path, tries=3, wait=0),
        r"in 3 tries \(only \d+ of \d+ bytes arrived\)",
    )
    assert list(tmp_path.iterdir()) == []
    assert len(site.asked) == 3


def test_the_next_run_goes_on_where_a_checksum_vouches(site: Site, tmp_path: Path) -> None:
    site.script = ["cut"]
    path = tmp_path / "set.bin"
    refused(lambda: fetch(site.url, path, SHA256, tries=1), "in 1 tries")
    assert not path.exists()
    assert fetch(site.url, path, SHA256).read_bytes() == BODY
    assert ranges(site) == [None, f"bytes={len(BODY) // 2}-"]


@pytest.mark.parametrize(
    ("part", "checksum", "asked"),
    [
        (b"of another file", None, [None]),  # not trusted without a checksum
        (b"of another file", SHA256, ["bytes=15-", None]),
        (BODY + b"more", SHA256, [f"bytes={len(BODY) + 4}-", None]),
    ],
)
def test_an_old_part_that_is_wrong_is_dropped(
    site: Site, tmp_path: Path, part: bytes, checksum: str | None, asked: list[str | None]
) -> None:
    (tmp_path / "set.bin.partial").write_bytes(part)
    assert fetch(site.url, tmp_path / "set.bin", checksum, wait=0).read_bytes() == BODY
    assert ranges(site) == asked


def test_a_file_that_changes_meanwhile_is_not_mixed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = bytes(reversed(BODY))

    def publish(seconds: float) -> None:
        site.body, site.tag = newer, '"v2"'

    monkeypatch.setattr("pacpfl.data.download.time.sleep", publish)
    site.script = ["cut"]
    assert fetch(site.url, tmp_path / "set.bin").read_bytes() == newer
    assert site.asked[1]["If-Range"] == '"v1"'


def test_a_weak_tag_is_no_promise(site: Site, tmp_path: Path) -> None:
    site.tag, site.script = 'W/"v1"', ["cut"]
    fetch(site.url, tmp_path / "set.bin", wait=0)
    assert "If-Range" not in site.asked[1]


@pytest.mark.parametrize("second", ["no range", "other part", "no length", "well"])
def test_servers_that_continue_in_their_own_way(site: Site, tmp_path: Path, second: str) -> None:
    site.script = ["cut", second]
    assert fetch(site.url, tmp_path / "set.bin", wait=0).read_bytes() == BODY


@pytest.mark.parametrize("failure", ["500", "503", "429", "hang up", "silence"])
def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path, failure: str) -> None:
    site.script = [failure, failure]
    path = fetch(site.url, tmp_path / "set.bin", SHA256, wait=0, timeout=0.5)
    assert path.read_bytes() == BODY
    assert len(site.asked) == 3


@pytest.mark.parametrize("failure", ["404", "403"])
def test_a_file_that_is_not_there_is_asked_for_once(
    site: Site, tmp_path: Path, failure: str
) -> None:
    """And what stood in its place stays until the right one comes."""
    path, site.script = tmp_path / "set.bin", [failure]
    path.write_bytes(b"old")
    refused(lambda: fetch(site.url, path, SHA256, wait=0), f"the server answered {failure}")
    assert len(site.asked) == 1
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"old"
    assert fetch(site.url, path, SHA256).read_bytes() == BODY


def test_a_server_that_stays_broken(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("pacpfl.data.download.time.sleep", waits.append)
    site.script = ["500"] * 9
    refused(lambda: fetch(site.url, tmp_path / "set.bin", wait=0.5), r"in 4 tries .*answered 500")
    assert waits == [0.5, 1.0, 2.0]


def test_nobody_answers(tmp_path: Path) -> None:
    with serving(print) as address:
        url = f"{address}/set.bin"
    refused(lambda: fetch(url, tmp_path / "set.bin", tries=2, wait=0), r"in 2 tries .*refused")


def test_a_file_that_is_there_is_kept(site: Site, tmp_path: Path) -> None:
    (tmp_path / "right.bin").write_bytes(BODY)
    (tmp_path / "unknown.bin").write_bytes(b"mine")
    fetch(site.url, tmp_path / "right.bin", SHA256)
    assert fetch(site.url, tmp_path / "unknown.bin").read_bytes() == b"mine"
    assert site.asked == []


def test_only_the_web_and_only_into_a_folder(site: Site, tmp_path: Path) -> None:
    for url in ("file:///etc/hostname", "ftp://127.0.0.1/x", "set.bin"):
        refused(lambda url=url: fetch(url, tmp_path / "set.bin"), "is no web address")
    (tmp_path / "taken").write_text("a file")
    refused(lambda: fetch(site.url, tmp_path / "taken" / "set.bin", SHA256), "could not be written")


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        for name, data in members.items():
            content.writestr(name, data)
    return path


def test_unpacking_takes_what_matches_and_stays_in_the_folder(tmp_path: Path) -> None:
    members = {"gzip/a-one.gz": b"1", "../../a-two.gz": b"2", "gzip/b-one.gz": b"3", "a-dir/": b""}
    file = archive(tmp_path / "set.zip", **members)
    folder = tmp_path / "deep" / "set"
    assert unpack(file, "a-*", folder) == [folder / "a-one.gz", folder / "a-two.gz"]
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == [b"1", b"2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "set.zip"]


def test_unpacking_all_or_nothing(tmp_path: Path) -> None:
    file = archive(tmp_path / "set.zip", **{"a-one": b"1" * 99, "a-two": BODY})
    content = bytearray(file.read_bytes())
    at = content.rindex(b"a-two", 0, -100) + 5  # in the second member's own data
    content[at + 10 : at + 40] = bytes(30)
    file.write_bytes(content)
    refused(lambda: unpack(file, "a-*", tmp_path / "set"), r"set\.zip could not be unpacked")
    assert list((tmp_path / "set").iterdir()) == []


def test_archives_without_what_is_sought(tmp_path: Path) -> None:
    file = archive(tmp_path / "set.zip", a=b"1")
    refused(lambda: unpack(file, "b-*", tmp_path / "set"), "holds no file b-")
    (tmp_path / "page.zip").write_text("<html>")
    refused(lambda: unpack(tmp_path / "page.zip", "a-*", tmp_path / "set"), "could not be unpacked")
    assert not (tmp_path / "set").exists()


def test_from_the_archive_to_images(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = gzip.compress(struct.pack(">IIII", 0x803, 2, 2, 2) + bytes([0, 2, 1, 3] * 2))
    labels = gzip.compress(struct.pack(">II", 0x801, 2) + bytes([61, 4]))
    members = {
        "gzip/emnist-byclass-test-images-idx3-ubyte.gz": images,
        "gzip/emnist-byclass-test-labels-idx1-ubyte.gz": labels,
        "gzip/emnist-letters-test-labels-idx1-ubyte.gz": labels,
    }
    site.body = archive(tmp_path / "origin.zip", **members).read_bytes()
    known = SOURCES["emnist"]._replace(
        url=site.url, checksum="md5:" + hashlib.md5(site.body).hexdigest()
    )
    monkeypatch.setitem(SOURCES, "emnist", known)
    found = load_images(download("emnist", tmp_path / "data"))
    assert found.labels.tolist() == [61, 4]
    assert found.images[0].tolist() == [[0, 1], [2, 3]]
    assert (found.name, found.classes) == ("emnist", 62)
    download("emnist", tmp_path / "data")
    assert len(site.asked) == 1


def test_a_single_file(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("femnist", "emnist-matlab"):
        monkeypatch.setitem(SOURCES, name, SOURCES[name]._replace(url=site.url))
    assert download("femnist", tmp_path) == tmp_path / "femnist.parquet"
    site.body = archive(tmp_path / "origin.zip", **{"matlab/emnist-byclass.mat": b"x"}).read_bytes()
    assert download("emnist-matlab", tmp_path) == tmp_path / "emnist-matlab" / "emnist-byclass.mat"
    refused(lambda: download("mnist", tmp_path), "choose one of emnist")


def test_the_table_of_sources() -> None:
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert (source.unpack is not None) == source.url.endswith(".zip")
        if source.checksum is not None:
            kind, digest = source.checksum.split(":")
            assert len(bytes.fromhex(digest)) == hashlib.new(kind).digest_size
