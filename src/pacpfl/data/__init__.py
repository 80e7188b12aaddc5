"""Data sets, and the only place that reads data files."""
