"""What people see after a run: figures, and one page that opens without a network."""

from __future__ import annotations

from pacpfl.report.page import write_report

__all__ = ["write_report"]
