"""PAC-PFL across real sites, on NVIDIA FLARE (docs/deploy.md). The only folder that imports nvflare.

`wire`, `compressed`, `participation`, `site`, `states`, `limits`, `segment`, `replay`, and for secure
aggregation `sums`, `secure_terms`, `secure_site` and `secure_round` know nothing of FLARE: they turn
messages into messages, and are tested without a network. `controller`, `executor`, `trainer`, `job`,
`session` and `provision` join them to it.
"""
