"""What people see after a run: figures, and one page that opens without a network."""

from __future__ import annotations

from pacpfl.report.html import write_report

__all__ = ["write_report"]
