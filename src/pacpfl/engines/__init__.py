"""Where methods run."""
