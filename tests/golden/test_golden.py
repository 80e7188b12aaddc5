"""Behaviour, frozen: small runs of every kind give the numbers they gave before.

A change that means to alter them runs `make golden` and says in the CHANGELOG which numbers, and why. Bits
differ between processors, so numbers are compared; `EXACT_GOLDEN=1` compares the digests of the bits, which
is what a rearrangement of the code should be held to on one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "numbers.json").read_text(encoding="utf-8"))
TOLERANCE = {"single": 2e-3}  # thirty rounds in single precision; all others are in double
EXACT = bool(os.environ.get("EXACT_GOLDEN"))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("golden") / "numbers.json"
    # As `make golden` does, and without the flags that conftest.py sets: they alter bits.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, HERE / "play.py", out], check=True, env=environment)
    runs: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return runs


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_are_what_they_were(name: str, played: dict[str, Any]) -> None:
    expected, now = EXPECTED[name], played[name]
    assert set(now["numbers"]) == set(expected["numbers"])
    for array, values in expected["numbers"].items():
        scale = 1e-9 + max(map(abs, values[1:]))
        np.testing.assert_allclose(
            now["numbers"][array],
            values,
            rtol=TOLERANCE.get(name, 1e-6),
            atol=TOLERANCE.get(name, 1e-6) * scale,
            err_msg=f"{name}: {array}",
        )
    if EXACT:
        assert now["digest"] == expected["digest"]


def test_every_run_is_frozen() -> None:
    assert {path.stem for path in (HERE / "runs").glob("*.toml")} == set(EXPECTED)
