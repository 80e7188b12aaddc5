"""The tests: a package by name, because a table package brings one of the same name."""
