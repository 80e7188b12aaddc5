"""NumPy or JAX: the mathematics of predictions is written once, for whichever arrays it is given.

`xp = of(phi, x)` is `arrays.plain` where all are NumPy's (a few rows are answered before a compiler has
started), else `arrays.traced` (JAX: what is compiled, batched, differentiated). Both know NumPy's functions
by their names, and under equal names what the two libraries do differently. JAX is imported when the
first of its arrays is met.

>>> of(np.ones(2)).exp(np.zeros(2)).tolist()
[1.0, 1.0]
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def of(*arrays: Any) -> ModuleType:
    """Return what computes with these arrays: with NumPy if all of them are NumPy's, or numbers."""
    if all(isinstance(array, (np.ndarray, np.generic, float, int)) for array in arrays):
        from pacpfl.arrays import plain

        return plain
    from pacpfl.arrays import traced

    return traced
