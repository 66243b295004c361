"""What is measured in which framework, known without importing it."""

import dataclasses
import importlib

import speed_path  # noqa: F401
from framework import Framework, Train
from workloads import Workload

MODULES = {
    "tensorflow": ("keras_rounds", "tensorflow_loop"),
    "jax": ("keras_rounds", "jax_loop"),
    "torch": ("keras_rounds", "torch_loop"),
    "pfl": ("pfl_rounds",),
    "flower": ("flower_rounds",),
}
"""The modules of each framework; the first three are this package on a backend of Keras."""

BACKENDS = ("tensorflow", "jax", "torch")
PEERS = tuple(name for name in MODULES if name not in BACKENDS)

NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "pfl": "pfl-research",
    "flower": "Flower",
}
"""What the reader calls the frameworks."""

WAYS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("ours", "poisson", "one-by-one", "loop", "ours-xla", "loop-xla"),
    "jax": ("ours", "poisson", "one-by-one", "loop", "loop-unrolled"),
    "torch": ("ours", "poisson", "one-by-one", "loop"),
    "pfl": ("private", "plain"),
    "flower": ("private",),
}


def load(name: str) -> Framework:
    """Imports a framework.

    Args:
        name: a key of `MODULES`.

    Returns:
        What it hands to the measurements.
    """
    first, *others = [importlib.import_module(module) for module in MODULES[name]]
    framework: Framework = first.framework(name)
    if not others:
        return framework
    (loop,) = others

    def build(workload: Workload, way: str) -> Train:
        return (loop if way.startswith("loop") else first).build(workload, way)

    return dataclasses.replace(framework, build=build)
