"""Errors that are the user's to mend: one sentence that says what, where and the way out."""


class InputError(Exception):
    """Something given to pacpfl cannot be used. The command line prints it and exits with 2."""


class SecureAggregationError(Exception):
    """A message of secure aggregation is refused or its round abandoned: one sentence, which names whom."""
