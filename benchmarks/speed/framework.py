"""What a framework hands to the measurements, and how one is found by its name."""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Train = Callable[[int], Callable[[], Any]]
"""Prepares data for a number of steps; what it returns runs them and waits for them.

It may return a dictionary: the seconds of all steps but the first two, by each of `CLOCKS`.
"""

CLOCKS = (time.perf_counter, time.process_time)
"""Wall time and processor time."""


class NotAvailableError(Exception):
    """A way that this framework, or this version of it, does not have."""


@dataclass(frozen=True)
class Framework:
    """One framework in the environment of this process.

    Args:
        build: makes a model for a way and returns how to train it. Raises whatever the framework
            raises where it cannot do that model in that way.
        packages: the distributions whose versions are worth telling.
        limit_threads: keeps it to one thread, beyond what environment variables do.
        memory: the peak of the accelerator's memory in bytes; None without an accelerator.
        clock: processor seconds of all that works for it.
        close: ends what the ways have started.
    """

    build: Callable[[Any, str], Train]
    packages: tuple[str, ...]
    limit_threads: Callable[[], None] = lambda: None
    memory: Callable[[], int] | None = None
    clock: Callable[[], float] = time.process_time
    close: Callable[[], None] = lambda: None


MODULES = {
    "tensorflow": "keras_ways",
    "jax": "keras_ways",
    "torch": "keras_ways",
    "opacus": "peers.opacus_ways",
    "jax-privacy": "peers.jax_privacy_ways",
    "tensorflow-privacy": "peers.tensorflow_privacy_ways",
}
"""The module of each framework; the first three are this package on a backend of Keras."""

BACKENDS = ("tensorflow", "jax", "torch")
PEERS = tuple(name for name in MODULES if name not in BACKENDS)

WAYS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("plain", "shuffle", "poisson", "plain-xla", "shuffle-xla", "poisson-xla"),
    "jax": ("plain", "shuffle", "poisson"),
    "torch": ("plain", "shuffle", "poisson"),
    "opacus": ("plain", "plain-compiled", "ghost", "hooks"),
    "jax-privacy": ("plain", "vmap", "scan"),
    "tensorflow-privacy": ("plain", "fast", "fast-xla", "model", "model-xla", "vectorized"),
}
"""The ways of each framework, its plain step first, known without importing it."""


PLAIN = ("plain", "plain-xla")
"""The plain steps that private ones are compared with."""


def load(name: str) -> Framework:
    """Imports a framework.

    Args:
        name: a key of `MODULES`.

    Returns:
        What it hands to the measurements.
    """
    framework: Framework = importlib.import_module(MODULES[name]).framework(name)
    return framework
