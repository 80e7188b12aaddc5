"""Real processes on this machine: a server, sites, kits with certificates. `make test-sites` runs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

# `make test` sets up an environment without NVIDIA FLARE: nothing of this folder is collected there.
if importlib.util.find_spec("nvflare") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """FLARE's threads in this process use what is deprecated elsewhere; ours may not."""
    for kind in ("DeprecationWarning", "ResourceWarning"):
        item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="session")
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server and three sites for all files: to make and start one takes as long as a test."""
    from deployment import Deployment

    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        yield made
    finally:
        made.stop_all()


@pytest.fixture
def deployment(shared_deployment: Any) -> Any:
    """The same, with everybody there and connected, whatever an earlier test did to them."""
    shared_deployment.mend()
    return shared_deployment
