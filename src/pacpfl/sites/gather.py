"""From the sites' answers to one round's updates: only what is exactly as asked for counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.sites import wire
from pacpfl.sites.terms import Exchange, Reply
from pacpfl.sites.wire import Refused

Read = Callable[[Reply, Facts], Any]  # from a reply and its JSON object to what was asked for


@dataclass
class Inquiry:
    """Requests for one thing, and who did not answer them, or not as asked."""

    exchange: Exchange
    refused: dict[str, str] = field(default_factory=dict)  # site -> why
    missing: set[str] = field(default_factory=set)
    sent: int = 0  # bytes
    received: int = 0
    traces: int = 0  # most often that a site has traced its update so far

    def ask(
        self,
        sites: Collection[str],
        params: dict[str, np.ndarray],
        text: str,
        deadline: float,
        read: Read,
    ) -> dict[str, Any]:
        """Return by site what `read` makes of its first answer; it raises if that is not as asked."""
        asked, found = sorted(sites), {}
        replies = self.exchange.ask(asked, params, text, deadline)
        self.sent += len(asked) * wire.size(params)
        for reply in sorted(replies, key=lambda reply: reply.site):
            site = reply.site
            if site not in asked or site in found or site in self.refused:
                continue
            try:
                about = wire.from_text(reply.text)
                if "refused" in about:
                    raise Refused(f"the site refuses: {str(about['refused'])[:500]}")
                found[site] = read(reply, about)
            except (Refused, InputError, SecureAggregationError) as error:
                self.refused[site] = str(error)
                continue
            self.received += wire.size(reply.params)
            traces = about.get("traces")
            self.traces = max(self.traces, traces if type(traces) is int else 0)
        self.missing |= set(asked) - found.keys() - self.refused.keys()
        return found


def read_updates(numbers: Mapping[str, list[int]], pattern: PyTree, number: int) -> Read:
    """Read the updates of a site's clients, whose numbers are told, in this round."""

    def read(reply: Reply, about: Facts) -> PyTree:
        if about.get("round") != number:
            raise Refused(f"it answered round {str(about.get('round'))[:20]} instead of {number}")
        count = len(numbers[reply.site])
        several = jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), pattern)
        return wire.from_wire(reply.params, several)

    return read


def gather(
    found: Mapping[str, PyTree],
    numbers: Mapping[str, list[int]],
    pattern: PyTree,
    n: int,
    dtype: type,
) -> tuple[PyTree, np.ndarray]:
    """Return updates of all n clients and their weights, zero for those who are absent.

    `found` has the updates of sites' clients, or one for all of a site's; `numbers` say whose they are.
    """
    updates = jax.tree.map(lambda s: np.zeros((n, *s.shape), s.dtype), pattern)
    weights: np.ndarray = np.zeros(n, dtype)
    for site, part in found.items():
        for whole, some in zip(jax.tree.leaves(updates), jax.tree.leaves(part), strict=True):
            whole[numbers[site]] = some
        weights[numbers[site]] = 1
    return updates, weights
