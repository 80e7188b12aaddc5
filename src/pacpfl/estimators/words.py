"""What a notebook shows below the diagram of a fitted estimator: its clients."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pacpfl.estimators.base import FederatedEstimator

SHOWN = 12  # clients in the table; of the others it tells how many there are


def clients_table(estimator: FederatedEstimator) -> str:
    """A table in the colours of the text around it, so that it serves light and dark; or nothing."""
    owners = getattr(estimator, "_owners", None)
    if owners is None:
        return ""
    rows = [
        f"<tr><td>{escape(str(name))}</td><td>{len(owner.samples)}</td>"
        f"<td>{'trained' if name in estimator._trained else 'joined later'}</td></tr>"
        for name, owner in list(owners.items())[:SHOWN]
    ]
    more = len(owners) - len(rows)
    if more > 0:
        rows.append(f'<tr><td colspan="3">and {more} more</td></tr>')
    count = f"{len(owners)} client{'' if len(owners) == 1 else 's'}"
    k, size = estimator.particles_.shape
    return (
        '<table style="margin-top:.5em;color:inherit">'
        f'<caption style="text-align:left">{count}; {k} particles of {size} numbers</caption>'
        "<thead><tr><th>client</th><th>rows</th><th>part</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
