"""How many clients are personalised at once, so that their networks fit into memory.

What counts is the size of the activations: a convolution of 28 x 28 pixels, written as a matrix product
(`priors.networks`), holds a third of a megabyte for every image and network. The estimate is rough, and
generous: it counts three times the forward pass where gradients are needed.
"""

from __future__ import annotations

import jax

from pacpfl.config import Config
from pacpfl.methods.models import build_model
from pacpfl.methods.registry import entry
from pacpfl.priors.networks import CNN, MLP, Network
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
    held = entry(name).memory(config, federation.form)
    passes, rows = GRADIENT if held.gradients else 1, min(rows, held.rows or rows)
    itemsize = 8 if config.run.precision == "float64" else 4
    floats = held.networks * (passes * rows * activations(network) + COPIES * network.size)
    room = ROOM.get(jax.default_backend(), ROOM_ACCELERATOR)
    return max(1, room // (itemsize * floats))


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
