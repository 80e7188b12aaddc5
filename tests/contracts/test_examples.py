"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = ("priors.gp", "svgd", "predictive", "metrics", "hyper")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(import_module(f"pacpfl.{name}"))
    assert found.attempted and not found.failed
