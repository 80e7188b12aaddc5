"""How models are learned: one method per file, all with the functions of `methods.base.Method`."""
