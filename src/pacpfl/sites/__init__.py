"""PAC-PFL across real sites, on NVIDIA FLARE (docs/deploy.md). The only folder that imports nvflare.

The protocol is `wire`, `terms`, `limits` and `recipe`; the server's side `segment` and `participation`;
a site's `site` and `states`; secure aggregation `secure` and `secure_site`. None of them knows of
FLARE: they turn messages into messages, and are tested without a network.
`controller`, `executor`, `trainer`, `session` and `kits` join them to it; `supervisor` looks after a
run, and `runs` is what people do with one.
"""
