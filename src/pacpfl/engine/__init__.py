"""Where methods run: `simulate.train` plays rounds in this process, for `training`'s loop."""
