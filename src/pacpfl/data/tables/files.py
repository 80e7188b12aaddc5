"""Tables as files: found, their dialect recognised, and read chunk by chunk.

CSV cells come out as texts, whatever they hold (`columns` reads them); Parquet and data frames
keep their types. A file is never held whole.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pacpfl.errors import InputError, explained, imported

ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq")
DELIMITERS = (",", ";", "\t", "|")
SAMPLE = 1 << 16  # bytes by which the dialect is recognised
CHUNK = 50_000  # rows
FOREIGN: dict[tuple[type, ...], str] = {
    (bytes, bytearray): "bytes",
    (list, tuple, set, dict, np.ndarray): "lists or records",
    (time, timedelta): "times of day or durations",
    (complex, np.complexfloating): "complex numbers",
}
_INDEX = re.compile(r"__index_level_\d+__")  # row numbers that pandas writes
_COMMA = re.compile(r"^[+-]?\d+,\d+$")


@dataclass(frozen=True)
class Chunk:
    """Some rows of one table. The frame's index has their numbers, counted from 1 below the header."""

    origin: str
    decimal: str
    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    def only(self, chosen: np.ndarray) -> Chunk:
        return replace(self, frame=self.frame[chosen])

    def cells(self, name: str) -> pd.Series:
        """Return a column, or raise where it cannot be read."""
        if content := foreign_content(self.frame[name]):
            raise InputError(
                f"{self.origin}: column {name!r} holds {content}, and neither numbers, texts nor dates; "
                "turn it into one of these."
            )
        return self.frame[name]

    def holds(self, cells: pd.Series) -> str:
        """Say where the first of some cells of a column stands, and what it holds."""
        text, row = str(cells.iloc[0]).strip(), cells.index[0]
        return f"{self.origin}, row {row}: column {cells.name!r} holds {text!r}"

    def refuse(self, name: str, bad: np.ndarray, words: str) -> None:
        """Raise if any cell of a column is bad: where the first one is, what it holds, and these words."""
        if bad.any():
            raise InputError(f"{self.holds(self.frame[name][bad])}, {words}.")

    def require(self, name: str, missing: np.ndarray, remedy: str = "fill it") -> None:
        """Raise if any cell of a column is missing."""
        if missing.any():
            row = self.frame.index[missing][0]
            raise InputError(f"{self.origin}, row {row}: column {name!r} is missing; {remedy}.")


def foreign_content(column: pd.Series) -> str:
    """Name what a column holds that is no number, text or date (of Parquet, of a data frame), or ""."""
    first = column.get(column.first_valid_index())
    return next((words for kinds, words in FOREIGN.items() if isinstance(first, kinds)), "")


@dataclass(frozen=True)
class Table:
    """One file, or one frame in memory."""

    origin: str  # how messages call it
    name: str  # of the client, where each file is one
    columns: tuple[str, ...]
    path: Path | None = None
    delimiter: str = ","
    decimal: str = "."
    frame: pd.DataFrame | None = None

    def chunks(self, rows: int = CHUNK) -> Iterator[Chunk]:
        """Yield the table's rows, or raise InputError where it has none."""
        first = 1
        for part in self._parts(rows):
            if len(part):
                yield Chunk(self.origin, self.decimal, _plain(part, first))
            first += len(part)
        if first == 1:
            raise InputError(
                f"{self.origin} has a header and no rows; add its rows or remove the file."
            )

    def _parts(self, rows: int) -> Iterator[pd.DataFrame]:
        if self.path is None:
            assert self.frame is not None
            for start in range(0, len(self.frame), rows):
                yield self.frame.iloc[start : start + rows]
            return
        with _reading(self.path), warnings.catch_warnings():
            # Rows that are longer than the header would otherwise lose their last cells.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            if _is_parquet(self.path):
                for batch in _parquet(self.path).iter_batches(batch_size=rows):
                    frame = batch.to_pandas(ignore_metadata=True)
                    frame = frame[[name for name in frame if not _INDEX.match(str(name))]]
                    yield frame.set_axis(list(self.columns), axis=1)
                return
            yield from pd.read_csv(
                self.path,
                sep=self.delimiter,
                names=list(self.columns),
                header=0,
                dtype=str,
                keep_default_na=False,
                index_col=False,
                encoding="utf-8-sig",
                chunksize=rows,
            )


def _plain(part: pd.DataFrame, first: int) -> pd.DataFrame:
    """Number the rows, and leave no categorical types: they take no value that they do not know."""
    known = [n for n in part if isinstance(part[n].dtype, pd.CategoricalDtype)]
    return part.astype(dict.fromkeys(known, object)).set_axis(range(first, first + len(part)))


