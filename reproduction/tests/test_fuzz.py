"""A slice of the fuzzer: damaged and hostile inputs end in a sentence (`python -m reproduction fuzz`)."""

from __future__ import annotations

import pytest

from reproduction import fuzz


def test_a_slice_of_the_inputs_has_no_faults() -> None:
    assert [fault for fault in fuzz.play(300, seed=2) if fault is not None] == []


def test_an_input_that_breaks_or_leaks_or_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise KeyError("__index_level_0__")

    def leaking(*_: object) -> tuple[dict, str]:
        return {}, f'{{"features": ["{fuzz.SECRETS[3]}"]}}'

    def hanging(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz.configuration, "load_file", failing)
    monkeypatch.setattr("pacpfl.sites.site.Site.answer", leaking)
    monkeypatch.setattr(fuzz, "load_checkpoint", hanging)
    monkeypatch.setattr(fuzz, "PATIENCE", 1)
    for kind, words in {
        "config": "KeyError",
        "request": "left the site",
        "checkpoint": "no end",
    }.items():
        (fault,) = fuzz.play(1, only=kind)
        assert fault is not None and words in fault.what
