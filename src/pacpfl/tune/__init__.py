"""Search for settings: spaces, cross-validation, and runs side by side."""
