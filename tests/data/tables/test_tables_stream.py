"""Large tables: the same federation from disk, and memory that does not grow with the rows."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from patience import patience

from pacpfl.data.prepare import standardize
from pacpfl.data.settings import TableSettings
from pacpfl.data.store import ROWS, empty_samples, from_clients, from_samples
from pacpfl.data.tables.read import load_tables
from pacpfl.run import digest
from pacpfl.types import Samples

SETTINGS = TableSettings(target="y", client="who", for_later=0.1, new=("c3",), missing="impute")


@pytest.fixture
def table() -> pd.DataFrame:
    random, rows = np.random.default_rng(0), 600
    columns: dict[str, Any] = {"who": [f"c{n}" for n in random.integers(0, 5, rows)]}
    gaps = random.uniform(size=rows) < 0.1
    columns["a"] = np.where(gaps, np.nan, random.normal(7, 3, rows))
    columns |= {"b": random.choice(["u", "v"], rows), "y": random.normal(size=rows)}
    return pd.DataFrame(columns)


@pytest.mark.parametrize("how", ["none", "global", "client"])
def test_on_disk_or_in_memory_it_is_the_same(table: pd.DataFrame, how: str) -> None:
    memory = standardize(load_tables(table, SETTINGS).federation, how)
    disk = standardize(load_tables(table, SETTINGS, chunk=7, in_memory=0).federation, how)
    for group in ("existing", "new"):
        for one, other in zip(memory.groups()[group], disk.groups()[group], strict=True):
            assert one.name == other.name
            for part in ("train", "later", "test"):
                a, b = getattr(one, part), getattr(other, part)
                assert isinstance(b.x, np.memmap)
                np.testing.assert_allclose(a.x, b.x, rtol=2e-7, atol=1e-7)
                np.testing.assert_allclose(a.y, b.y, rtol=2e-7, atol=1e-7)


def test_the_store_takes_the_files_as_they_are(table: pd.DataFrame) -> None:
    federation = load_tables(table, SETTINGS, chunk=64, in_memory=0).federation
    for clients in (federation, standardize(federation, "global")):
        store = from_clients(clients.existing)
        assert isinstance(store.x, np.memmap)
        assert np.shares_memory(store.x, clients.existing[-1].train.x)
        for number, client in enumerate(clients.existing):
            data = store.gather(np.array([number]), np.float64)
            np.testing.assert_array_equal(data.x[0, : len(client.train)], client.train.x)
            np.testing.assert_array_equal(data.y[0, : len(client.train)], client.train.y)
    parts = [client.train for client in federation.existing]
    mixed = from_samples([parts[1], parts[0]])  # not neighbours in this order: copied
    np.testing.assert_array_equal(mixed.x, np.concatenate([parts[1].x, parts[0].x]))
    assert not np.shares_memory(mixed.x, parts[0].x)
    plain = from_samples([Samples(np.ones((2, 3)), np.zeros(2)), parts[0]])
    assert len(plain.x) == 2 + len(parts[0])


def test_samples_are_named_block_by_block() -> None:
    """By the bytes of all rows, wherever they lie, though never more than a block is copied."""
    rows = ROWS + 3
    samples = empty_samples(rows, 2, np.float32, in_memory=0)
    x, y = samples.x, samples.y
    x[:], y[:] = np.arange(2 * rows).reshape(-1, 2), -np.arange(rows)
    store = from_samples([Samples(x[:10], y[:10]), Samples(x[10:], y[10:])])
    assert isinstance(store.x, np.memmap)
    ends = np.array([0, 10, rows])
    whole = b"".join(np.array(part).tobytes() for part in (x, y, ends))
    assert digest(store) == hashlib.sha256(whole).hexdigest()


PROBE = """
import resource, sys
from pathlib import Path
from pacpfl.data.prepare import standardize
from pacpfl.data.store import from_clients
from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.read import load_tables

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

settings = TableSettings(target="y", client="who")
load_tables(Path(sys.argv[1]), settings, chunk=5000, in_memory=0)
before = peak()
tables = load_tables(Path(sys.argv[2]), settings, chunk=5000, in_memory=0)
store = from_clients(standardize(tables.federation, "global").existing)
print(store.x.shape[0], store.x.nbytes, 1024 * (peak() - before))
"""


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """From 2,000 to 60,000 rows of 20 features the peak grows by less than the rows take."""
    for name, rows in (("few", 2000), ("many", 60_000)):
        random = np.random.default_rng(1)
        frame = pd.DataFrame(random.normal(size=(rows, 20)).round(4)).add_prefix("f")
        frame["who"], frame["y"] = random.integers(0, 50, rows), random.normal(size=rows).round(3)
        frame.to_parquet(tmp_path / f"{name}.parquet")
    command = [sys.executable, "-c", PROBE, tmp_path / "few.parquet", tmp_path / "many.parquet"]
    found = subprocess.check_output(command, timeout=patience(120))
    rows, bytes_, grown = map(int, found.split())
    assert rows == 48_000
    assert bytes_ == rows * 20 * 4
    # Held at once they would be 9.6 MB in double and 4.8 MB in single precision, beside the table's 10.
    assert grown < 9_000_000, grown
