"""Ends a deployment's processes when the test that started them is gone, however it was ended."""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil

MARK = "PACPFL_TEST_DEPLOYMENT"  # in the environment of every process: whose it is


def marked(folder: str) -> list[psutil.Process]:
    """Every process of a deployment, also those whose parent was killed."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == folder:
                found.append(process)
    return found


def main() -> None:
    sys.stdin.buffer.read()  # ends when the other end of the pipe is closed, which death does as well
    for process in marked(sys.argv[1]):
        with suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main()
