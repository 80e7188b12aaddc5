"""What ends a round of secure aggregation."""


class SecureAggregationError(Exception):
    """A message is refused or the round is abandoned: one sentence that says why, and names whom."""
