"""Which methods go alone: a client's model comes from its own samples and nobody else's."""

from __future__ import annotations

ALONE = ("vanilla", "vanilla-deep", "ridge", "ard")
