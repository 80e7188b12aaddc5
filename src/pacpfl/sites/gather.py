"""From the sites' answers to one round's updates: only what is exactly as asked for counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.files import Facts
from pacpfl.sites import wire
from pacpfl.sites.wire import Refused


class Reply(NamedTuple):
    site: str  # as the engine knows it from the certificate, not as the message says
    params: Any
    text: object


class Gathered(NamedTuple):
    """Updates of all n clients, zero with weight 0 for those who are absent."""

    updates: PyTree
    weights: np.ndarray  # [n]
    clients: list[int]
    answered: list[str]
    missing: list[str]
    refused: dict[str, str]
    enough: bool
    sent: int = 0  # bytes
    received: int = 0
    traces: int = 0  # most often that a site has traced its update so far

    @staticmethod
    def nobody(pattern: PyTree, n: int, dtype: type) -> Gathered:
        """Return a round without clients: only a private run has them."""
        updates = jax.tree.map(lambda s: np.zeros((n, *s.shape), s.dtype), pattern)
        return Gathered(updates, np.zeros(n, dtype), [], [], [], {}, True)


def collect(
    replies: Sequence[Reply],
    asked: Mapping[str, list[int]],
    pattern: PyTree,
    n: int,
    dtype: type,
    number: int,
    *,
    quorum: int = 1,
    sent: int = 0,
) -> Gathered:
    """Put the sites' updates in one array; what is not exactly as asked for does not count.

    `asked` are the clients' numbers by site, `pattern` the form of one client's update.
    """
    gathered = Gathered.nobody(pattern, n, dtype)
    refused: dict[str, str] = {}
    answered: list[str] = []
    clients: list[int] = []
    received = traces = 0
    for reply in sorted(replies, key=lambda reply: reply.site):
        if reply.site not in asked or reply.site in answered or reply.site in refused:
            continue
        numbers = asked[reply.site]
        try:
            about = accepted(reply)
            if about.get("round") != number:
                raise Refused(
                    f"it answered round {str(about.get('round'))[:20]} instead of {number}"
                )
            updates = wire.from_wire(reply.params, _several(pattern, len(numbers)))
        except Refused as error:
            refused[reply.site] = str(error)
            continue
        for whole, part in zip(
            jax.tree.leaves(gathered.updates), jax.tree.leaves(updates), strict=True
        ):
            whole[numbers] = part
        gathered.weights[numbers] = 1
        answered.append(reply.site)
        clients += numbers
        received += wire.size(reply.params)
        count = about.get("traces")
        traces = max(traces, count if type(count) is int else 0)
    missing = sorted(set(asked) - set(answered) - set(refused))
    enough = bool(answered) and len(answered) >= min(quorum, len(asked))
    return gathered._replace(
        clients=sorted(clients),
        answered=answered,
        missing=missing,
        refused=refused,
        enough=enough,
        sent=sent,
        received=received,
        traces=traces,
    )


def accepted(reply: Reply) -> Facts:
    """Return what a reply says; raise `Refused` if it says no."""
    about = wire.from_text(reply.text)
    if "refused" in about:
        raise Refused(f"the site refuses: {str(about['refused'])[:500]}")
    return about


def _several(pattern: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), pattern)
