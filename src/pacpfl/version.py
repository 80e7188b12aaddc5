"""The version of the package, which lies below everything else."""

__version__ = "0.1.0"
