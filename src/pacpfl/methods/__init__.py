"""How models are learned: methods, all with the functions of `methods.base.Method`."""
