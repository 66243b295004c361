"""Private training over several devices on JAX: Keras's `keras.distribution`.

The step stays one program for all devices. The rows of a batch are divided among them. Weights and
the optimizer's variables are the same everywhere, or divided by `ModelParallel`. XLA adds the sums
of the devices. So each unit is clipped once, and there is one noise.
"""

from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

Tensor = Any

_SUPPORTED = (keras.distribution.DataParallel, keras.distribution.ModelParallel)


def unsupported_distribution(model: keras.Model) -> str | None:
    """Override: Keras's own distributions alone keep one noise and one ledger."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        if jax.process_count() == 1:
            return None
        return (
            "Several JAX processes run, each of which would train a model of its own. Call "
            "`keras.distribution.set_distribution(keras.distribution.DataParallel())` before the "
            f"model is made. Received: {jax.process_count()} processes and no distribution"
        )
    if not isinstance(distribution, _SUPPORTED):
        return (
            "Private training runs under `keras.distribution.DataParallel` and `ModelParallel`. "
            f"Received: {type(distribution).__name__}"
        )
    if jax.process_count() > 1:
        if distribution.auto_shard_dataset:
            return (
                "Each process gives its own share of the data, which Keras must not divide again. "
                "Make the distribution with `auto_shard_dataset=False`. Received: "
                f"{type(distribution).__name__} with auto_shard_dataset=True"
            )
        if num_batch_shards() % jax.process_count() != 0:
            return (
                "The axis of the batch must have as many devices in each process, so that each "
                f"gives its own rows. Received: {num_batch_shards()} devices along "
                f"{distribution.batch_dim_name!r} in {jax.process_count()} processes"
            )
    devices = set(distribution.device_mesh.backend_mesh.devices.flat)
    elsewhere = [
        variable.path
        for variable in [*model.variables, *model.optimizer.variables]
        if set(variable.value.sharding.device_set) != devices
    ]
    if elsewhere:
        return (
            "The model or its optimizer was made before the distribution was set, so that its "
            "variables lie on other devices than the data will. Call "
            "`keras.distribution.set_distribution` first. Received: variables elsewhere: "
            f"{', '.join(elsewhere[:3])}{', ...' if len(elsewhere) > 3 else ''}"
        )
    return None


def num_batch_shards() -> int:
    """Override: the devices along the mesh's axis of the batch."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return int(mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)])


def on_all_shards(value: Tensor) -> Tensor:
    """Override: a constraint, without which XLA may gather slices of the shards."""
    if num_batch_shards() == 1:
        return value
    layout = keras.distribution.distribution().get_data_layout(value.shape)
    return keras.distribution.distribute_tensor(value, layout)


def num_processes() -> int:
    """Override: the processes of `jax.distributed`."""
    return jax.process_count()


def process_number() -> int:
    """Override: the number in `jax.distributed`."""
    return jax.process_index()


def gathered(array: np.ndarray) -> np.ndarray:
    """Override: sends bytes, since JAX would make 32 bits of 64."""
    array = np.asarray(array)
    if jax.process_count() == 1:
        return array[None]
    sent = np.frombuffer(array.tobytes(), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent))
    return np.frombuffer(received.tobytes(), array.dtype).reshape(-1, *array.shape)


def is_whole_in_each_process(variable: keras.Variable) -> bool:
    """Override: False if `ModelParallel` divides it among processes."""
    return bool(variable.value.is_fully_replicated or variable.value.is_fully_addressable)
