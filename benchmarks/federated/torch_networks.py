"""The models of the workloads as PyTorch modules."""

import numpy as np
import speed_path  # noqa: F401
from peers import torch_models
from torch import nn
from workloads import NUM_CLASSES, Workload


def network(workload: Workload) -> nn.Module:
    """Makes a module of the size that the Keras model has.

    Args:
        workload: whose model.
    """
    units = workload.about.units
    if units is None:
        module = torch_models.MODELS["fashion_mnist_cnn"](False)
    else:
        parts: list[nn.Module] = []
        width = 784
        for next_width in units:
            parts += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        module = nn.Sequential(*parts, nn.Linear(width, NUM_CLASSES))
    workload.check_size(sum(parameter.numel() for parameter in module.parameters()))
    return module


def inputs_of(x: np.ndarray, num_leading: int = 2) -> np.ndarray:
    """Images as PyTorch has them, channels first; other data as they are.

    Args:
        x: `(..., height, width, channels)`, or `(..., features)`.
        num_leading: axes before those of an example.
    """
    return np.ascontiguousarray(np.moveaxis(x, -1, num_leading)) if x.ndim > 3 else x
