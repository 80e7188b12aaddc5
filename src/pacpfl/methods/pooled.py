"""Pooled: one model on everybody's data together, the same for all clients.

It sends data to one place, so it is no federated method: it shows what ignoring the clients'
differences costs. Fitted like `Vanilla`, to one client who holds all the samples; clients who join
later get the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pacpfl.methods.vanilla import Vanilla


@dataclass(frozen=True)
class Pooled(Vanilla):
    restarts: int = 1

    central: ClassVar[bool] = True
