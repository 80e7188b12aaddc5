"""After training, a site's own models are those that the simulator would give its clients."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training import served, settings

from pacpfl import run as study
from pacpfl.build import build_federation
from pacpfl.data.site_folder import write_client_file
from pacpfl.errors import InputError
from pacpfl.report.page import write_report
from pacpfl.sites.limits import FILE, write_site_file
from pacpfl.sites.runs import hand_over, personalize_site
from pacpfl.sites.trainer import make_site


@pytest.mark.parametrize("method", ["pacpfl", "mtl"])
def test_a_sites_report_is_that_of_its_clients(method: str, tmp_path: Path) -> None:
    config = settings(4, method)
    # A site recalibrates by its own clients alone, the simulator by all.
    config = replace(config, run=replace(config.run, recalibration="never"))
    federation = build_federation(config)
    sites = {}
    shares = {"a": slice(0, 4), "b": slice(4, 6)}
    for name, chosen in shares.items():
        own = tmp_path / name
        for client in federation.existing[chosen]:
            write_client_file(own / "data", client, federation)
        write_site_file(own / FILE, own / "data")
        sites[name] = make_site(name, own)
    with pytest.raises(InputError, match="no result of a run"):
        personalize_site(tmp_path / "a", tmp_path / "report")
    folder = served(tmp_path / "run", config, method, sites)
    study.run(config, tmp_path / "simulated")
    expected = rows(tmp_path / "simulated")
    for name in sites:
        out = tmp_path / f"report-{name}"
        personalize_site(tmp_path / name, out)
        found = rows(out)
        assert set(found) == {client.name for client in federation.existing[shares[name]]}
        for client, value in found.items():
            np.testing.assert_allclose(value, expected[client], rtol=1e-6)
    assert write_report(tmp_path / "report-a").is_file()
    handed = hand_over(folder, tmp_path / "run", config, method)
    assert handed == (method == "pacpfl"), "what clients keep stays with them"
    if handed:
        study.run(config, tmp_path / "run")
        for client, value in rows(tmp_path / "run").items():
            np.testing.assert_allclose(value, expected[client], rtol=1e-6)


def rows(folder: Path) -> dict[str, list[float]]:
    with open(folder / "clients.csv", encoding="utf-8") as file:
        return {
            row["client"]: [float(row[name]) for name in ("rsmse", "nll", "coverage_90")]
            for row in csv.DictReader(file)
            if row["group"] == "existing"
        }
