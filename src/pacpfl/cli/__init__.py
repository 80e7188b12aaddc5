"""The command line."""

from pacpfl.cli.app import main

__all__ = ["main"]
