"""How many clients are personalised at once, so that their networks fit into memory.

What counts is the size of the activations: a convolution of 28 x 28 pixels, written as a matrix product
(`priors.networks`), holds a third of a megabyte for every image and network. The estimate is rough, and
generous: it counts three times the forward pass where gradients are needed.
"""

from __future__ import annotations

import jax

from pacpfl.config import Config
from pacpfl.priors.networks import CNN, MLP, ROWS, Network
from pacpfl.studies.build_networks import build_model
from pacpfl.types import Federation

ROOM = {"cpu": 2**30}  # bytes
ROOM_ACCELERATOR = 2**34
GRADIENT = 3  # forward pass, its copy for the backward pass, and the backward pass
COPIES = 4  # of the parameters: themselves, gradient, two moments of Adam


def clients_at_once(name: str, config: Config, federation: Federation) -> int | None:
    """Return how many clients to personalise at once; for targets that are numbers the engine decides."""
    if federation.classes is None:
        return None
    network = build_model(config, federation.form).network
    rows = max(len(c.personal) for group in federation.groups().values() for c in group)
    side_by_side, passes, rows = _work(name, config, rows)
    itemsize = 8 if config.run.precision == "float64" else 4
    floats = side_by_side * (passes * rows * activations(network) + COPIES * network.size)
    room = ROOM.get(jax.default_backend(), ROOM_ACCELERATOR)
    return max(1, room // (itemsize * floats))


def _work(name: str, config: Config, samples: int) -> tuple[int, int, int]:
    """Return networks side by side at one client, passes through each, and rows in a pass."""
    posterior, batch = config.posterior, None
    if name == "pacpfl":
        if posterior.adapt == "last":  # networks one after the other, in parts, without gradients
            return config.train.particles, 1, min(samples, ROWS)
        networks, batch = config.train.particles * posterior.networks, posterior.batch
    elif name in ("vanilla", "pooled"):
        networks, batch = config.alone.networks, config.alone.batch
    else:
        networks = 1
        if name in ("mtl", "pfedbayes"):
            batch = config.local.batch
    return networks, GRADIENT, min(samples, batch or samples)


def activations(network: Network) -> int:
    """Count the numbers that one image leaves behind on its way through the network."""
    if isinstance(network, MLP):
        return sum(network.sizes)
    assert isinstance(network, CNN)
    lost = network.side - 1 if network.padding == "valid" else 0
    height, width, channels, total = network.height, network.width, network.channels, 0
    for filters in network.filters:
        height, width = height - lost, width - lost
        total += height * width * (network.side**2 * channels + filters)
        height, width, channels = height // 2, width // 2, filters
    return total + height * width * channels + network.hidden + network.outputs
