"""Secure aggregation: the server learns the sum of the clients' updates and nothing else.

The pairwise-mask protocol of Bonawitz et al. (2017) in the version for active adversaries. Import
its parts from the modules: `client.Member`, `server.Server`, `settings.Settings`, `grid.Grid`,
`grid.guarantee`. docs/secure-aggregation.md says what it protects.
"""

from pacpfl.secagg.simulate import simulate_round

__all__ = ["simulate_round"]
