"""Untouched settings on public tables and on peers' benchmarks, beside simple methods."""