def open_tables(source: Path | str | Any) -> tuple[Table, ...]:
    """Open the tables of a folder (each file one), of one file, or of a pandas or polars data frame."""
    if not isinstance(source, (str, Path)):
        return (open_frame(source),)
    path = Path(source)
    with opening(path):
        if path.is_file():
            return (open_file(path),)
        if not path.is_dir():
            raise InputError(
                f"There is no file or folder {path}; name the one that holds the tables."
            )
        files = table_files(path)
    if not files:
        raise InputError(f"{path} holds no tables; put files that end in .csv or .parquet there.")
    tables = tuple(map(open_file, files))
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            same = " and ".join(Path(t.origin).name for t in tables if t.name == name)
            raise InputError(f"{same} in {path} are both client {name!r}; rename or remove one.")
    return tables


def table_files(folder: Path) -> list[Path]:
    """List the tables of a folder, hidden files left out. What looks like one and is none is named: the
    client would otherwise be missing without a word."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in ENDINGS]
    found = [path for path in found if not path.name.startswith((".", "~"))]
    for path in found:
        if not path.is_file():
            what = "is a link that leads nowhere" if path.is_symlink() else "is not a file"
            raise InputError(f"{path} {what}; remove it, or put the table there.")
    return found


def open_frame(frame: Any) -> Table:
    if not isinstance(frame, pd.DataFrame):
        if not hasattr(frame, "to_dict") or not hasattr(frame, "columns"):
            kind = type(frame).__name__
            raise InputError(f"A {kind} is no table; give a path or a pandas or polars DataFrame.")
        frame = pd.DataFrame({str(name): frame[name].to_list() for name in frame.columns})
    columns = _checked_header(frame.columns, "The data frame")
    return Table("the data frame", "all", columns, frame=frame.set_axis(list(columns), axis=1))


def open_file(path: Path) -> Table:
    name = normalized(path.stem)
    if not path.name.isprintable():
        raise InputError(
            f"The name of the file {path.name!r} is not plain text in UTF-8; rename the file."
        )
    if _is_parquet(path):
        with _reading(path):
            names = _parquet(path).schema_arrow.names
            columns = [name for name in names if not _INDEX.match(name)]
        return Table(str(path), name, _checked_header(columns, str(path)), path)
    with opening(path), open(path, "rb") as file:
        start = file.read(SAMPLE)
    if not start.strip(b"\xef\xbb\xbf \r\n\t"):
        raise InputError(f"{path} is empty; fill it or remove it.")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        raise InputError(f"{path} is not a text file in UTF-8; save it as CSV in UTF-8.")
    text = start.decode("utf-8-sig", errors="replace")
    if len(start) == SAMPLE:  # the last line may be cut
        text = text[: text.rfind("\n") + 1] or text
    delimiter, rows = _dialect(text)
    header = _checked_header(rows[0], str(path))
    return Table(str(path), name, header, path, delimiter, _decimal(rows[1:], delimiter))


def normalized(name: str) -> str:
    """Client names that look the same are the same."""
    return unicodedata.normalize("NFC", name).strip()


def listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _dialect(text: str) -> tuple[str, list[list[str]]]:
    """Choose the delimiter that gives the most columns, and in most rows as many as in the header."""
    found: dict[str, list[list[str]]] = {}
    for delimiter in DELIMITERS:
        with suppress(csv.Error):
            lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            found[delimiter] = [row for row in lines if row]

    def score(delimiter: str) -> tuple[float, int]:
        widths = np.array([len(row) for row in found[delimiter]])
        return (float(np.mean(widths == widths[0])) if widths[0] > 1 else 0.0, int(widths[0]))

    best = max(filter(found.get, found), key=score, default="")
    return (best, found[best]) if best else (",", [[text.splitlines()[0].strip()]])


def _decimal(rows: list[list[str]], delimiter: str) -> str:
    """Return a comma where cells such as 1,5 occur, else a point.

    Between commas as delimiters they are quoted, and if all have three digits behind the comma they may be
    thousands: those stay texts.
    """
    cells = [cell.strip() for row in rows for cell in row]
    commas = [cell for cell in cells if _COMMA.match(cell)]
    thousands = delimiter == "," and all(len(cell.partition(",")[2]) == 3 for cell in commas)
    return "," if commas and not thousands else "."


def _checked_header(names: Iterable[Any], origin: str) -> tuple[str, ...]:
    header = tuple(normalized(str(name)) for name in names)
    if "" in header:
        number = header.index("") + 1
        raise InputError(f"{origin} has no name for column {number}; give it one or remove it.")
    for name, count in Counter(header).items():
        if count > 1:
            raise InputError(f"{origin} has {count} columns called {name!r}; rename all but one.")
    return header


def _parquet(path: Path) -> Any:
    module = imported("pyarrow.parquet", f"{path} is Parquet and", "'pacpfl[tables]'")
    return module.ParquetFile(path)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def opening(path: Path) -> AbstractContextManager[None]:
    """Turn what the system says about a file or folder into one sentence."""
    return explained(f"{path} cannot be read", "check its permissions", OSError)


def _reading(path: Path) -> AbstractContextManager[None]:
    """Turn whatever a parser says about a broken file into one sentence."""
    remedy = "mend that place, or save it again in UTF-8 with a first line that names every column"
    return explained(f"{path} cannot be read as a table", remedy, ValueError, OSError, Warning)
