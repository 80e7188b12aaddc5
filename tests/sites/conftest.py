"""Real processes on this machine: a server, sites, kits with certificates. `make test-sites` runs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

# `make test` sets up an environment without NVIDIA FLARE: nothing of this folder is collected there.
if importlib.util.find_spec("nvflare") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """FLARE's threads in this process use what is deprecated elsewhere; ours may not."""
    for kind in ("DeprecationWarning", "ResourceWarning"):
        item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A server and three sites, two clients each, started and connected."""
    from deployment import Deployment

    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        made.start_all()
        yield made
    finally:
        made.stop_all()
