"""Differential privacy of training: mechanisms, adaptive clipping, accounting, sources of noise."""
